// Draws the curves of runs with uPlot on a canvas. The server computes all values.
"use strict";

{
  const drawn = new Map();
  const LONGEST_TAIL = 12; // as `TAIL` of fedloom.server.insight.curves

  // A canvas cannot use light-dark(): the colour is read from an element's computed style.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const faint = (rgb, alpha) => rgb.replace(/^rgb\(/, "rgba(").replace(/\)$/, `, ${alpha})`);

  const number = (v) => v === null || v === undefined ? "–"
    : Math.abs(v) >= 1e5 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(2)
    : `${Number(v.toPrecision(4))}`;

  function options(box, figure, curves) {
    const byTime = figure.dataset.by === "time" && !curves.relative;
    const axis = (more) => ({ stroke: colour("soft"), font: "12px ui-sans-serif, system-ui, sans-serif", grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1, size: 4 }, ...more });
    const series = [{}];
    const bands = [];
    for (const line of curves.lines) {
      const stroke = colour(`series-${line.colour}`);
      series.push({ label: line.label, stroke, width: 2, dash: line.dash ? [6, 4] : undefined, spanGaps: true, points: { show: curves.x.length < 40, size: 5, fill: stroke, stroke }, scale: "y" });
      if (line.low) {
        const at = series.length;
        const edge = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false }, scale: "y" };
        series.push({ ...edge }, { ...edge });
        bands.push({ series: [at + 1, at], fill: faint(stroke, 0.16) });
      }
    }
    return {
      width: Math.max(120, box.clientWidth), height: box.clientHeight, series, bands,
      legend: { show: false },
      cursor: { y: false, points: { size: 8 }, drag: { x: true, y: false } },
      scales: { x: { time: byTime }, y: { range: (u, low, high) => pad(low, high) } },
      axes: [axis({ incrs: byTime ? undefined : [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000], space: 46, size: 28 }), axis({ size: 52, space: 32, values: (u, ticks) => ticks.map(number) })],
      hooks: { setCursor: [(u) => show(figure, curves, u.cursor.idx)] },
    };
  }

  function pad(low, high) {
    if (low === null || high === null) return [0, 1];
    const more = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - more, high + more];
  }

  function columns(curves) {
    const found = [curves.x];
    for (const line of curves.lines) {
      found.push(line.values);
      if (line.low) found.push(line.low, line.high);
    }
    return found;
  }

  // The key shows each line's value, at the pointer or at the end.
  function show(figure, curves, at) {
    const key = figure.querySelector(".key");
    const parts = curves.lines.map((line) => {
      const last = line.values.findLastIndex((v) => v !== null);
      const value = line.values[at ?? last] ?? null;
      const part = document.createElement("span");
      const stroke = document.createElement("i");
      stroke.className = `s${line.colour}${line.dash ? " dash" : ""}`;
      const shown = document.createElement("b");
      shown.textContent = number(value);
      part.append(stroke, `${line.label} `, shown);
      return part;
    });
    key.replaceChildren(...parts);
  }

  function describe(figure, curves) {
    const ends = curves.lines.map((line) => {
      const known = line.values.filter((v) => v !== null);
      return known.length ? `${line.label} from ${number(known[0])} to ${number(known.at(-1))}` : "";
    }).filter(Boolean);
    figure.querySelector(".plot").setAttribute("aria-label", `${figure.dataset.title} over ${curves.x.length} rounds: ${ends.join("; ") || "nothing yet"}.`);
  }

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
    const made = { number: column(known.number, tail.number), at: column(known.at, tail.at) };
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
        if (made) draw(figure, select(made, figure, figure.dataset.by === "time" ? "time" : "round"));
        else refresh(figure);
      }
    }
  }

  async function refresh(figure) {
    let curves;
    try {
      const by = figure.dataset.by === "time" ? "time" : "round";
      const found = await fetched(figure.dataset.curves);
      if (tailOf(figure.dataset.curves)) held.set(figure.dataset.curves, found);
      curves = select(found, figure, by);
    } catch {
      return; // the banner reports a lost connection
    }
    draw(figure, curves);
  }

  function select(found, figure, by) {
    const name = figure.dataset.metric;
    if (found.runs) return together(found.runs, name, figure.dataset.of, by);
    const lines = [];
    for (const [what, colour] of [["training", 1], ["evaluation", 2]]) {
      const curve = found[what]?.[name];
      if (curve) lines.push({ label: what, colour, values: curve.mean, low: curve.low, high: curve.high });
    }
    return { x: by === "time" ? found.at : found.number, lines };
  }

  function together(runs, name, of, by) {
    const start = (run) => run.curves.at[0] ?? 0;
    const places = (run) => by === "time" ? run.curves.at.map((t) => t - start(run)) : run.curves.number;
    const x = [...new Set(runs.flatMap(places))].sort((a, b) => a - b);
    const lines = runs.flatMap((run, index) => {
      const curve = run.curves[of]?.[name];
      if (!curve) return [];
      const known = new Map(places(run).map((at, i) => [at, curve.mean[i]]));
      return [{ label: run.id, colour: (index % 6) + 1, dash: index >= 6, values: x.map((at) => known.get(at) ?? null) }];
    });
    return { x, lines, relative: true };
  }

  function draw(figure, curves) {
    const box = figure.querySelector(".plot");
    const some = curves.x.length && curves.lines.length;
    box.classList.toggle("blank", !some);
    drawn.get(figure)?.destroy();
    drawn.delete(figure);
    box.replaceChildren();
    if (!some) {
      box.textContent = "No committed round yet.";
      return;
    }
    drawn.set(figure, new uPlot(options(box, figure, curves), columns(curves), box));
    show(figure, curves, null);
    describe(figure, curves);
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
      plot.destroy();
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
    for (const figure of all()) { figure.dataset.by = button.dataset.by; refresh(figure); }
  });
}
