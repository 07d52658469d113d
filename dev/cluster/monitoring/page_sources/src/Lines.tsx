import { useLayoutEffect, useRef } from 'react';
import { FieldType, dateTimeFormat, formattedValueToString, getFieldDisplayName } from '@grafana/data';
import type { DataFrame, TimeRange } from '@grafana/data';
import type { VizLegendOptions } from '@grafana/schema';
import { SeriesTable, TimeSeries, TooltipPlugin2, useTheme2 } from '@grafana/ui';
import type { UPlotConfigBuilder } from '@grafana/ui';
import type uPlot from 'uplot';
import type { Panel } from './dashboard';
import type { Size } from './size';

/** Something that began at a time, in milliseconds. */
export interface Mark {
  time: number;
  title: string;
  color: string;
}

interface Props extends Size {
  panel: Panel;
  frames: DataFrame[];
  timeRange: TimeRange;
  marks: Mark[];
}

export function Lines({ panel, frames, timeRange, marks, width, height }: Props) {
  const options = panel.options as { legend: VizLegendOptions };
  return (
    <TimeSeries {...{ frames, timeRange, width, height, options }} legend={options.legend} timeZone="browser">
      {(builder, aligned) => (
        <>
          <MarkLines builder={builder} marks={marks} />
          <TooltipPlugin2
            config={builder}
            hoverMode={1}
            render={(_, indexes) => <Values aligned={aligned} frames={frames} indexes={indexes} />}
          />
        </>
      )}
    </TimeSeries>
  );
}

/** Every line's value where the pointer is. */
function Values({ aligned, frames, indexes }: { aligned: DataFrame; frames: DataFrame[]; indexes: Array<number | null> }) {
  const theme = useTheme2();
  const at = indexes.find((index) => index != null);
  const rows = aligned.fields.flatMap((field, number) => {
    const index = indexes[number];
    if (field.type !== FieldType.number || index == null || field.values[index] == null) {
      return [];
    }
    const shown = field.display!(field.values[index]);
    const color = theme.visualization.getColorByName(field.config.color?.fixedColor ?? shown.color ?? 'text');
    return [{ label: getFieldDisplayName(field, aligned, frames), value: formattedValueToString(shown), color }];
  });
  return at == null ? null : <SeriesTable timestamp={dateTimeFormat(aligned.fields[0].values[at])} series={rows} />;
}

// In a narrower plot titles would lie on the lines and on each other.
const TITLED_WIDTH = 800;

/** A dashed line from top to bottom for each mark, and a foot to see it by; its title where there is room. */
function MarkLines({ builder, marks }: { builder: UPlotConfigBuilder; marks: Mark[] }) {
  const theme = useTheme2();
  const current = useRef(marks);
  current.current = marks;
  useLayoutEffect(() => {
    builder.addHook('draw', (plot: uPlot) => {
      for (const mark of current.current) {
        drawMark(plot, mark, theme.visualization.getColorByName(mark.color), theme.typography.fontFamily);
      }
    });
  }, [builder, theme]);
  return null;
}

function drawMark({ ctx, bbox, valToPos }: uPlot, { time, title }: Mark, color: string, font: string) {
  const left = valToPos(time, 'x', true);
  if (left < bbox.left || left > bbox.left + bbox.width) {
    return;
  }
  const ratio = window.devicePixelRatio;
  const bottom = bbox.top + bbox.height;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color;
  ctx.lineWidth = ratio;
  ctx.setLineDash([4 * ratio, 4 * ratio]);
  ctx.beginPath();
  ctx.moveTo(left, bbox.top);
  ctx.lineTo(left, bottom);
  ctx.stroke();
  ctx.beginPath();
  ctx.moveTo(left, bottom - 6 * ratio);
  ctx.lineTo(left - 5 * ratio, bottom);
  ctx.lineTo(left + 5 * ratio, bottom);
  ctx.fill();
  if (bbox.width > TITLED_WIDTH * ratio) {
    ctx.font = `${11 * ratio}px ${font}`;
    ctx.textBaseline = 'top';
    ctx.textAlign = left > bbox.left + bbox.width / 2 ? 'right' : 'left';
    ctx.fillText(title, left + (ctx.textAlign === 'left' ? 4 : -4) * ratio, bbox.top);
  }
  ctx.restore();
}
