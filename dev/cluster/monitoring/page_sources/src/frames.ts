/** Prometheus's answers as Grafana's data frames, with the fields configured as the panel says. */

import { FieldType, fieldMatchers, getDisplayProcessor } from '@grafana/data';
import type { DataFrame, Field, FieldConfig, GrafanaTheme2 } from '@grafana/data';
import { cloneDeep, merge, set } from 'lodash';
import { legendOf } from './dashboard';
import type { Panel, Target } from './dashboard';
import type { Series } from './prometheus';

/** What Grafana's panels do unless they are told otherwise. */
const BY_DEFAULT: Record<string, FieldConfig> = {
  timeseries: { color: { mode: 'palette-classic' } },
  stat: { color: { mode: 'thresholds' } },
  heatmap: {},
};

/** A frame for each series. The step tells a gap from a line that goes on. */
export function toFrames(series: Series[], target: Target, step: number): DataFrame[] {
  return series.map(({ labels, points }) => ({
    refId: target.refId,
    length: points.length,
    fields: [
      { name: 'Time', type: FieldType.time, config: { interval: step * 1000 }, values: points.map(([time]) => time * 1000) },
      {
        name: 'Value',
        type: FieldType.number,
        labels,
        config: { displayNameFromDS: legendOf(target.legendFormat, labels) },
        values: points.map(([, value]) => value),
      },
    ],
  }));
}

export function configured(frames: DataFrame[], panel: Panel, theme: GrafanaTheme2): DataFrame[] {
  return frames.map((frame, index) => ({
    ...frame,
    fields: frame.fields.map((field) => (field.type === FieldType.number ? numbers(field, frame, index) : field)),
  }));

  function numbers(field: Field, frame: DataFrame, seriesIndex: number): Field {
    const { defaults, overrides } = panel.fieldConfig;
    const config: FieldConfig = merge({}, BY_DEFAULT[panel.type], cloneDeep(defaults), field.config);
    for (const { matcher, properties } of overrides) {
      if (fieldMatchers.get(matcher.id).get(matcher.options)(field, frame, frames)) {
        properties.forEach(({ id, value }) => set(config, id, value));
      }
    }
    if (config.thresholds) {
      config.thresholds.steps[0].value = -Infinity; // which JSON cannot say
    }
    const done: Field = { ...field, config, state: { seriesIndex } };
    done.display = getDisplayProcessor({ field: done, theme });
    return done;
  }
}
