"""The style sheet of the page: colours of the models from the palette, all others from the theme, light or dark."""

from localscale.lab.pictures.palette import BLUE, ORANGE, SKY, VERMILION

__all__ = ["STYLE"]

STYLE = (
    f"""
.gradio-container {{ --blue: {BLUE}; --orange: {ORANGE}; --sky: {SKY}; --control-series: {VERMILION};
  --model-series: var(--blue); }}
""".lstrip()
    + """
.gradio-container { max-width: 1240px !important;
  --faint: color-mix(in srgb, var(--body-text-color) 72%, transparent); }
.gradio-container main { padding-top: 0; } .gradio-container .html-container { padding: 2px 0; }
.gradio-container main .column, .gradio-container main .row { gap: 10px; }
.dark .gradio-container, .dark.gradio-container { --control-series: var(--orange); --model-series: var(--sky); }
.ls-head h1 { font-size: 1.35rem; margin: 0; display: inline; } .ls-head p { display: inline; margin-left: .6rem;
  color: var(--faint); }
.ls-about { font-size: .85rem; color: var(--faint); margin: 0; }
.ls-panel { margin: 0; } .ls-panel figcaption { font-size: .85rem; line-height: 1.35; margin-bottom: .3rem;
  color: var(--faint); min-height: 1.35em; } .ls-panel b { color: var(--body-text-color); }
.ls-pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px;
  align-items: end; }
#pad b, .ls-pictures b { display: block; }
.ls-frame { position: relative; width: 100%; max-width: calc(320px * max(1, var(--ratio))); line-height: 0;
  touch-action: pan-y; }
.ls-frame img { position: absolute; inset: 0; width: 100%; height: 100%; border-radius: 4px; user-select: none;
  box-shadow: 0 0 0 1px var(--border-color-primary); }
.ls-frame svg { position: absolute; inset: 0; width: 100%; height: 100%; fill: none; pointer-events: none; }
.ls-frame svg * { vector-effect: non-scaling-stroke; }
.ls-grid path { stroke: var(--sky); stroke-width: 1.1px; } .ls-grid { filter: drop-shadow(0 0 .6px #0009); }
.ls-outline * { stroke: var(--orange); stroke-width: 2px; }
.ls-pad { cursor: crosshair; touch-action: none; } .ls-knots { touch-action: none; }
.ls-rubber { position: absolute; border: 2px dashed var(--orange); min-width: 6px; min-height: 6px;
  pointer-events: none; }
.ls-dab { position: absolute; aspect-ratio: 1; border-radius: 50%; pointer-events: none;
  background: color-mix(in srgb, var(--orange) 53%, transparent);
  transform: translate(-50%, -50%); }
.ls-knot { position: absolute; width: 16px; height: 16px; padding: 0; border-radius: 50%; cursor: grab;
  transform: translate(-50%, -50%); background: var(--blue); border: 2px solid #fff; box-shadow: 0 0 3px #0008; }
.ls-knot:hover, .ls-knot:focus-visible { background: var(--orange); outline: none; }
.ls-strip { display: flex; flex-wrap: wrap; gap: .5rem; }
.ls-example { display: flex; flex-direction: column; align-items: center; gap: 2px; padding: 3px; border-radius: 6px;
  border: 2px solid var(--border-color-primary); background: var(--background-fill-primary); cursor: pointer;
  color: var(--body-text-color); font-size: .75rem; line-height: 1.2; }
.ls-example img { height: 56px; width: auto; max-width: 76px; object-fit: cover; border-radius: 3px; }
.ls-example:hover, .ls-example[aria-pressed="true"] { border-color: var(--model-series); }
.ls-tops { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: .4rem 1.4rem; }
.ls-top { width: 100%; border-collapse: collapse; table-layout: fixed; font-size: .85rem;
  font-variant-numeric: tabular-nums; color: var(--body-text-color); }
.ls-top caption { text-align: left; font-weight: 600; padding-bottom: .25rem; color: var(--series); }
.ls-top th { text-align: left; font-weight: 500; width: 38%; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; padding: .3rem .4rem .3rem 0; }
.ls-top td:last-child { width: 4.2em; text-align: right; white-space: nowrap; }
.ls-bar { height: .8rem; border-radius: 2px; min-width: 1px; background: var(--series); }
.ls-control { --series: var(--control-series); } .ls-model { --series: var(--model-series); }
.ls-curve { overflow-x: auto; } .ls-curve svg { width: 100%; min-width: 620px; height: auto; display: block; }
.ls-curve text { font-size: 14px; fill: var(--faint); font-family: system-ui, sans-serif; }
.ls-rule { stroke: var(--border-color-primary); } .ls-now { stroke: var(--body-text-color); stroke-width: 1.5;
  stroke-dasharray: 4 3; }
.ls-curve polyline { fill: none; stroke-width: 2.5; stroke: var(--series); }
.ls-curve .ls-control { stroke-dasharray: 7 4; } .ls-curve circle { fill: var(--series); stroke: none; }
.ls-key { margin-left: .8rem; font-weight: 600; white-space: nowrap; color: var(--series); }
.ls-key::before { content: "● "; }
.ls-site, .ls-back { display: grid; gap: 10px; align-items: start; }
.ls-site { grid-template-columns: repeat(auto-fit, minmax(min(100%, 260px), 340px)); margin-bottom: 1.2rem; }
.ls-back { grid-template-columns: repeat(auto-fit, minmax(min(100%, 220px), 1fr)); }
.ls-back .ls-frame, #drag .ls-frame { max-width: calc(380px * max(1, var(--ratio))); }
#sites .ls-about { margin-bottom: .7rem; } #back .ls-facts { margin-top: .7rem; }
.ls-facts { font-size: .85rem; border-collapse: collapse; font-variant-numeric: tabular-nums;
  color: var(--body-text-color); align-self: start; }
.ls-facts th { text-align: left; font-weight: 400; padding: .25rem 1rem .25rem 0;
  color: var(--faint); white-space: nowrap; }
.ls-facts td { padding: .25rem 0; } .ls-facts tr { border-bottom: 1px solid var(--border-color-primary); }
""".strip()
)
