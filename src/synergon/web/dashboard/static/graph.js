// Pan and zoom of a graph: by pointer, by wheel with Ctrl, by buttons and by arrow keys. While a flow runs, the view
// follows the tasks that run, until somebody moves it.

export function startGraph() {
  const graph = document.querySelector("svg[data-graph]");
  if (!graph) return;
  const whole = () => [0, 0, Number(graph.dataset.width), Number(graph.dataset.height)];
  let view = whole();
  const apply = () => graph.setAttribute("viewBox", view.join(" "));

  // The view follows at the natural size of the boxes, or smaller if all of the graph fits then.
  const isFollowing = () => document.querySelector("[data-follow]")?.getAttribute("aria-pressed") === "true";
  const setFollowing = (is) => document.querySelector("[data-follow]")?.setAttribute("aria-pressed", String(is));
  const follow = () => {
    if (!isFollowing()) return;
    const boxes = [...graph.querySelectorAll(".box.state-running")].map((box) => box.transform.baseVal.consolidate().matrix);
    if (!boxes.length) return;
    const [, , width, height] = whole();
    const shown = graph.getBoundingClientRect();
    const size = [Math.min(width, shown.width), Math.min(height, shown.height)];
    const centre = (values, extent) => (Math.min(...values) + Math.max(...values) + extent) / 2;
    const place = (middle, extent, all) => Math.min(Math.max(middle - extent / 2, 0), Math.max(all - extent, 0));
    const [x, y] = [centre(boxes.map((box) => box.e), 176), centre(boxes.map((box) => box.f), 44)];
    view = [place(x, size[0], width), place(y, size[1], height), ...size];
    apply();
  };
  new MutationObserver(follow).observe(graph, { subtree: true, childList: true, attributes: true, attributeFilter: ["class", "transform"] });

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

  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-follow]")) return;
    setFollowing(!isFollowing());
    follow();
  });
  const names = { in: () => zoom(0.75), out: () => zoom(1 / 0.75), fit: () => ((view = whole()), apply()) };
  document.addEventListener("click", (event) => {
    const action = names[event.target.closest("[data-zoom]")?.dataset.zoom];
    if (!action) return;
    setFollowing(false);
    action();
  });
  graph.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    setFollowing(false);
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
    setFollowing(false);
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
    if (!steps[event.key] && event.key !== "+" && event.key !== "-") return;
    setFollowing(false);
    if (steps[event.key]) { event.preventDefault(); move(...steps[event.key]); }
    if (event.key === "+") zoom(0.75);
    if (event.key === "-") zoom(1 / 0.75);
  });
  // Boxes that nobody could read are shown at their natural size at first.
  const [, , width, height] = whole();
  const shown = graph.getBoundingClientRect();
  if (Math.min(shown.width / width, shown.height / height) < 0.6) {
    const size = [Math.min(width, shown.width), Math.min(height, shown.height)];
    view = [0, (height - size[1]) / 2, ...size];
    apply();
  }
  follow();
}
