"""JavaScript that the browser runs: it turns clicks, drags and keys on a picture into events for the server.

The listeners are attached to a component's root element, which stays when the component's content is replaced.
"""

__all__ = ["CHOOSE_EXAMPLE", "DRAG_KNOTS", "MARK_PART"]

POSITION = """
const position = (event) => {
  const sides = element.querySelector('.ls-frame').getBoundingClientRect();
  const share = (value, start, length) => Math.min(Math.max((value - start) / length, 0), 1);
  return [share(event.clientX, sides.left, sides.width), share(event.clientY, sides.top, sides.height)];
};
"""

# Two clicks or one drag send the corners of a box; the brush sends the positions that its stroke passed through.
MARK_PART = (
    POSITION
    + """
const FAR = 0.02, RADIUS = 0.03;
let first = null, down = null, dragged = false, stroke = [];
const frame = () => element.querySelector('.ls-pad');
const brush = () => frame().dataset.mode === 'brush';
const draw = (name, shares, spot) => {
  spot = spot || document.createElement('div');
  spot.className = name;
  for (const [side, share] of Object.entries(shares)) spot.style[side] = 100 * share + '%';
  frame().append(spot);
};
const drawBox = (a, b) => draw('ls-rubber', {
  left: Math.min(a[0], b[0]), top: Math.min(a[1], b[1]), width: Math.abs(a[0] - b[0]), height: Math.abs(a[1] - b[1]),
}, frame().querySelector('.ls-rubber'));
const drawDab = (at) => draw('ls-dab', { left: at[0], top: at[1], width: 2 * RADIUS });
element.addEventListener('pointerdown', (event) => {
  if (!event.target.closest('.ls-pad') || event.button !== 0) return;
  event.preventDefault();
  element.setPointerCapture(event.pointerId);
  down = position(event);
  dragged = false;
  stroke = [down];
  if (brush()) drawDab(down);
});
element.addEventListener('pointermove', (event) => {
  if (!frame()) return;
  const at = position(event);
  if (down && brush()) {
    stroke.push(at);
    drawDab(at);
  } else if (down) {
    dragged = dragged || Math.hypot(at[0] - down[0], at[1] - down[1]) > FAR;
    if (dragged) drawBox(down, at);
  } else if (first && !brush()) {
    drawBox(first, at);
  }
});
element.addEventListener('pointerup', (event) => {
  if (!down) return;
  const at = position(event), start = dragged ? down : first;
  down = first = null;
  if (brush()) {
    trigger('select', { stroke, radius: RADIUS });
  } else if (start) {
    trigger('select', { corners: [start, at] });
  } else {
    first = at;
    drawBox(at, at);
  }
});
element.addEventListener('pointercancel', () => { down = first = null; });
"""
)

# A knot follows the pointer or the arrow keys. One position is sent at a time; while the server answers, only the
# latest position is kept. After PATIENCE milliseconds the next one is sent even without an answer.
DRAG_KNOTS = (
    POSITION
    + """
const STEP = 0.02, PATIENCE = 300;
let held = null, wanted = null, sent = -Infinity, waiting = false, focus = null;
const send = () => {
  if (!wanted) return;
  if (waiting && performance.now() - sent < PATIENCE) {
    setTimeout(send, PATIENCE);
    return;
  }
  waiting = true;
  sent = performance.now();
  trigger('input', wanted);
  wanted = null;
};
const move = (knot, at) => {
  wanted = { ...knot, x: at[0], y: at[1] };
  send();
};
const numbers = (knot) => ({ row: Number(knot.dataset.row), column: Number(knot.dataset.column) });
element.addEventListener('pointerdown', (event) => {
  const knot = event.target.closest('.ls-knot');
  if (!knot || event.button !== 0) return;
  event.preventDefault();
  element.setPointerCapture(event.pointerId);
  held = numbers(knot);
});
element.addEventListener('pointermove', (event) => {
  if (held) move(held, position(event));
});
element.addEventListener('pointerup', (event) => {
  if (held) move(held, position(event));
  held = null;
});
element.addEventListener('pointercancel', () => { held = null; });
element.addEventListener('keydown', (event) => {
  const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const knot = event.target.closest('.ls-knot');
  if (!by || !knot) return;
  event.preventDefault();
  focus = numbers(knot);
  move(focus, [parseFloat(knot.style.left) / 100 + STEP * by[0], parseFloat(knot.style.top) / 100 + STEP * by[1]]);
});
watch('value', () => {
  const knot = focus && element.querySelector(`[data-row="${focus.row}"][data-column="${focus.column}"]`);
  if (knot) knot.focus();
  focus = null;
  waiting = false;
  send();
});
"""
)

CHOOSE_EXAMPLE = """
element.addEventListener('click', (event) => {
  const chosen = event.target.closest('[data-example]');
  if (chosen) trigger('select', { number: Number(chosen.dataset.example) });
});
"""
