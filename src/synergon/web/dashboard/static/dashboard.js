// The script of every page: starts the parts that the page needs.
import { startActions } from "./actions.js";
import { startForms } from "./forms.js";
import { startGraph } from "./graph.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startTimes } from "./times.js";

const THEMES = ["auto", "light", "dark"];

function startTheme() {
  const button = document.getElementById("theme");
  if (!button) return;
  const show = () => (button.querySelector("span").textContent = document.documentElement.dataset.theme ?? "auto");
  button.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? "auto";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    if (next === "auto") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("synergon-theme");
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("synergon-theme", next);
    }
    show();
  });
  show();
}

// Empty fields stay out of the URL.
function startFilters() {
  for (const form of document.querySelectorAll("form[data-filters]")) {
    form.addEventListener("submit", () => {
      for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
    });
    form.addEventListener("change", (event) => {
      if (event.target.tagName === "SELECT") form.requestSubmit();
    });
    window.addEventListener("pageshow", () => {
      for (const field of form.elements) field.disabled = false;
    });
  }
}

// A link from another site carries no cookie: if there is a session, the login is not needed.
async function skipLogin() {
  const form = document.getElementById("login");
  if (!form || document.querySelector(".login .error")) return;
  const { root, api } = document.body.dataset;
  const answer = await fetch(`${api}/user`, { headers: { "X-Fragment": "1" } }).catch(() => null);
  const next = form.elements.next.value;
  if (answer?.ok) location.replace(next.startsWith(`${root}/`) && !next.startsWith("//") && !next.includes("\\") ? next : `${root}/`);
}

startTheme();
startFilters();
startTimes();
startActions();
startForms();
startGraph();
startKeys();
if (document.body.dataset.refresh) startLive();
