"""The style sheet of the report, light and dark, for wide and narrow screens."""

from localscale.lab.pictures.palette import SKY, VERMILION

__all__ = ["STYLE"]

STYLE = (
    f":root {{ --grid: {SKY}; --wrong: {VERMILION}; }}"
    + """
:root { color-scheme: light dark; --ink: #1c1c1c; --faint: #5c5c5c; --page: #ffffff; --card: #f4f5f7;
  --line: #d5d8dd; --link: #0059a0; --right: #00664a; --mark: #fff0c2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --faint: #a8a8a8; --page: #16181c; --card: #202329;
  --line: #3b4049; --link: #7cc0f5; --right: #4fd1a5; --wrong: #ff9d5c; --mark: #574a17; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 64rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: .5rem 0; } h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem;
  border-bottom: 1px solid var(--line); padding-bottom: .25rem; } h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
a { color: var(--link); } nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .9rem; }
.note, small, figcaption { color: var(--faint); } .note { font-size: .875rem; }
small { display: block; margin-top: .25rem; font-size: .75rem; line-height: 1.35; }
mark { background: var(--mark); color: inherit; padding: 0 .2em; }
.wide, .strip { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; min-width: 4.5rem; }
td { max-width: 26rem; overflow-wrap: anywhere; } tbody th { font-weight: 500; min-width: 8rem; }
thead th { color: var(--faint); font-weight: 500; }
figure { margin: .6rem 0; } figcaption { font-size: .875rem; } figcaption b { color: var(--ink); }
figure > svg { width: 100%; max-width: 30rem; height: auto; display: block; }
svg text { font-family: system-ui, sans-serif; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: .5rem 1rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 0 1rem; }
.strip { display: flex; gap: .6rem; padding: .4rem .2rem; } .cell { flex: 0 0 9rem; }
.picture { position: relative; line-height: 0; margin-top: .25rem; } .picture img { width: 100%; display: block;
  border-radius: .2rem; } .picture svg { position: absolute; inset: 0; width: 100%; height: 100%; fill: none;
  stroke: var(--grid); stroke-width: 1.2px; } .picture path { vector-effect: non-scaling-stroke; }
.reference .picture img { outline: 2px solid var(--link); outline-offset: 1px; }
.right { color: var(--right); font-weight: 700; } .wrong { color: var(--wrong); font-weight: 700; }
details { margin: 1rem 0; } summary { cursor: pointer; color: var(--link); }
""".strip()
)
