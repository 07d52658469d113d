import { createRoot } from 'react-dom/client';
import { initPluginTranslations } from '@grafana/i18n';
import { GlobalStyles, PortalContainer } from '@grafana/ui';
import { App } from './App';
import type { Dashboard } from './dashboard';

declare global {
  interface Window {
    __grafana_public_path__: string;
  }
}

window.__grafana_public_path__ = '/'; // where Grafana's components find their icons
await initPluginTranslations('grafana-ui');
const dashboards: Dashboard[] = await (await fetch('/dashboards')).json();
createRoot(document.getElementById('root')!).render(
  <>
    <GlobalStyles />
    <App dashboards={dashboards} />
    <PortalContainer />
  </>
);
