// Pan and zoom of a graph: by pointer, by wheel with Ctrl, by buttons and by arrow keys.

export function startGraph() {
  const graph = document.querySelector("svg[data-graph]");
  if (!graph) return;
  const whole = () => [0, 0, Number(graph.dataset.width), Number(graph.dataset.height)];
  let view = whole();
  const apply = () => graph.setAttribute("viewBox", view.join(" "));

  const zoom = (factor, x = 0.5, y = 0.5) => {
    const [left, top, width, height] = view;
    const limited = Math.min(Math.max(width * factor, 120), whole()[2] * 4) / width;
    view = [left + width * x * (1 - limited), top + height * y * (1 - limited), width * limited, height * limited];
    apply();
  };
  const move = (dx, dy) => {
    view = [view[0] + dx * view[2], view[1] + dy * view[3], view[2], view[3]];
    apply();
  };

  const names = { in: () => zoom(0.75), out: () => zoom(1 / 0.75), fit: () => ((view = whole()), apply()) };
  document.addEventListener("click", (event) => names[event.target.closest("[data-zoom]")?.dataset.zoom]?.());
  graph.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const box = graph.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.1 : 1 / 1.1, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  }, { passive: false });

  let last = null;
  let isDragged = false;
  graph.addEventListener("pointerdown", (event) => { last = [event.clientX, event.clientY]; isDragged = false; });
  window.addEventListener("pointermove", (event) => {
    if (!last) return;
    const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
    if (!isDragged && Math.hypot(dx, dy) < 4) return;
    isDragged = true;
    const box = graph.getBoundingClientRect();
    const scale = Math.max(view[2] / box.width, view[3] / box.height);
    view = [view[0] - dx * scale, view[1] - dy * scale, view[2], view[3]];
    last = [event.clientX, event.clientY];
    apply();
  });
  window.addEventListener("pointerup", () => (last = null));
  graph.addEventListener("click", (event) => { if (isDragged) event.preventDefault(); }, true);
  graph.addEventListener("dragstart", (event) => event.preventDefault());
  graph.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    if (steps[event.key]) { event.preventDefault(); move(...steps[event.key]); }
    if (event.key === "+") zoom(0.75);
    if (event.key === "-") zoom(1 / 0.75);
  });
}
