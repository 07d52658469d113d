import { useMemo } from 'react';
import { FieldType, formattedValueToString, getFieldDisplayName } from '@grafana/data';
import type { DataFrame, GrafanaTheme2, TimeRange } from '@grafana/data';
import { AxisPlacement, ScaleDirection, ScaleOrientation } from '@grafana/schema';
import { UPlotChart, UPlotConfigBuilder, useTheme2 } from '@grafana/ui';
import * as schemes from 'd3-scale-chromatic';
import type uPlot from 'uplot';
import type { Panel } from './dashboard';
import type { Size } from './size';

const LEGEND_HEIGHT = 28;

interface Options {
  cellGap: number;
  color: { scheme: string; min: number; max: number };
  yAxis: { axisLabel?: string };
}

interface Row {
  name: string;
  times: number[];
  values: Array<number | null>;
}

interface Props extends Size {
  panel: Panel;
  frames: DataFrame[];
  timeRange: TimeRange;
  step: number;
}

/** A row of cells for each series, coloured by value. */
export function HeatMap({ panel, frames, timeRange, step, width, height }: Props) {
  const theme = useTheme2();
  const { color, cellGap, yAxis } = panel.options as Options;
  const interpolate = (schemes as unknown as Record<string, (part: number) => string>)[`interpolate${color.scheme}`];
  const builder = useMemo(() => {
    const rows = toRows(frames);
    const config = plotOf(rows.map(({ name }) => name), yAxis.axisLabel, timeRange, theme);
    config.addHook('draw', (plot: uPlot) => drawCells(plot, rows, step, cellGap, colorOf));
    return config;
  }, [frames, timeRange, theme]);
  const ends = [timeRange.from.valueOf(), timeRange.to.valueOf()];

  function colorOf(value: number): string {
    return interpolate(Math.min(1, Math.max(0, (value - color.min) / (color.max - color.min))));
  }

  return (
    <>
      <UPlotChart config={builder} data={[ends, [null, null]]} width={width} height={height - LEGEND_HEIGHT} />
      <Legend ends={[color.min, color.max].map((value) => textOf(frames, value))} colorAt={interpolate} />
    </>
  );
}

function toRows(frames: DataFrame[]): Row[] {
  const rows = frames.map((frame) => {
    const numbers = frame.fields.find(({ type }) => type === FieldType.number)!;
    return { name: getFieldDisplayName(numbers, frame, frames), times: frame.fields[0].values, values: numbers.values };
  });
  return rows.sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
}

function plotOf(names: string[], label: string | undefined, timeRange: TimeRange, theme: GrafanaTheme2): UPlotConfigBuilder {
  const config = new UPlotConfigBuilder('browser');
  config.addScale({
    scaleKey: 'x',
    isTime: true,
    orientation: ScaleOrientation.Horizontal,
    direction: ScaleDirection.Right,
    range: [timeRange.from.valueOf(), timeRange.to.valueOf()],
  });
  config.addScale({
    scaleKey: 'y',
    orientation: ScaleOrientation.Vertical,
    direction: ScaleDirection.Up,
    range: [-0.5, names.length - 0.5],
  });
  config.addAxis({ scaleKey: 'x', isTime: true, placement: AxisPlacement.Bottom, theme, grid: { show: false } });
  config.addAxis({
    scaleKey: 'y',
    label,
    placement: AxisPlacement.Left,
    theme,
    grid: { show: false },
    splits: names.map((_, row) => row),
    values: () => names,
  });
  config.addSeries({ scaleKey: 'y', theme, pathBuilder: () => null });
  return config;
}

function drawCells(plot: uPlot, rows: Row[], step: number, gap: number, colorOf: (value: number) => string) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  rows.forEach(({ times, values }, row) => {
    const top = plot.valToPos(row + 0.5, 'y', true);
    const height = plot.valToPos(row - 0.5, 'y', true) - top;
    times.forEach((time, index) => {
      const value = values[index];
      if (value === null) {
        return;
      }
      const left = plot.valToPos(time - step * 1000, 'x', true);
      const width = plot.valToPos(time, 'x', true) - left;
      ctx.fillStyle = colorOf(value);
      ctx.fillRect(left, top + gap, Math.max(1, width - (width > 4 * gap ? gap : 0)), height - 2 * gap);
    });
  });
  ctx.restore();
}

function textOf(frames: DataFrame[], value: number): string {
  const field = frames[0].fields.find(({ type }) => type === FieldType.number)!;
  return formattedValueToString(field.display!(value));
}

function Legend({ ends: [least, most], colorAt }: { ends: string[]; colorAt: (part: number) => string }) {
  const colors = Array.from({ length: 17 }, (_, index) => colorAt(index / 16));
  return (
    <div style={{ display: 'flex', alignItems: 'center', gap: 8, height: LEGEND_HEIGHT, fontSize: 12 }}>
      {least}
      <div style={{ width: 160, height: 8, borderRadius: 2, background: `linear-gradient(90deg, ${colors})` }} />
      {most}
    </div>
  );
}
