import { FieldType, reduceField } from '@grafana/data';
import type { DataFrame } from '@grafana/data';
import { BigValue, useTheme2 } from '@grafana/ui';
import type { BigValueColorMode, BigValueGraphMode, BigValueJustifyMode, BigValueTextMode } from '@grafana/ui';
import type { Panel } from './dashboard';
import type { Size } from './size';

interface Options {
  colorMode: BigValueColorMode;
  graphMode: BigValueGraphMode;
  justifyMode: BigValueJustifyMode;
  textMode: BigValueTextMode;
  reduceOptions: { calcs: string[] };
}

/** One large number for each series, side by side. */
export function Stat({ panel, frames, width, height }: Size & { panel: Panel; frames: DataFrame[] }) {
  const theme = useTheme2();
  const { reduceOptions, ...modes } = panel.options as Options;
  const [calculation] = reduceOptions.calcs;
  const fields = frames.flatMap((frame) => frame.fields.filter(({ type }) => type === FieldType.number));
  return (
    <div style={{ display: 'flex' }}>
      {fields.map((field, index) => {
        const value = field.display!(reduceField({ field, reducers: [calculation] })[calculation]);
        return <BigValue key={index} {...modes} {...{ theme, value, height }} width={width / fields.length} />;
      })}
    </div>
  );
}
