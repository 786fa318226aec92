// Keeps the page up to date: asks for its main part every few seconds, while it is visible. If the server or the
// database does not answer, the page says so, keeps what it shows, and goes on asking.
import { morph } from "./morph.js";
import { updateTimes } from "./times.js";

const SECONDS = Number(document.body.dataset.refresh);
const MOST_SECONDS = 15;
let tag = null;
let failures = 0;
let timer = 0;
let isPaused = false;
let underWay = null;
let shownAt = new Date();

const later = () => {
  clearTimeout(timer);
  const seconds = Math.min(SECONDS * 2 ** Math.min(failures, 3), MOST_SECONDS);
  if (!isPaused && document.visibilityState === "visible") timer = setTimeout(refresh, seconds * 1000);
};

// Ask now. Two calls at once share one request, and a second one follows if the first may have been too early.
export async function refresh() {
  if (underWay) return underWay;
  underWay = ask().finally(() => {
    underWay = null;
    later();
  });
  return underWay;
}

async function ask() {
  const headers = { "X-Fragment": "1" };
  if (tag) headers["If-None-Match"] = tag;
  let answer;
  try {
    answer = await fetch(location.href.split("#")[0], { headers, cache: "no-store", redirect: "manual" });
  } catch {
    failures += 1;
    return say("The server of the dashboard does not answer.", true);
  }
  if (answer.status === 304) return healed();
  if (answer.status === 401) {
    isPaused = true;
    return say("Your session has ended.", false, true);
  }
  if (answer.status !== 200) {
    failures += 1;
    const page = parsed(await answer.text());
    return say(page.querySelector("#problem p")?.textContent ?? `The server answers with ${answer.status}.`, true);
  }
  tag = answer.headers.get("ETag");
  show(parsed(await answer.text()));
  healed();
}

const parsed = (text) => new DOMParser().parseFromString(text, "text/html");

function show(page) {
  const main = document.getElementById("main");
  if (document.getElementById("problem")) return location.reload(); // a whole page takes the place of the problem
  for (const part of page.querySelectorAll("[data-live]")) {
    const here = document.getElementById(part.id);
    if (here) morph(here, part);
    else place(main, page, part);
  }
  for (const here of main.querySelectorAll("[data-live]")) if (!page.getElementById(here.id)) here.remove();
  updateTimes();
}

// A new part goes where it is in the page of the server: before the next part that is shown.
function place(main, page, part) {
  const parts = [...page.querySelectorAll("[data-live]")];
  const next = parts.slice(parts.indexOf(part) + 1).map((one) => document.getElementById(one.id)).find(Boolean);
  const made = document.importNode(part, true);
  if (next) next.before(made);
  else main.append(made);
}

function healed() {
  failures = 0;
  shownAt = new Date();
  const banner = document.getElementById("banner");
  if (!banner.hidden) banner.hidden = true;
}

function say(text, goesOn, isEnded = false) {
  const banner = document.getElementById("banner");
  const time = shownAt.toLocaleTimeString();
  const words = `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."} This is the state of ${time}.${goesOn ? " Trying again." : ""} `;
  if (banner.firstChild?.data !== words) banner.replaceChildren(words);
  if (isEnded) {
    const link = document.createElement("a");
    link.href = location.href;
    link.textContent = "Sign in";
    banner.append(link);
  }
  banner.hidden = false;
}

export function togglePause() {
  isPaused = !isPaused;
  document.getElementById("live").setAttribute("aria-pressed", String(!isPaused));
  document.querySelector("#live span:last-child").textContent = isPaused ? "Paused" : "Live";
  if (isPaused) clearTimeout(timer);
  else refresh();
}

export function startLive() {
  document.getElementById("live")?.addEventListener("click", togglePause);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible" && !isPaused) refresh();
  });
  later();
}
