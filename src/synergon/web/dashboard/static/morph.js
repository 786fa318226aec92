// Changes a tree of nodes into another one, and leaves alone what is equal: focus, selection, scroll positions and
// opened details survive. Children with data-key are matched by it, others by their order.

export function morph(from, to) {
  if (from.isEqualNode(to)) return;
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(document.importNode(to, true));
    return;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  morphAttributes(from, to);
  morphChildren(from, to);
}

function kept(element) {
  const names = (element.dataset?.keep ?? "").split(" ");
  if (element.nodeName === "DETAILS") names.push("open");
  return names;
}

function morphAttributes(from, to) {
  const stays = kept(from);
  for (const { name, value } of to.attributes)
    if (!stays.includes(name) && from.getAttribute(name) !== value) from.setAttribute(name, value);
  for (const { name } of [...from.attributes])
    if (!stays.includes(name) && !to.hasAttribute(name)) from.removeAttribute(name);
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key : undefined);

function morphChildren(from, to) {
  const wantedKeys = new Set([...to.children].map(keyOf));
  const keyed = new Map();
  for (const child of [...from.children]) {
    const key = keyOf(child);
    if (key === undefined) continue;
    if (wantedKeys.has(key)) keyed.set(key, child);
    else child.remove(); // first, so that those after it need not be moved, which would take the focus from them
  }
  let next = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = keyOf(wanted);
    const isAlike = next && keyOf(next) === undefined && next.nodeName === wanted.nodeName;
    const found = key === undefined ? (isAlike ? next : null) : (keyed.get(key) ?? null);
    if (found === null) {
      from.insertBefore(document.importNode(wanted, true), next);
      continue;
    }
    if (found === next) next = next.nextSibling;
    else from.insertBefore(found, next);
    morph(found, wanted);
  }
  while (next) {
    const rest = next;
    next = next.nextSibling;
    rest.remove();
  }
}
