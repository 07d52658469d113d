"""The CSS of a report, light and dark, with the colours of `memtune plan --plot`."""

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --panel: #f6f8fa; --ink: #1f2933; --soft: #616e7c;
  --faint: #dde3ea; --blue: #3b6fb6; --pale: #a9c4e6; --green: #3f8f63; --amber: #d9962b; --red: #c0392b;
  --violet: #7a5ba8; --teal: #2f8f8c; --brown: #8d6a3f }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --panel: #1c2229; --ink: #e4e8ec; --soft: #9aa5b1;
  --faint: #2f3843; --blue: #6f9fdb; --pale: #39557a; --green: #5bb583; --amber: #e5ad55; --red: #e2685c;
  --violet: #a98fd6; --teal: #5fc2be; --brown: #c29a68 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
main { max-width: 1040px; margin: 0 auto; padding: 40px 32px 56px }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -.01em; overflow-wrap: anywhere }
h2 { font-size: 19px; margin: 0 0 12px } h3 { font-size: 15px; margin: 24px 0 4px }
p { margin: 0 0 10px; max-width: 86ch } code, .mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace }
code { font-size: .92em } .kind { margin: 0; color: var(--soft); font-size: 13px }
.sub { color: var(--soft); margin: 0 }
.lead { margin: 14px 0 0; font-size: 16px } .note { margin: 8px 0 0; color: var(--amber) }
.phase { font-size: 14px; font-weight: 600; letter-spacing: 0; padding: 3px 10px; border-radius: 99px; color: #fff;
  background: var(--blue); vertical-align: 5px; margin-left: 6px; white-space: nowrap }
.phase.succeeded { background: var(--green) } .phase.failed { background: var(--red) }
.phase.recovering, .phase.suspended { background: var(--amber) }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); gap: 12px; margin: 26px 0 8px }
.tile { background: var(--panel); border-radius: 10px; padding: 12px 14px }
.tile b { display: block; font-size: 17px; line-height: 1.35; overflow-wrap: anywhere } .tile b.mono { font-size: 14px }
.tile span { color: var(--soft); font-size: 12.5px }
section { margin-top: 36px; padding-top: 24px; border-top: 1px solid var(--faint) }
.chronicle { list-style: none; margin: 0; padding: 0 }
.chronicle li { position: relative; padding: 0 0 12px 22px; border-left: 2px solid var(--faint); margin-left: 5px }
.chronicle li:last-child { border-color: transparent; padding-bottom: 0 }
.chronicle li::before { content: ""; position: absolute; left: -7px; top: 5px; width: 12px; height: 12px;
  border-radius: 50%; background: var(--c, var(--blue)); box-shadow: 0 0 0 3px var(--ground) }
.chronicle time { color: var(--soft); font-size: 12.5px; font-variant-numeric: tabular-nums } .chronicle p { margin: 0 }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; margin-bottom: 14px }
th { text-align: left; color: var(--soft); font-weight: 600; font-size: 12.5px }
th, td { padding: 7px 10px 7px 0; border-bottom: 1px solid var(--faint); vertical-align: top }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-right: 20px }
.legend { color: var(--soft); font-size: 13px; max-width: none }
.legend span { white-space: nowrap; margin-right: 18px }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; background: var(--c);
  vertical-align: -1px; margin-right: 6px }
td code { white-space: nowrap; font-size: 12px }
svg { display: block; width: 100%; height: auto; overflow: visible }
svg text { fill: var(--ink); font-size: 13px } svg .tick { fill: var(--soft); font-size: 12px }
svg .tick.mono { font-size: 11px } svg .strong { font-weight: 700 }
svg .inbar { fill: #fff; font-size: 12px } svg .number { font-size: 12px; font-weight: 700 }
svg .number.won { fill: #fff }
svg .limittext { fill: var(--red); font-size: 12px } svg .grid { stroke: var(--faint) }
svg .axis, svg .interval { stroke: var(--ink); stroke-width: 1.5 } svg .stem { stroke: var(--soft); stroke-width: 2 }
svg .limit { stroke: var(--red); stroke-width: 1.6; stroke-dasharray: 6 4 }
svg .headroom { stroke: var(--amber); stroke-width: 1.4; stroke-dasharray: 2 4 }
svg .expected { stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 4 3 }
.predicted { --c: var(--pale) } .good { --c: var(--green) } .warn, .mayfit { --c: var(--amber) }
.bad, .cannot { --c: var(--red) } .idle { --c: var(--soft) } .fits, .series0 { --c: var(--blue) }
.series1 { --c: var(--violet) } .series2 { --c: var(--teal) } .series3 { --c: var(--amber) }
.series4 { --c: var(--green) } .series5 { --c: var(--brown) }
svg rect, svg circle { fill: var(--c) }
svg path, svg .edge { stroke: var(--c); stroke-width: 2; stroke-linejoin: round }
.cannot { opacity: .5 } svg .area { fill-opacity: .22 } svg .band { --c: var(--panel) }
svg .front { stroke: var(--green); stroke-width: 2 }
svg .ring { --c: var(--ground); stroke: var(--ink); stroke-width: 2 } svg .ring.winner { --c: var(--green) }
footer { margin-top: 44px; color: var(--soft); font-size: 12.5px }
@media print { main { max-width: none; padding: 0 } section { break-inside: avoid } }
"""
