// Adds new log lines, newest first, with the filters of the page.
"use strict";

{
  const body = document.querySelector("#lines");
  const hold = document.querySelector("#hold");
  const ranks = ["debug", "info", "warning", "error"];
  const held = [];
  const MOST = 500;

  // The same rules as `LogRing.lines`.
  const wanted = (line) => ranks.indexOf(line.level) >= ranks.indexOf(body.dataset.level)
    && (!body.dataset.client || line.client === body.dataset.client)
    && line.run.startsWith(body.dataset.run)
    && [line.message, line.logger].some((text) => text.toLowerCase().includes(body.dataset.q.toLowerCase()));

  function link(href, text) {
    const made = document.createElement("a");
    made.href = href;
    made.textContent = text;
    return made;
  }

  function about(line) {
    const found = [];
    if (line.client) found.push(link(`/clients/${encodeURIComponent(line.client)}`, line.client));
    if (line.client && line.run) found.push(" · ");
    if (line.run) {
      const round = line.round ? `/rounds/${line.round}` : "";
      found.push(link(`/runs/${encodeURIComponent(line.run)}${round}`, line.round ? `${line.run}/${line.round}` : line.run));
    }
    return found;
  }

  function row(line) {
    const made = document.querySelector("#line").content.firstElementChild.cloneNode(true);
    const [at, level, source, message, subject] = made.children;
    at.firstElementChild.dataset.ago = line.at;
    at.firstElementChild.dateTime = new Date(line.at * 1000).toISOString();
    level.append(document.querySelector(`#level-${line.level}`)?.content.cloneNode(true) ?? line.level);
    source.textContent = line.logger.replace("fedloom.server.", "");
    source.title = line.logger;
    message.querySelector("summary").textContent = line.message;
    const subjects = about(line);
    if (subjects.length) {
      const under = document.createElement("div");
      under.className = "about";
      under.append(...subjects);
      subject.append(under);
    }
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
      hold.textContent = `Resume (${held.length} more)`;
    } else add(lines);
  });
  document.addEventListener("woken", () => {
    if (hold.getAttribute("aria-pressed") !== "true") location.reload(); // fetches the lines missed meanwhile
  });
  hold.addEventListener("click", () => {
    const on = hold.getAttribute("aria-pressed") !== "true";
    hold.setAttribute("aria-pressed", on);
    hold.textContent = on ? "Resume" : "Pause";
    if (!on && held.length) add(held.splice(0));
  });
}
