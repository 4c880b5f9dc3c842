// Lists: filters that apply while people type, tidy URLs, and actions on several clients.
"use strict";

{
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // ---- filters ----------------------------------------------------------------------------------

  // The URL of a form's list: without empty fields, with the columns as one value.
  function address(form) {
    const values = new Map();
    for (const [name, value] of new FormData(form)) {
      if (value) values.set(name, values.has(name) ? `${values.get(name)},${value}` : value);
    }
    const query = [...values].map(([name, value]) => `${name}=${encodeURIComponent(value).replaceAll("%2C", ",")}`).join("&");
    const [path, section] = form.getAttribute("action").split("#");
    return path + (query ? `?${query}` : "") + (section ? `#${section}` : "");
  }

  let typing = 0;

  // The list is fetched by the URL that the page then has, which live refreshes keep.
  function follow(form) {
    const url = address(form);
    if (url === location.pathname + location.search) return;
    const live = $("#live");
    history.replaceState(null, "", url);
    if (matching) clear(); // other clients match now
    carry($("form.columns"));
    live.setAttribute("hx-get", `${url}${url.includes("?") ? "&" : "?"}part=live`);
    htmx.trigger(live, "refresh");
  }

  // The menu of columns stays open through live refreshes, so it takes the filters from the URL.
  function carry(form) {
    const kept = [...new URLSearchParams(location.search)].filter(([name]) => !["columns", "page", "focus"].includes(name));
    for (const old of $$("input[type=hidden]", form)) old.remove();
    form.append(...kept.map(([name, value]) => Object.assign(document.createElement("input"), { type: "hidden", name, value })));
    const usual = $(".usual", form);
    if (usual) usual.href = `${form.getAttribute("action")}?${new URLSearchParams(kept)}`;
  }

  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-typed]");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(follow, 250, form);
  });

  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form.filters, form.columns");
    if (!form || form.method !== "get") return;
    event.preventDefault();
    clearTimeout(typing);
    location.assign(address(form));
  });

  // ---- menus ------------------------------------------------------------------------------------

  document.addEventListener("click", (event) => {
    for (const menu of $$("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && event.target.closest("details.menu[open]");
    if (!menu) return;
    menu.open = false;
    $("summary", menu).focus();
  });

  // ---- several clients --------------------------------------------------------------------------

  const picked = new Set();
  let matching = false; // whether all that match the filters are meant

  const boxes = () => $$("[data-pick]");

  function show() {
    const bar = $("#bulk");
    if (!bar) return;
    const here = boxes();
    for (const box of here) box.checked = matching || picked.has(box.dataset.pick);
    const all = $("[data-pick-page]");
    const some = here.filter((box) => box.checked).length;
    all.checked = some > 0 && some === here.length;
    all.indeterminate = some > 0 && some < here.length;
    const total = Number($("#clients").dataset.total);
    const away = matching ? 0 : picked.size - here.filter((box) => picked.has(box.dataset.pick)).length;
    bar.hidden = !picked.size && !matching;
    $("[data-picked]", bar).textContent = matching ? `All ${total}` : `${picked.size}`;
    $("[data-picked-away]", bar).textContent = away ? `, ${away} not shown here` : "";
    const every = $("[data-pick-all]", bar);
    every.textContent = `Select all ${total.toLocaleString("en").replaceAll(",", "\u202f")} that match`;
    every.hidden = matching || total === here.length && all.checked;
  }

  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.dataset.pick === undefined && box.dataset.pickPage === undefined) return;
    if (matching) for (const other of boxes()) picked.add(other.dataset.pick);
    matching = false;
    const changed = box.dataset.pick === undefined ? boxes() : [box];
    for (const each of changed) picked[box.checked ? "add" : "delete"](each.dataset.pick);
    show();
  });

  function clear() {
    picked.clear();
    matching = false;
    show();
  }

  const ASKED = {
    drain: ["Drain", "reason|text|Reason, for the audit trail|"],
    quarantine: ["Quarantine", "reason|text|Reason, for the audit trail|"],
    release: ["Release", ""],
    label: ["Label", "label.name|text|Name|\nlabel.value|text|Value; empty removes the label|"],
    revoke: ["Revoke", ""],
  };

  // The dialog of the console asks; its preview names the clients, and the answer names them again.
  function act(button) {
    const { total, filters } = $("#clients").dataset;
    const [verb, fields] = ASKED[button.dataset.bulk];
    const which = matching
      ? { match: Object.fromEntries(Object.entries(JSON.parse(filters)).filter(([, value]) => value)) }
      : { clients: [...picked] };
    const count = matching ? Number(total) : picked.size;
    Object.assign(button.dataset, {
      act: "/v1/client-groups", preview: "", ask: fields, say: "", verb,
      title: `${verb} ${count} client${count === 1 ? "" : "s"}?`, yes: `${verb} ${count}`,
      body: JSON.stringify({ action: button.dataset.bulk, ...which }),
    });
    window.ask(button);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.bulk) act(button);
    else if (button.dataset.pickNone !== undefined) clear();
    else if (button.dataset.pickAll !== undefined) { matching = true; show(); }
  });
  document.addEventListener("acted", (event) => { if (event.detail.button.dataset.bulk) clear(); });
  document.addEventListener("htmx:after:swap", show);
  show();
}
