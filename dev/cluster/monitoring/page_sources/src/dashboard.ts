/** The JSON of a dashboard, as far as ours use it, and the values of its variables. */

import { dateTime, rangeUtil } from '@grafana/data';
import type { FieldConfigSource, RawTimeRange } from '@grafana/data';
import type { Span } from './prometheus';

export interface Target {
  refId: string;
  expr: string;
  legendFormat: string;
  instant: boolean;
}

export interface Panel {
  type: string;
  title: string;
  description: string;
  targets: Target[];
  gridPos: Record<'x' | 'y' | 'w' | 'h', number>;
  fieldConfig: FieldConfigSource;
  options: unknown;
}

export interface Variable {
  type: string;
  name: string;
  label: string;
  query: string;
  allValue: string;
}

export interface Marks {
  name: string;
  expr: string;
  step: string;
  titleFormat: string;
  iconColor: string;
}

export interface Dashboard {
  uid: string;
  title: string;
  refresh: string;
  time: { from: string; to: string };
  panels: Panel[];
  templating: { list: Variable[] };
  annotations?: { list?: Marks[] };
}

/** Which values of each variable are chosen; none means all. */
export type Chosen = Record<string, string[]>;

/** Times are as in Grafana's addresses: relative to now, or milliseconds since 1970. */
export function rangeOf(from: string, to: string): RawTimeRange {
  const [start, end] = [from, to].map((time) => (/^\d+$/.test(time) ? dateTime(Number(time)) : time));
  return { from: start, to: end };
}

export function spanOf(from: string, to: string): Span {
  const range = rangeUtil.convertRawToRange(rangeOf(from, to));
  return { from: range.from.valueOf() / 1000, to: range.to.valueOf() / 1000 };
}

/** The query with variables filled in as Grafana fills them in for Prometheus. */
export function filledIn(query: string, variables: Variable[], chosen: Chosen, span: Span): string {
  return variables
    .filter(({ type }) => type === 'query')
    .reduce(
      (text, { name, allValue }) => text.replaceAll(`$${name}`, alternatives(chosen[name] ?? [], allValue)),
      query.replaceAll('$__range', `${Math.ceil(span.to - span.from)}s`)
    );
}

function alternatives(values: string[], all: string): string {
  const escaped = values.map((value) => value.replace(/[\\^$.*+?()[\]{}|]/g, '\\\\$&'));
  return escaped.length > 1 ? `(${escaped.join('|')})` : (escaped[0] ?? all);
}

/** A legend with the labels that it names in double braces. */
export function legendOf(format: string, labels: Record<string, string>): string {
  return format.replace(/{{\s*(\w+)\s*}}/g, (_, label: string) => labels[label] ?? '');
}
