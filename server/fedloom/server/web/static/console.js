// Common to all pages: refreshes the parts that changed, confirms actions, reports a lost
// connection. The server renders all pages.
"use strict";

(() => {

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const root = document.documentElement;

// ---- time -------------------------------------------------------------------------------------

// Times use the server's clock; the browser's may be wrong.
const skew = Number(root.dataset.now) - Date.now() / 1000;
const now = () => Date.now() / 1000 + skew;

function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s < 600 ? ` ${s % 60} s` : ""}`;
  if (s < 172800) return `${Math.floor(s / 3600)} h${s < 36000 ? ` ${Math.floor((s % 3600) / 60)} min` : ""}`;
  return `${Math.floor(s / 86400)} days`;
}

function ago(at) {
  const s = now() - at;
  if (Math.abs(s) < 5) return "just now";
  const rough = (v) => v < 60 ? `${Math.floor(v / 5) * 5} s` : v < 3600 ? `${Math.floor(v / 60)} min` : v < 172800 ? `${Math.floor(v / 3600)} h` : `${Math.floor(v / 86400)} days`;
  return s > 0 ? `${rough(s)} ago` : `in ${rough(-s)}`;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function tick() {
  for (const e of $$("[data-until]")) put(e, span(Number(e.dataset.until) - now()));
  for (const e of $$("time[data-ago]")) put(e, ago(Number(e.dataset.ago)));
}

// On hover, exact times are shown in the browser's time zone.
function exact(scope) {
  for (const e of $$("time[data-ago]", scope)) {
    const at = Number(e.dataset.ago);
    if (e.dataset.exact !== e.dataset.ago) {
      e.title = new Date(at * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
      e.dataset.exact = e.dataset.ago;
    }
  }
}

// ---- live -------------------------------------------------------------------------------------

// A page fetches changed parts at most every two seconds; numbers of a round come with the events.
const PACE_MS = 2000;
const SOON_MS = 60;
const SPREAD_MS = 200; // spreads the requests of many pages
let waiting = new Set();
let timer = null;

function touches(element, topic, subject) {
  return element.dataset.live.split(" ").some((w) => w === topic || w === `${topic}:${subject}`);
}

function mark(topic, subject) {
  for (const e of $$("[data-live]")) if (!topic || touches(e, topic, subject)) waiting.add(e);
  if (waiting.size && !timer && !document.hidden) timer = setTimeout(refresh, SOON_MS + SPREAD_MS * Math.random());
}

// After an action of this page, without waiting for the pace.
function markNow() {
  clearTimeout(timer);
  timer = null;
  mark("", "");
}

function refresh() {
  const elements = waiting;
  waiting = new Set();
  for (const e of elements) {
    if (!e.isConnected) continue;
    if (e.dataset.curves !== undefined) { if (!window.charts?.comesAlong(e)) window.charts?.refresh(e); }
    else window.htmx?.trigger(e, "refresh");
  }
  timer = setTimeout(() => {
    timer = null;
    if (waiting.size && !document.hidden) refresh();
  }, PACE_MS);
}

// An event of a round carries its numbers, which are filled in without a request.
const shown = new Map();
const last = new Map(); // the latest event of each round and its time: a fetched part may be older

function round(subject, live) {
  if (!live) return mark("run", subject);
  const key = `${live.number}/${live.state}/${live.paused}/${live.goal}/${live.quorum}/${live.gives_up_in_s === null}/${Math.clz32(live.clients.failed + live.clients.refused)}`;
  // How far masking sessions are is not in the event.
  if (shown.get(subject) !== key || live.state === "masking") {
    shown.set(subject, key);
    mark("run", subject);
  }
  last.set(`${subject}/${live.number}`, { live, at: now() });
  if (last.size > 50) last.delete(last.keys().next().value);
  fill(subject, live, now());
  mark("round", subject);
}

function fill(subject, live, at) {
  for (const e of $$(`[data-round="${CSS.escape(`${subject}/${live.number}`)}"]`)) {
    const what = e.dataset.now;
    if (what === "deadline") {
      if (live.deadline_left_s !== null && !live.paused) e.dataset.until = at + live.deadline_left_s;
    } else if (what === "bar") {
      e.setAttribute("width", `${Math.min(100, (100 * live.accepted) / Math.max(1, live.goal))}`);
    } else if (what === "fraction") put(e, live.training == null ? "" : `, ${Math.round(100 * live.training)} % done`);
    else if (what === "accepted") put(e, `${live.accepted}`);
    else put(e, `${live.clients[what] ?? 0}`);
  }
}

function refill() {
  for (const [key, { live, at }] of last) fill(key.slice(0, key.lastIndexOf("/")), live, at);
}

let source = null;
let lastEventAt = 0;
let lostAt = null;
let retry = 1000;
let leaving = false;
let asleep = false;
let sleepTimer = 0;

function connect() {
  source?.close();
  const topics = document.body.dataset.topics || "";
  source = new EventSource(`/v1/events${topics ? `?topics=${topics}` : ""}`);
  lastEventAt = Date.now();
  const on = (name, act) => source.addEventListener(name, (event) => {
    lastEventAt = Date.now();
    act(JSON.parse(event.data));
  });
  on("hello", (data) => {
    // What changed after the page was made and before the stream began is in no event.
    if (`${data.version}` !== document.body.dataset.version) mark("", "");
    found();
  });
  on("beat", found);
  on("round", (data) => round(data.subject, data.now));
  for (const topic of ["run", "clients", "work", "tokens", "models", "refusals", "audit"]) {
    on(topic, (data) => {
      if (topic === "clients" && data.now) for (const e of $$("[data-online]")) put(e, `${data.now.online}`);
      mark(topic, data.subject);
    });
  }
  on("log", (lines) => document.dispatchEvent(new CustomEvent("log", { detail: lines })));
  source.onerror = lost;
}

function state(name, text) {
  const link = $("#link");
  link.dataset.state = name;
  put(link, text);
}

function found() {
  retry = 1000;
  state("live", "Live");
  if (lostAt === null) return;
  lostAt = null;
  $("#lost").hidden = true;
  document.body.classList.remove("is-lost");
  shown.clear();
  last.clear();
  toast("Connection restored. This page is up to date.", "ok");
  mark("", "");
}

function lost() {
  if (leaving || asleep) return;
  source.close();
  if (lostAt === null) {
    lostAt = Date.now();
    // Short interruptions are not shown.
    setTimeout(() => {
      if (lostAt === null) return;
      state("lost", "Lost");
      put($("#lost time"), new Date(lostAt).toLocaleTimeString());
      $("#lost").hidden = false;
      document.body.classList.add("is-lost");
    }, 1500);
  }
  setTimeout(again, retry * (0.5 + Math.random()));
  retry = Math.min(retry * 1.6, 10000);
}

async function again() {
  try {
    const answer = await fetch("/v1/server", { headers: { accept: "application/json" } });
    if (answer.status === 401) keepDraft();
    if (answer.status === 401) return location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    if (!answer.ok) throw new Error(answer.status);
    if (!asleep) connect();
  } catch {
    lost();
  }
}

// ---- drafts: unsent input survives a login in this tab -----------------------------------------

const DRAFT = "draft";
const HOUR_MS = 3600e3;

function keepDraft() {
  const form = $("form[data-draft]");
  if (!form) return;
  const values = [...new FormData(form)].filter(([name]) => name !== "csrf_token");
  sessionStorage.setItem(DRAFT, JSON.stringify({ path: location.pathname, at: Date.now(), values }));
}

function drafted() {
  const form = $("form[data-draft]");
  form?.addEventListener("submit", keepDraft);
  const kept = JSON.parse(sessionStorage.getItem(DRAFT) ?? "null");
  if (!kept) return;
  // The run was started, the server returned the input with its answer, or the draft is too old.
  const done = location.pathname !== kept.path && location.pathname.startsWith("/runs/");
  if (done || form?.dataset.draft === "answered" || Date.now() - kept.at > HOUR_MS) return sessionStorage.removeItem(DRAFT);
  if (!form || location.pathname !== kept.path) return;
  sessionStorage.removeItem(DRAFT);
  const values = new Map(kept.values);
  for (const field of form.elements) {
    if (field.type === "checkbox") field.checked = values.has(field.name);
    else if (values.has(field.name) && field.type !== "hidden") field.value = values.get(field.name);
  }
  toast("Your unsent input was restored.", "warn");
}

// ---- actions ----------------------------------------------------------------------------------

function toast(text, level = "ok") {
  const box = document.createElement("div");
  box.className = "toast";
  const icon = $(`#icon-${level}`).content.firstElementChild.cloneNode(true);
  const words = document.createElement("span");
  words.textContent = text;
  const close = document.createElement("button");
  close.textContent = "×";
  close.setAttribute("aria-label", "Dismiss");
  close.onclick = () => box.remove();
  box.append(icon, words, close);
  $("#toasts").append(box);
  setTimeout(() => box.remove(), level === "bad" ? 20000 : 7000);
}

async function send(url, method, body) {
  const headers = { accept: "application/json", "content-type": "application/json" };
  const token = $("meta[name=csrf]")?.content;
  if (token) headers["x-csrf-token"] = token;
  let answer;
  try {
    answer = await fetch(url, { method, headers, body: method === "GET" || method === "DELETE" ? undefined : JSON.stringify(body) });
  } catch {
    throw new Error("The server did not answer. The action may or may not have taken effect: check before you retry.");
  }
  const text = await answer.text();
  let found = null;
  try { found = text ? JSON.parse(text) : null; } catch { /* not JSON */ }
  if (!answer.ok) throw new Error(found?.error?.message ?? `The server answered ${answer.status}.`);
  return found;
}

let asked = null;
let once = ""; // request id of one dialog: repeated presses take effect once

function body(form) {
  const values = { ...JSON.parse(asked.dataset.body || "{}") };
  if (asked.dataset.once !== undefined) values.request = once;
  for (const input of $$("[data-field]", form)) {
    const value = input.type === "number" ? Number(input.value) : input.value.trim();
    if (input.value !== "") values[input.dataset.field] = value;
  }
  if ("label.name" in values) {
    const { "label.name": name, "label.value": value = null, ...rest } = values;
    return { ...rest, labels: { [name]: value } };
  }
  return values;
}

async function preview() {
  if (asked?.dataset.preview === undefined) return;
  const button = asked;
  const form = $("#confirm form");
  if (!form.checkValidity()) return;
  const url = button.dataset.act + (button.dataset.act.includes("?") ? "&" : "?") + "preview=true";
  try {
    const result = await send(url, button.dataset.method || "POST", body(form));
    if (asked !== button) return;
    if (result?.consequence) put($("#confirm .consequence"), result.consequence);
    if (result?.clients) name(button, result.clients);
  } catch (error) {
    if (asked === button) complain(error.message);
  }
}

// Names the objects of an action on several, and acts on just those that were named.
function name(button, names) {
  const { match, ...rest } = JSON.parse(button.dataset.body);
  button.dataset.body = JSON.stringify({ ...rest, clients: names });
  const { verb } = button.dataset; // others may match than when the dialog opened
  put($("#confirm h2"), `${verb} ${names.length} client${names.length === 1 ? "" : "s"}?`);
  put($("#confirm button.main"), `${verb} ${names.length}`);
  const list = $("#confirm .named");
  list.replaceChildren(...names.map((each) => Object.assign(document.createElement("li"), { textContent: each })));
  list.hidden = false;
}

function complain(text) {
  const box = $("#confirm .error");
  put(box, text);
  box.hidden = !text;
}

function ask(button) {
  asked = button;
  once = [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");
  const dialog = $("#confirm");
  put($("h2", dialog), button.dataset.title);
  put($(".consequence", dialog), button.dataset.say || "");
  complain("");
  $(".named", dialog).hidden = true;
  const fields = $(".asked", dialog);
  fields.replaceChildren();
  for (const line of (button.dataset.ask || "").split("\n").filter(Boolean)) {
    const [name, type, label, ...rest] = line.split("|");
    const start = rest.join("|");
    const field = document.createElement("div");
    field.className = "field";
    const tag = document.createElement("label");
    tag.textContent = label;
    tag.htmlFor = `ask-${name}`;
    const input = document.createElement("input");
    Object.assign(input, { id: `ask-${name}`, type, value: start, maxLength: 500 });
    if (type === "number") Object.assign(input, { min: name === "priority" ? "-1000" : "0", step: "any", required: true });
    input.dataset.field = name;
    input.onchange = preview;
    if (name === "label.name") input.required = true;
    field.append(tag, input);
    fields.append(field);
  }
  const yes = $("button.main", dialog);
  put(yes, button.dataset.yes || button.textContent.trim());
  yes.classList.toggle("grave", button.classList.contains("grave"));
  yes.disabled = false;
  dialog.showModal();
  ($("input", fields) || yes).focus();
  preview();
}

async function confirmed(event) {
  event.preventDefault();
  const button = asked;
  const yes = $("#confirm button.main");
  if (yes.disabled) return;
  yes.disabled = true;
  complain("");
  if (JSON.parse(button.dataset.body || "{}").match) { // they are named first
    await preview();
    yes.disabled = false;
    return;
  }
  try {
    const result = await send(button.dataset.act, button.dataset.method || "POST", body($("#confirm form")));
    $("#confirm").close();
    if (result?.changed === false) toast(result.consequence, "warn");
    else toast(button.dataset.done || result?.consequence || "Done.", result?.failed?.length ? "bad" : "ok");
    document.dispatchEvent(new CustomEvent("acted", { detail: { button, result } }));
    if (button.dataset.then) location.assign(button.dataset.then.replace("{id}", result?.id ?? ""));
    else markNow();
  } catch (error) {
    yes.disabled = false;
    complain(error.message);
  }
}

// ---- keys and clicks --------------------------------------------------------------------------

let going = 0;

function typed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (going && Date.now() - going < 1500) {
    const place = $(`[data-key="${CSS.escape(event.key)}"]`);
    if (place) return location.assign(place.href);
  }
  going = event.key === "g" ? Date.now() : 0;
  if (event.key === "?") $("#keys").showModal();
  if (event.key === "/") {
    event.preventDefault();
    const box = $("input[type=search]");
    if (box) box.focus();
    else location.assign("/clients?focus=1");
  }
  if (event.key === "t") theme();
}

function theme() {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  window.charts?.repaint();
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    toast("Copied.");
  } catch {
    const range = document.createRange();
    const shown = button.previousElementSibling;
    if (!shown) return;
    put(shown, button.dataset.copy);
    range.selectNodeContents(shown);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    toast("Selected: copy it with Ctrl+C.", "warn");
  }
}

window.ask = ask;
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button || button.disabled) return;
  if (button.dataset.act && !button.dataset.bulk) ask(button);
  else if (button.dataset.copy) copy(button);
  else if (button.id === "theme") theme();
  else if (button.id === "help") $("#keys").showModal();
  else if (button.dataset.close !== undefined) button.closest("dialog").close();
});
document.addEventListener("keydown", typed);
// A hidden page closes its stream: browsers allow six connections to one server.
document.addEventListener("visibilitychange", () => {
  clearTimeout(sleepTimer);
  if (document.hidden) {
    sleepTimer = setTimeout(() => { asleep = true; source?.close(); }, 10000);
  } else if (asleep) {
    asleep = false;
    connect();
    mark("", "");
    document.dispatchEvent(new Event("woken"));
  } else if (waiting.size && !timer) refresh();
});
document.addEventListener("htmx:after:swap", () => { refill(); exact(document); tick(); });
window.addEventListener("pagehide", () => { leaving = true; source?.close(); });
window.addEventListener("pageshow", (event) => { if (event.persisted) { leaving = false; connect(); mark("", ""); } });
$("#confirm form").addEventListener("submit", confirmed);
$("#confirm").addEventListener("close", () => { asked?.focus?.(); asked = null; });
setInterval(tick, 1000);
// Refresh every 20 s what changes without an event, such as alerts about a near deadline.
setInterval(() => { if (lostAt === null) for (const e of $$("[data-live][hx-get]")) waiting.add(e); if (waiting.size && !timer && !document.hidden) refresh(); }, 20000);
setInterval(() => { if (lostAt === null && !asleep && Date.now() - lastEventAt > 25000) lost(); }, 5000);
// Not scrollIntoView: Chromium 150 then starts Tab at that place, behind the link to skip to the content.
{
  const here = $("nav.places [aria-current]"), bar = here?.closest("nav");
  if (bar) bar.scrollLeft = here.offsetLeft - (bar.clientWidth - here.offsetWidth) / 2;
}
exact(document);
tick();
drafted();
connect();
if (new URLSearchParams(location.search).has("focus")) $("input[type=search]")?.focus();
})();
