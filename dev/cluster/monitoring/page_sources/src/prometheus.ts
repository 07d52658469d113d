/** Prometheus's HTTP API, as far as dashboards ask it. */

export interface Series {
  labels: Record<string, string>;
  /** Pairs of a time in seconds and a value; what is no number is none. */
  points: Array<[number, number | null]>;
}

interface Answer {
  metric: Record<string, string>;
  value?: [number, string];
  values?: Array<[number, string]>;
}

/** The time that is shown, in seconds since 1970. */
export interface Span {
  from: number;
  to: number;
}

export async function askRange(expr: string, { from, to }: Span, step: number): Promise<Series[]> {
  const start = Math.floor(from / step) * step; // else every refresh would see other points
  const query = { query: expr, start: `${start}`, end: `${to}`, step: `${step}` };
  return series((await ask<{ result: Answer[] }>('query_range', query)).result);
}

export async function askInstant(expr: string, at: number): Promise<Series[]> {
  return series((await ask<{ result: Answer[] }>('query', { query: expr, time: `${at}` })).result);
}

/** The choices of a variable, which is always a label_values(metric, label). */
export async function askLabelValues(query: string, { from, to }: Span): Promise<string[]> {
  const [, match, label] = /^label_values\((.+),\s*(\w+)\)$/s.exec(query) ?? [];
  if (match === undefined) {
    throw new Error(`this page knows variables with label_values(metric, label), not ${query}`);
  }
  return ask<string[]>(`label/${label}/values`, { 'match[]': match, start: `${from}`, end: `${to}` });
}

async function ask<T>(what: string, parameters: Record<string, string>): Promise<T> {
  const answer = await fetch(`/api/v1/${what}?${new URLSearchParams(parameters)}`);
  const body: { status: string; error?: string; data: T } = await answer.json();
  if (body.status !== 'success') {
    throw new Error(body.error);
  }
  return body.data;
}

function series(answers: Answer[]): Series[] {
  return answers.map(({ metric, value, values }) => ({
    labels: metric,
    points: (values ?? (value ? [value] : [])).map(([time, text]) => [time, isFinite(Number(text)) ? Number(text) : null]),
  }));
}
