// Zooming and moving of maps: those that share a view move together.

const CLOSEST = 64;

class MapView {
  constructor(box) {
    this.listeners = [];
    this.reset(box);
  }

  get scale() { return this.box.width / this.width; }

  reset(box) {
    this.box = box;
    this.show(box);
  }

  // A stretch in the proportions of the whole and within its edges; says whether that is another one than before.
  show({ x, y, width }) {
    const { box, x: oldX, y: oldY, width: oldWidth } = this;
    const within = (low, value, high) => Math.min(Math.max(value, low), high);
    this.width = within(box.width / CLOSEST, width, box.width);
    this.height = (this.width * box.height) / box.width;
    this.x = within(box.x, x, box.x + box.width - this.width);
    this.y = within(box.y, y, box.y + box.height - this.height);
    this.listeners.forEach((act) => act());
    return [this.x - oldX, this.y - oldY, this.width - oldWidth].some((by) => Math.abs(by) > 1e-6 * this.width);
  }

  // A place keeps its place on the screen, the middle if none is given.
  zoom(factor, { x, y } = { x: this.x + this.width / 2, y: this.y + this.height / 2 }) {
    const by = Math.min(Math.max(1 / factor, this.scale / CLOSEST), this.scale);
    return this.show({ x: x - (x - this.x) * by, y: y - (y - this.y) * by, width: this.width * by });
  }

  move(x, y) { return this.show({ x: this.x + x, y: this.y + y, width: this.width }); }

  buttons() {
    return [plainButton("+", "Zoom maps in", () => this.zoom(2)), plainButton("−", "Zoom maps out", () => this.zoom(0.5)),
      plainButton("All", "Whole area of the maps", () => this.show(this.box))];
  }
}

// A drawing that shows a view, and changes it by wheel, pinch, drag, double click and keys. What would change nothing is
// left to the page, and so is the wheel unless the map has the focus: nobody is caught in a map.
function zoomable(drawing, view, name) {
  const at = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
  const apart = (one, other) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
  const taken = (event, changed) => { if (changed) event.preventDefault(); };
  const step = (x, y) => view.move((x * view.width) / 5, (y * view.height) / 5);
  const keys = {
    "+": () => view.zoom(2), "=": () => view.zoom(2), "-": () => view.zoom(0.5), 0: () => view.show(view.box),
    ArrowLeft: () => step(-1, 0), ArrowRight: () => step(1, 0), ArrowUp: () => step(0, -1), ArrowDown: () => step(0, 1),
  };
  const held = new Map();
  let dragged = false;
  const release = (event) => held.delete(event.pointerId);
  const ground = html("div", {
    class: "ground", tabindex: 0, role: "group", "aria-label": `${name}: plus and minus zoom, arrows move, 0 shows all`,
    onkeydown: (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey) taken(event, keys[event.key]?.());
    },
    onwheel: (event) => {
      if (event.ctrlKey || document.activeElement === ground) taken(event, view.zoom(2 ** (-Math.sign(event.deltaY) / 2), at(event)));
    },
    ondblclick: (event) => view.zoom(event.shiftKey ? 0.5 : 2, at(event)),
    onpointerdown: (event) => {
      if (event.button !== 0) return;
      held.set(event.pointerId, event);
      dragged = held.size > 1;
    },
    onpointermove: (event) => {
      const before = held.get(event.pointerId);
      if (!before) return;
      if (!event.buttons) { release(event); return; }
      if (!dragged && apart(before, event) < 5) return;  // still a click
      const other = [...held.values()].find((one) => one.pointerId !== event.pointerId);
      if (!dragged) drawing.setPointerCapture(event.pointerId);
      dragged = true;
      held.set(event.pointerId, event);
      if (other) {
        view.zoom(apart(event, other) / Math.max(apart(before, other), 1), at(other));
      } else {
        const [from, to] = [at(before), at(event)];
        view.move(from.x - to.x, from.y - to.y);
      }
    },
    onpointerup: release,
    onpointercancel: release,
  }, drawing);
  drawing.addEventListener("click", (event) => { if (dragged) event.stopPropagation(); }, true);
  const draw = () => {
    drawing.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
    ground.classList.toggle("near", view.scale > 1.001);
  };
  view.listeners.push(draw);
  draw();
  return ground;
}
