// Lines of the log as they come, newest first, filtered as those that are there.
"use strict";

{
  const body = document.querySelector("#lines");
  const hold = document.querySelector("#hold");
  const ranks = ["debug", "info", "warning", "error"];
  const held = [];
  const MOST = 500;

  const wanted = (line) => ranks.indexOf(line.level) >= ranks.indexOf(body.dataset.level)
    && `${line.message} ${line.logger}`.toLowerCase().includes(body.dataset.q.toLowerCase());

  function row(line) {
    const made = document.querySelector("#line").content.firstElementChild.cloneNode(true);
    const [at, level, source, message] = made.children;
    at.firstElementChild.dataset.ago = line.at;
    level.append(document.querySelector(`#level-${line.level}`)?.content.cloneNode(true) ?? line.level);
    source.textContent = line.logger.replace("fedloom.server.", "");
    message.textContent = line.message;
    return made;
  }

  function add(lines) {
    document.querySelector("#none")?.remove();
    body.prepend(...lines.map(row).reverse());
    while (body.children.length > MOST) body.lastElementChild.remove();
    document.dispatchEvent(new Event("htmx:after:swap"));
  }

  document.addEventListener("log", (event) => {
    const lines = event.detail.filter(wanted);
    if (!lines.length) return;
    if (hold.getAttribute("aria-pressed") === "true") {
      held.push(...lines);
      held.splice(0, held.length - MOST);
      hold.textContent = `Go on (${held.length} more)`;
    } else add(lines);
  });
  document.addEventListener("woken", () => {
    if (hold.getAttribute("aria-pressed") !== "true") location.reload(); // for what came meanwhile
  });
  hold.addEventListener("click", () => {
    const on = hold.getAttribute("aria-pressed") !== "true";
    hold.setAttribute("aria-pressed", on);
    hold.textContent = on ? "Go on" : "Pause";
    if (!on && held.length) add(held.splice(0));
  });
}
