// Keys: / searches, j and k go through the rows, p pauses, ? shows the list.
import { togglePause } from "./live.js";

function step(direction) {
  const rows = [...document.querySelectorAll("[data-row]")].filter((row) => row.querySelector("a"));
  if (!rows.length) return;
  const now = rows.findIndex((row) => row.contains(document.activeElement));
  const next = now < 0 ? (direction > 0 ? 0 : rows.length - 1) : Math.min(Math.max(now + direction, 0), rows.length - 1);
  rows[next].querySelector("a").focus();
  rows[next].scrollIntoView({ block: "nearest" });
}

function search() {
  const field = document.querySelector("[data-search]");
  if (field) field.select();
  else location.assign(`${document.body.dataset.root}/tasks#search`);
}

const KEYS = {
  "/": search,
  j: () => step(1),
  k: () => step(-1),
  p: togglePause,
  "?": () => document.getElementById("keys").showModal(),
};

export function startKeys() {
  if (!document.getElementById("live")) return;
  document.getElementById("help").addEventListener("click", KEYS["?"]);
  if (location.hash === "#search") document.querySelector("[data-search]")?.select();
  document.addEventListener("keydown", (event) => {
    const isText = event.target.closest("input, select, textarea, dialog");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (isText) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const action = KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
