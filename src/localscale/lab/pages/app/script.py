"""What the browser does by itself: turn presses on a picture into places, and tell the page.

Listeners sit on the component's root, which stays while its content is drawn anew.
"""

__all__ = ["KNOTS", "MARK", "STRIP"]

PLACE = """
const place = (event) => {
  const sides = element.querySelector('.ls-frame').getBoundingClientRect();
  const share = (value, start, length) => Math.min(Math.max((value - start) / length, 0), 1);
  return [share(event.clientX, sides.left, sides.width), share(event.clientY, sides.top, sides.height)];
};
"""

# Two clicks, or one drag, make a box; a stroke of the brush is told as the places it passed.
MARK = (
    PLACE
    + """
const FAR = 0.02, RADIUS = 0.03;
let first = null, down = null, dragged = false, stroke = [];
const frame = () => element.querySelector('.ls-pad');
const brush = () => frame().dataset.mode === 'brush';
const add = (name) => {
  const found = frame().querySelector('.' + name) || document.createElement('div');
  found.className = name;
  frame().append(found);
  return found;
};
const rubber = (a, b) => {
  const style = add('ls-rubber').style;
  style.left = 100 * Math.min(a[0], b[0]) + '%';
  style.top = 100 * Math.min(a[1], b[1]) + '%';
  style.width = 100 * Math.abs(a[0] - b[0]) + '%';
  style.height = 100 * Math.abs(a[1] - b[1]) + '%';
};
const dab = (at) => {
  const spot = document.createElement('div');
  spot.className = 'ls-dab';
  spot.style.left = 100 * at[0] + '%';
  spot.style.top = 100 * at[1] + '%';
  spot.style.width = 200 * RADIUS + '%';
  frame().append(spot);
};
element.addEventListener('pointerdown', (event) => {
  if (!event.target.closest('.ls-pad') || event.button !== 0) return;
  event.preventDefault();
  element.setPointerCapture(event.pointerId);
  down = place(event);
  dragged = false;
  stroke = [down];
  if (brush()) dab(down);
});
element.addEventListener('pointermove', (event) => {
  if (!frame()) return;
  const at = place(event);
  if (down && brush()) {
    stroke.push(at);
    dab(at);
  } else if (down) {
    dragged = dragged || Math.hypot(at[0] - down[0], at[1] - down[1]) > FAR;
    if (dragged) rubber(down, at);
  } else if (first && !brush()) {
    rubber(first, at);
  }
});
element.addEventListener('pointerup', (event) => {
  if (!down) return;
  const at = place(event), start = first || down;
  const wasDown = down;
  down = null;
  if (brush()) {
    first = null;
    trigger('select', { stroke, radius: RADIUS });
  } else if (dragged) {
    first = null;
    trigger('select', { corners: [wasDown, at] });
  } else if (first) {
    first = null;
    trigger('select', { corners: [start, at] });
  } else {
    first = at;
    rubber(at, at);
  }
});
element.addEventListener('pointercancel', () => { down = null; first = null; });
"""
)

# A knot follows the pointer, or the arrow keys; the page says where it may be. One place is told at a time: of those
# passed while an answer was awaited, the last.
KNOTS = (
    PLACE
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
const tell = (knot, at) => {
  wanted = { row: knot.row, column: knot.column, x: at[0], y: at[1] };
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
  if (held) tell(held, place(event));
});
element.addEventListener('pointerup', (event) => {
  if (held) tell(held, place(event));
  held = null;
});
element.addEventListener('pointercancel', () => { held = null; });
element.addEventListener('keydown', (event) => {
  const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const knot = event.target.closest('.ls-knot');
  if (!by || !knot) return;
  event.preventDefault();
  focus = numbers(knot);
  tell(focus, [parseFloat(knot.style.left) / 100 + STEP * by[0], parseFloat(knot.style.top) / 100 + STEP * by[1]]);
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

STRIP = """
element.addEventListener('click', (event) => {
  const chosen = event.target.closest('[data-example]');
  if (chosen) trigger('select', { number: Number(chosen.dataset.example) });
});
"""
