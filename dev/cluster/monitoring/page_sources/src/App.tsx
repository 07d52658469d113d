import { useEffect, useState } from 'react';
import { rangeUtil } from '@grafana/data';
import { Combobox, InlineField, MultiCombobox, Stack, Tab, TabsBar, useTheme2 } from '@grafana/ui';
import { DashboardView } from './DashboardView';
import { filledIn, rangeOf, spanOf } from './dashboard';
import type { Chosen, Dashboard, Variable } from './dashboard';
import { askLabelValues } from './prometheus';
import type { Span } from './prometheus';

const RANGES = ['5m', '15m', '30m', '1h', '6h', '24h', '7d'].map((range) => ({
  value: `now-${range}`,
  label: `Last ${range}`,
}));

/** One of the dashboards, with its state in the address as Grafana has it: /d/UID?from=now-1h&to=now&var-job=... */
export function App({ dashboards }: { dashboards: Dashboard[] }) {
  const theme = useTheme2();
  const [address, setAddress] = useState(new URL(location.href));
  const dashboard = dashboards.find(({ uid }) => address.pathname === `/d/${uid}`) ?? dashboards[0];
  const state = address.searchParams;
  const from = state.get('from') ?? dashboard.time.from;
  const to = state.get('to') ?? dashboard.time.to;
  const span = useSpan(from, to, state.get('refresh') ?? dashboard.refresh);
  const isListed = RANGES.some(({ value }) => value === from);
  const ranges = isListed ? RANGES : [{ value: from, label: rangeUtil.describeTimeRange(rangeOf(from, to)) }, ...RANGES];
  const variables = dashboard.templating.list.filter(({ type }) => type === 'query');
  const chosen: Chosen = Object.fromEntries(variables.map(({ name }) => [name, state.getAll(`var-${name}`)]));

  function go(pathname: string, changes: Record<string, string[]>) {
    const next = new URL(address);
    next.pathname = pathname;
    for (const [name, values] of Object.entries(changes)) {
      next.searchParams.delete(name);
      values.forEach((value) => next.searchParams.append(name, value));
    }
    history.replaceState(null, '', next);
    setAddress(next);
  }

  return (
    <main style={{ padding: theme.spacing(2), minHeight: '100vh', background: theme.colors.background.canvas }}>
      <TabsBar>
        {dashboards.map(({ uid, title }) => (
          <Tab key={uid} label={title} active={uid === dashboard.uid} onChangeTab={() => go(`/d/${uid}`, {})} />
        ))}
      </TabsBar>
      <div style={{ padding: theme.spacing(2, 0, 1) }}>
        <Stack gap={1} wrap="wrap">
          {variables.map((variable) => (
            <Choice
              key={variable.name}
              {...{ variable, variables, chosen, span }}
              onChange={(values) => go(address.pathname, { [`var-${variable.name}`]: values })}
            />
          ))}
          <InlineField label="Time">
            <Combobox
              width="auto"
              minWidth={20}
              options={ranges}
              value={from}
              createCustomValue
              onChange={({ value }) => go(address.pathname, { from: [value], to: ['now'] })}
            />
          </InlineField>
        </Stack>
      </div>
      <DashboardView key={dashboard.uid} {...{ dashboard, chosen, span }} />
    </main>
  );
}

interface ChoiceProps {
  variable: Variable;
  variables: Variable[];
  chosen: Chosen;
  span: Span;
  onChange: (values: string[]) => void;
}

/** A variable: what it can be is asked of Prometheus, with what is chosen for the variables before it. */
function Choice({ variable, variables, chosen, span, onChange }: ChoiceProps) {
  const [values, setValues] = useState<string[]>([]);
  const query = filledIn(variable.query, variables, chosen, span);
  useEffect(() => {
    askLabelValues(query, span).then(setValues, () => setValues([]));
  }, [query, span]);
  return (
    <section data-variable={variable.name} data-choices={values.length}>
      <InlineField label={variable.label}>
        <MultiCombobox
          width={30}
          placeholder="All"
          options={values.map((value) => ({ value, label: value }))}
          value={chosen[variable.name]}
          onChange={(options) => onChange(options.map(({ value }) => value))}
        />
      </InlineField>
    </section>
  );
}

/** The time that is shown, which moves on at every refresh. */
function useSpan(from: string, to: string, refresh: string): Span {
  const [span, setSpan] = useState(() => spanOf(from, to));
  useEffect(() => {
    setSpan(spanOf(from, to));
    const timer = setInterval(() => setSpan(spanOf(from, to)), rangeUtil.intervalToMs(refresh));
    return () => clearInterval(timer);
  }, [from, to, refresh]);
  return span;
}
