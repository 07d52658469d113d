import { useEffect, useState } from 'react';
import { LoadingState } from '@grafana/data';
import type { DataFrame, TimeRange } from '@grafana/data';
import { PanelChrome, useTheme2 } from '@grafana/ui';
import { HeatMap } from './HeatMap';
import { Lines } from './Lines';
import type { Mark } from './Lines';
import { Stat } from './Stat';
import type { Panel } from './dashboard';
import { configured, toFrames } from './frames';
import { askInstant, askRange } from './prometheus';
import type { Span } from './prometheus';
import type { Size } from './size';

interface Props extends Size {
  panel: Panel;
  span: Span;
  timeRange: TimeRange;
  step: number;
  marks: Mark[];
  /** The query with every variable filled in. */
  fill: (query: string) => string;
}

interface Answers {
  frames: DataFrame[];
  error: string;
  timeRange: TimeRange;
}

/** A panel with its data. What it came to is told to whoever looks from outside: data-state, data-error. */
export function PanelView({ panel, span, timeRange, step, marks, fill, width, height }: Props) {
  const theme = useTheme2();
  const [answers, setAnswers] = useState<Answers>();
  useEffect(() => {
    let isWanted = true;
    const keep = (answered: Answers) => isWanted && setAnswers(answered);
    ask(panel, fill, span, step).then(
      (frames) => keep({ frames: configured(frames, panel, theme), error: '', timeRange }),
      (failure: Error) => keep({ frames: [], error: failure.message, timeRange })
    );
    return () => {
      isWanted = false;
    };
  }, [panel, fill, span]);
  const state = !answers ? 'loading' : answers.error ? 'error' : answers.frames.some(hasNumbers) ? 'drawn' : 'empty';
  return (
    <section data-panel={panel.title} data-state={state} data-error={answers?.error}>
      <PanelChrome
        title={panel.title}
        description={panel.description}
        loadingState={state === 'error' ? LoadingState.Error : LoadingState.Done}
        statusMessage={answers?.error}
        width={width}
        height={height}
      >
        {(width, height) => (state === 'drawn' ? draw(answers!, { width, height }) : <Empty state={state} />)}
      </PanelChrome>
    </section>
  );

  function draw({ frames, timeRange }: Answers, size: Size) {
    switch (panel.type) {
      case 'timeseries':
        return <Lines {...{ panel, frames, timeRange, marks, ...size }} />;
      case 'heatmap':
        return <HeatMap {...{ panel, frames, timeRange, step, ...size }} />;
      case 'stat':
        return <Stat {...{ panel, frames, ...size }} />;
      default:
        throw new Error(`this page does not know panels of type ${panel.type}`);
    }
  }
}

async function ask(panel: Panel, fill: Props['fill'], span: Span, step: number): Promise<DataFrame[]> {
  const answers = panel.targets.map(async (target) => {
    const query = fill(target.expr);
    const series = await (target.instant ? askInstant(query, span.to) : askRange(query, span, step));
    return toFrames(series, target, step);
  });
  return (await Promise.all(answers)).flat();
}

function hasNumbers({ fields }: DataFrame): boolean {
  return fields[1].values.some((value) => value !== null);
}

function Empty({ state }: { state: string }) {
  return <p style={{ textAlign: 'center' }}>{state === 'empty' && 'No data'}</p>;
}
