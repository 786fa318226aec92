// Relative times that go on while the page is open. The rule is that of the server.
const UNITS = [["d", 86400], ["h", 3600], ["min", 60]];

function rough(seconds) {
  const whole = Math.round(seconds);
  for (const [unit, length] of UNITS) if (whole >= 2 * length) return `${Math.floor(whole / length)} ${unit}`;
  return `${whole} s`;
}

export function updateTimes() {
  const now = Date.now();
  for (const element of document.querySelectorAll("time[data-relative]")) {
    const seconds = (now - Date.parse(element.dateTime)) / 1000;
    const text = Math.round(Math.abs(seconds)) === 0 ? "now" : seconds > 0 ? `${rough(seconds)} ago` : `in ${rough(-seconds)}`;
    if (element.textContent !== text) element.textContent = text;
  }
}

export function startTimes() {
  updateTimes();
  setInterval(updateTimes, 1000);
}
