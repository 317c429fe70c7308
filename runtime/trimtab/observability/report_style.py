"""The report's style sheet, kept apart so that `report` reads as its structure."""

CSS = """
:root { --page: #f6f7f9; --card: #ffffff; --ink: #1b1f26; --soft: #667085; --line: #e3e6eb; --accent: #2f7de1;
  --good: #1d8a57; --bad: #c9362f; --warn: #9a6200; --warn-back: #fff6e3; --code: #f2f4f7; }
@media (prefers-color-scheme: dark) {
  :root { --page: #13161b; --card: #1b1f26; --ink: #e8eaee; --soft: #98a1b0; --line: #2d333d;
    --accent: #6aa8f7; --good: #4cc38a; --bad: #ff7b72; --warn: #f0b849; --warn-back: #2c2517;
    --code: #151920; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 48px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 8px 14px; margin-bottom: 20px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 32px 0 12px; }
.soft { color: var(--soft); }
.badge { display: inline-block; padding: 1px 9px; border-radius: 999px; font-size: 12.5px; font-weight: 600;
  background: var(--code); color: var(--soft); white-space: nowrap; }
.badge.good { color: var(--good); } .badge.bad { color: var(--bad); } .badge.warn { color: var(--warn); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.tile b { display: block; font-size: 22px; font-weight: 650; letter-spacing: -0.01em; }
.tile span { font-size: 12.5px; color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 14px; }
@media (max-width: 480px) { .charts { grid-template-columns: 1fr; } }
.chart h3 { font-size: 14px; margin: 0 0 6px; }
.chart h3 span { font-weight: 400; color: var(--soft); }
.chart svg { width: 100%; height: auto; display: block; }
.chart svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif !important; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 500; color: var(--soft); white-space: nowrap; padding: 5px 18px 5px 0;
  vertical-align: top; width: 1%; }
td { padding: 5px 0; vertical-align: top; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
tr + tr > * { border-top: 1px solid var(--line); }
.failure { border-color: var(--bad); border-left: 4px solid var(--bad); margin-bottom: 16px; }
.failure b { color: var(--bad); }
.warning { background: var(--warn-back); border-left: 4px solid var(--warn); margin-bottom: 10px; }
.warning p { margin: 2px 0 0; }
.sample { margin-bottom: 12px; }
.sample .meta { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin-bottom: 8px; }
code { font: 0.92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { margin: 0; padding: 10px 12px; background: var(--code); border-radius: 7px; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.sample pre + pre { margin-top: 6px; border-left: 3px solid var(--accent); }
details { margin-bottom: 10px; }
summary { cursor: pointer; font-weight: 600; }
details[open] > summary { margin-bottom: 10px; }
footer { margin-top: 36px; color: var(--soft); font-size: 13px; }
@media print { body { background: #fff; } .card { break-inside: avoid; } }
"""
