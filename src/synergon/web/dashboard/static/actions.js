// Buttons that change something: they ask, call the HTTP API, and say what became of it.
import { refresh } from "./live.js";
import { follow, showProgress } from "./progress.js";

const { root, api } = document.body.dataset;
const PARTICIPLES = { retry: "retried", cancel: "cancelled", delete: "deleted" };
let toastTimer = 0;

export function toast(text, isBad = false) {
  const element = document.getElementById("toast");
  element.textContent = text;
  element.classList.toggle("bad", isBad);
  element.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (element.hidden = true), isBad ? 12000 : 5000);
}

// The answer of the API. Throws an Error with its words if it rejects the request.
export async function send(path, method, body) {
  let answer;
  try {
    answer = await fetch(api + path, {
      method,
      headers: { "Content-Type": "application/json" },
      body: method === "DELETE" ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Error("The server of the dashboard does not answer; nothing is known about the change.");
  }
  const document_ = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(document_.detail ?? `The server answers with ${answer.status}.`);
  return document_;
}

// Shows the dialog. Resolves to null if it is left, or else to the text of its field.
function ask({ title, text = "", label, field }) {
  const dialog = document.getElementById("dialog");
  const [box, input] = [document.getElementById("dialog-field"), dialog.querySelector("input")];
  document.getElementById("dialog-title").textContent = title;
  document.getElementById("dialog-text").textContent = text;
  document.getElementById("dialog-text").hidden = !text;
  dialog.querySelector(".primary").textContent = label;
  box.hidden = !field;
  input.disabled = !field;
  if (field) {
    box.querySelector("span").textContent = field.label;
    input.type = field.type;
    input.value = field.value;
    input.required = !field.isOptional;
  }
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? input.value : null), { once: true }),
  );
}

async function act(button) {
  const { url, method, ask: question, done, after, field, fieldLabel, fieldType, fieldValue } = button.dataset;
  const body = JSON.parse(button.dataset.body);
  if (question) {
    const wanted = field && { label: fieldLabel, type: fieldType, value: fieldValue, isOptional: "fieldOptional" in button.dataset };
    const value = await ask({ title: question, label: button.textContent.replace("…", ""), field: wanted });
    if (value === null) return;
    if (field && value !== "") body[field] = fieldType === "number" ? Number(value) : value;
  }
  const answer = await send(url, method, body);
  if (after) location.assign(root + after);
  else {
    toast(answer.reason ?? (done || "Done."), Boolean(answer.reason));
    await refresh();
  }
}

async function actOnAll(button) {
  const verb = button.dataset.bulk;
  const wanted = { filter: JSON.parse(button.dataset.filter), all: true };
  const { matching } = await send(`/tasks/${verb}`, "POST", { ...wanted, dry_run: true });
  const tasks = `${matching.toLocaleString("en")} ${matching === 1 ? "task" : "tasks"}`;
  const name = button.textContent.replace(" all…", "");
  if (matching === 0) return toast(`No task that matches can be ${PARTICIPLES[verb]}.`);
  if ((await ask({ title: `${name} ${tasks}?`, text: "All tasks that match the filter, on this page and on others.", label: `${name} ${tasks}` })) === null) return;
  await showProgress(`${name} ${tasks}`, matching, PARTICIPLES[verb], (onLine) => follow(`/tasks/${verb}`, wanted, onLine));
  await refresh();
}

async function copy(button) {
  const element = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(element.textContent);
    toast("Copied.");
  } catch {
    getSelection().selectAllChildren(element);
    toast("Selected; copy it with the keyboard.");
  }
}

export function startActions() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-url], button[data-bulk], button[data-copy]");
    if (!button || button.disabled) return;
    button.disabled = true;
    try {
      if (button.dataset.copy) await copy(button);
      else if (button.dataset.bulk) await actOnAll(button);
      else await act(button);
    } catch (error) {
      toast(error.message, true);
    } finally {
      button.disabled = false;
    }
  });
}
