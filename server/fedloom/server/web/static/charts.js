// Draws the curves of runs with uPlot on a canvas. The server computes all values.
"use strict";

{
  const drawn = new Map();
  const LONGEST_TAIL = 12; // as `TAIL` of fedloom.server.insight.curves

  const asked = new Map();

  // Figures of one run share one response.
  function fetched(url) {
    const known = asked.get(url);
    if (known && Date.now() - known.at < 400) return known.answer;
    const answer = fetch(url, { headers: { accept: "application/json" } }).then((r) => { if (!r.ok) throw new Error(r.status); return r.json(); });
    asked.set(url, { at: Date.now(), answer });
    return answer;
  }

  // The page's live part carries the latest points. They replace the held points from their first
  // round on: after a rollback, a run has other rounds than before.
  const held = new Map();
  const tails = new Map();

  function joined(known, tail) {
    const from = tail.number[0];
    const keep = known.number.findIndex((number) => number >= from);
    const kept = keep < 0 ? known.number.length : keep;
    const whole = tail.number.length < LONGEST_TAIL; // no earlier rounds
    if (!whole && known.number[kept] !== from) return null;
    const cut = whole ? 0 : kept;
    const [before, after] = [Array(cut).fill(null), tail.number.map(() => null)];
    const column = (a, b) => a || b ? [...(a?.slice(0, cut) ?? before), ...(b ?? after)] : undefined;
    const names = (a, b) => [...new Set([...Object.keys(b), ...Object.keys(cut ? a : {})])];
    const made = { number: column(known.number, tail.number), at: column(known.at, tail.at), bytes: column(known.bytes, tail.bytes) };
    for (const kind of ["training", "evaluation"]) {
      made[kind] = {};
      for (const name of names(known[kind], tail[kind])) {
        const [a, b] = [known[kind][name], tail[kind][name]];
        made[kind][name] = { mean: column(a?.mean, b?.mean), low: column(a?.low, b?.low), high: column(a?.high, b?.high) };
      }
    }
    return made;
  }

  const tailOf = (url) => document.querySelector(`data.tail[data-of="${CSS.escape(url)}"]`);

  function lengthen() {
    for (const e of document.querySelectorAll("data.tail")) {
      const url = e.dataset.of;
      const known = held.get(url);
      if (!known || tails.get(url) === e.value) continue;
      tails.set(url, e.value);
      const tail = JSON.parse(e.value);
      const made = tail.number.length ? joined(known, tail) : null;
      if (made) held.set(url, made);
      for (const figure of all()) {
        if (figure.dataset.curves !== url) continue;
        if (made) draw(figure, select(made, figure, axis(figure)));
        else refresh(figure);
      }
    }
  }

  async function refresh(figure) {
    let curves;
    try {
      const found = await fetched(figure.dataset.curves);
      if (tailOf(figure.dataset.curves)) held.set(figure.dataset.curves, found);
      curves = select(found, figure, axis(figure));
    } catch {
      return; // the banner reports a lost connection
    }
    draw(figure, curves);
  }

  const axis = (figure) => figure.dataset.by || "round";
  const places = (curves, by) => ({ round: curves.number, time: curves.at, bytes: curves.bytes })[by];

  function select(found, figure, by) {
    const name = figure.dataset.metric;
    if (found.runs) return together(found.runs, name, figure.dataset.of, by);
    const lines = [];
    const run = decodeURIComponent(figure.dataset.curves.split("/").at(-2));
    for (const [what, colour] of [["training", 1], ["evaluation", 2]]) {
      const curve = found[what]?.[name];
      if (curve) lines.push({ label: what, colour, run, numbers: found.number, values: curve.mean, low: curve.low, high: curve.high });
    }
    return { x: places(found, by), lines, by };
  }

  // Runs on one axis: time since each run's first round opened, bytes from its beginning.
  function together(runs, name, of, by) {
    const here = (run) => by === "time" ? run.curves.at.map((t) => t - (run.began ?? run.curves.at[0])) : places(run.curves, by);
    const x = [...new Set(runs.flatMap(here))].sort((a, b) => a - b);
    const lines = runs.flatMap((run, index) => {
      const curve = run.curves[of]?.[name];
      if (!curve) return [];
      const known = new Map(here(run).map((at, i) => [at, i]));
      const column = (values) => values && x.map((at) => values[known.get(at)] ?? null);
      return [{ label: run.id, run: run.id, colour: (index % 6) + 1, dash: index >= 6, numbers: column(run.curves.number), values: column(curve.mean) }];
    });
    return { x, lines, by, relative: true };
  }

  function draw(figure, curves) {
    const box = figure.querySelector(".plot");
    const some = curves.x.length && curves.lines.length;
    box.classList.toggle("blank", !some);
    if (drawn.has(figure)) plots.drop(drawn.get(figure));
    drawn.delete(figure);
    box.replaceChildren();
    if (some) drawn.set(figure, plots.make(figure, curves));
    else box.textContent = "No committed round yet.";
  }

  const all = () => [...document.querySelectorAll("figure[data-curves]")];
  window.charts = { refresh, repaint: () => all().forEach(refresh), comesAlong: (figure) => held.has(figure.dataset.curves) };
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const plot = drawn.get(target.closest("figure"));
      if (plot && plot.width !== target.clientWidth) plot.setSize({ width: target.clientWidth, height: target.clientHeight });
    }
  });
  const known = new WeakSet();
  function begin() {
    for (const figure of all()) {
      if (known.has(figure)) continue;
      known.add(figure);
      sizes.observe(figure.querySelector(".plot"));
      refresh(figure);
    }
    for (const [figure, plot] of drawn) {
      if (figure.isConnected) continue;
      plots.drop(plot);
      drawn.delete(figure);
    }
  }
  begin();
  document.addEventListener("htmx:after:swap", () => { begin(); lengthen(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", window.charts.repaint);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-by]");
    if (!button) return;
    for (const other of button.parentElement.children) other.setAttribute("aria-pressed", other === button);
    plots.forget();
    for (const figure of all()) { figure.dataset.by = button.dataset.by; refresh(figure); }
  });
}
