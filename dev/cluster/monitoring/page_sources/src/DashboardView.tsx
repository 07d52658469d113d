import { useEffect, useMemo, useState } from 'react';
import { dateTime } from '@grafana/data';
import type { TimeRange } from '@grafana/data';
import type { Mark } from './Lines';
import { PanelView } from './PanelView';
import { filledIn, legendOf } from './dashboard';
import type { Chosen, Dashboard } from './dashboard';
import { askRange } from './prometheus';
import type { Span } from './prometheus';
import { useWidth } from './size';

const COLUMNS = 24;
const ROW_HEIGHT = 30;
const GAP = 8;
// More points than this would be closer together than pixels.
const POINTS = 400;

interface Props {
  dashboard: Dashboard;
  chosen: Chosen;
  span: Span;
}

/** The panels on Grafana's grid. */
export function DashboardView({ dashboard, chosen, span }: Props) {
  const { element, width } = useWidth();
  const [marks, setMarks] = useState<Mark[]>([]);
  const timeRange = useMemo(() => timeRangeOf(span), [span]);
  const fill = useMemo(() => {
    const variables = dashboard.templating.list;
    return (query: string) => filledIn(query, variables, chosen, span);
  }, [dashboard, chosen, span]);
  const step = Math.max(2, Math.ceil((span.to - span.from) / POINTS));
  useEffect(() => {
    askMarks(dashboard, fill, span, step).then(setMarks);
  }, [fill]);
  const column = (width + GAP) / COLUMNS;
  return (
    <div ref={element} style={{ position: 'relative', height: bottomOf(dashboard) }}>
      {width > 0 &&
        dashboard.panels.map((panel, index) => {
          const { x, y, w, h } = panel.gridPos;
          const place = { position: 'absolute' as const, left: x * column, top: y * (ROW_HEIGHT + GAP) };
          const size = { width: w * column - GAP, height: h * (ROW_HEIGHT + GAP) - GAP };
          return (
            <div key={index} style={{ ...place, ...size }}>
              <PanelView {...{ panel, span, timeRange, step, marks, fill, ...size }} />
            </div>
          );
        })}
    </div>
  );
}

function bottomOf({ panels }: Dashboard): number {
  return Math.max(...panels.map(({ gridPos: { y, h } }) => y + h)) * (ROW_HEIGHT + GAP);
}

function timeRangeOf(span: Span): TimeRange {
  const from = dateTime(span.from * 1000);
  const to = dateTime(span.to * 1000);
  return { from, to, raw: { from, to } };
}

/** The first sample of every series of a dashboard's annotations. */
async function askMarks(dashboard: Dashboard, fill: (query: string) => string, span: Span, step: number): Promise<Mark[]> {
  const found = (dashboard.annotations?.list ?? []).map(async ({ expr, titleFormat, iconColor }) => {
    const series = await askRange(fill(expr), span, step);
    return series.map(({ labels, points: [[time]] }) => ({
      time: time * 1000,
      title: legendOf(titleFormat, labels),
      color: iconColor,
    }));
  });
  return (await Promise.all(found)).flat();
}
