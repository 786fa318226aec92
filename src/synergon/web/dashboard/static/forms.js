// Forms that change something. A button opens one with its values; the form calls the HTTP API, and shows what it rejects.
import { send, toast } from "./actions.js";
import { refresh } from "./live.js";

const named = (form) => [...form.elements].filter((field) => field.name);

function open(button) {
  const form = document.getElementById(button.dataset.edit);
  form.reset();
  const values = JSON.parse(button.dataset.values);
  for (const field of named(form)) {
    if (field.name in values) field.value = values[field.name] ?? "";
    field.dataset.before = field.value;
  }
  form.dataset.path = button.dataset.path;
  form.dataset.done = button.dataset.done;
  form.querySelector("h2").textContent = button.dataset.title;
  form.querySelector("[role=alert]").hidden = true;
  choose(form);
  form.closest("dialog").showModal();
}

// Fields that belong to a choice are used only if it is made.
function choose(form) {
  for (const field of named(form)) {
    const [name, value] = (field.dataset.when ?? "").split("=");
    const isUsed = !name || form.elements[name].value === value;
    field.disabled = !isUsed;
    field.closest("label").hidden = !isUsed;
  }
}

const read = (field) => (field.value === "" ? null : field.type === "number" ? Number(field.value) : field.value);

// What is left out remains, so only changed fields are sent; a form with data-whole sends all. `a.b` is a field of `a`.
function bodyOf(form) {
  const fields = named(form).filter((field) => !field.disabled && !("local" in field.dataset));
  const wanted = new Set(fields.filter((field) => "whole" in form.dataset || field.value !== field.dataset.before || field.dataset.when).map((field) => field.name.split(".")[0]));
  const body = {};
  for (const field of fields) {
    const [outer, inner] = field.name.split(".");
    if (!wanted.has(outer)) continue;
    const value = read(field);
    if (!inner) body[outer] = value;
    else if (value !== null) body[outer] = { ...body[outer], [inner]: value };
    else body[outer] ??= null;
  }
  return body;
}

async function submit(form) {
  const problem = form.querySelector("[role=alert]");
  try {
    await send(form.dataset.path, "POST", bodyOf(form));
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
    return;
  }
  form.closest("dialog").close();
  toast(form.dataset.done);
  await refresh();
}

export function startForms() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-edit]");
    if (button) open(button);
  });
  document.addEventListener("change", (event) => {
    const form = event.target.form;
    if (form?.matches("dialog form[data-form]")) choose(form);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("dialog form[data-form]") || event.submitter?.value === "no") return;
    event.preventDefault();
    submit(event.target);
  });
}
