// The progress of an operation on many tasks: the API sends one line after each transaction.
const { api } = document.body.dataset;
const LOST = "The connection ended before the operation, which goes on; the audit has its outcome.";

// Sends the request, calls onLine with each line of the answer, and returns the last one. Throws an Error with words.
export async function follow(path, body, onLine) {
  const headers = { "Content-Type": "application/json", Accept: "application/x-ndjson" };
  let answer;
  try {
    answer = await fetch(api + path, { method: "POST", headers, body: JSON.stringify(body) });
  } catch {
    throw new Error("The server of the dashboard does not answer; nothing is known about the change.");
  }
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail ?? `The server answers with ${answer.status}.`);
  let last = {};
  try {
    for await (const line of linesOf(answer.body)) onLine((last = JSON.parse(line)));
  } catch {
    throw new Error(LOST);
  }
  if (last.detail) throw new Error(last.detail);
  if (!last.is_done) throw new Error(LOST);
  return last;
}

async function* linesOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
}

// Shows how far the operation is, and its result.
export async function showProgress(title, matching, participle, run) {
  const work = document.getElementById("work");
  const [name, numbers, bar] = [work.querySelector("strong"), work.querySelector(".num"), work.querySelector("progress")];
  const [words, close] = [work.querySelector("[role=status]"), work.querySelector("[data-close]")];
  const show = (visited) => {
    const whole = Math.max(matching, visited);
    numbers.textContent = `${visited.toLocaleString("en")} of ${whole.toLocaleString("en")}`;
    bar.max = Math.max(whole, 1);
    bar.value = visited;
  };
  name.textContent = title;
  words.textContent = "It goes on if you leave this page. The audit has its outcome.";
  words.classList.remove("bad");
  [work.hidden, close.hidden] = [false, true];
  close.onclick = () => (work.hidden = true);
  show(0);
  try {
    const { visited, changed } = await run((line) => show(line.visited ?? 0));
    const left = visited - changed;
    show(visited);
    words.textContent = `${changed.toLocaleString("en")} ${changed === 1 ? "task" : "tasks"} ${participle}.`;
    if (left) words.textContent += ` ${left.toLocaleString("en")} could not be: they have changed meanwhile, or a live task holds their key.`;
  } catch (error) {
    words.textContent = error.message;
    words.classList.add("bad");
  } finally {
    close.hidden = false;
  }
}
