import { cpSync } from 'node:fs';
import { defineConfig } from 'vite';

/** Grafana's components fetch their icons when they draw them. */
const icons = {
  name: 'icons',
  closeBundle: () => cpSync('node_modules/@grafana/ui/dist/public/img', 'dist/build/img', { recursive: true }),
};

export default defineConfig({
  plugins: [icons],
  build: { target: 'es2022', chunkSizeWarningLimit: 10_000 },
});
