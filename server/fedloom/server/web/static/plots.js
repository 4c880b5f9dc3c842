// Plots of curves by uPlot: values under the pointer, a zoom that all plots share, files of a plot.
"use strict";

window.plots = (() => {
  // A canvas cannot use light-dark(): the colour is read from an element's computed style.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const faint = (rgb, alpha) => rgb.replace(/^rgb\(/, "rgba(").replace(/\)$/, `, ${alpha})`);
  const FONT = "12px ui-sans-serif, system-ui, sans-serif";

  // ---- words ------------------------------------------------------------------------------------

  const number = (v) => v === null || v === undefined ? "–"
    : Math.abs(v) >= 1e5 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(2)
    : `${Number(v.toPrecision(4))}`;

  // An accuracy is a share, unless its clients report per cent; as `measure` of words.py.
  function words(figure, curves) {
    const isShare = figure.dataset.metric.toLowerCase().includes("accuracy")
      && curves.lines.every((line) => line.values.every((v) => v === null || (v >= 0 && v <= 1)));
    return isShare ? (v, digits = 1) => v === null || v === undefined ? "–" : `${(100 * v).toFixed(digits)}\u00a0%` : number;
  }

  function size(v) {
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let unit = 0;
    while (v >= 999.5 && unit < units.length - 1) { v /= 1000; unit += 1; }
    return `${Number(v.toPrecision(3))} ${units[unit]}`;
  }

  function span(v) {
    return v < 120 ? `${Number(v.toPrecision(3))} s` : v < 7200 ? `${Number((v / 60).toPrecision(3))} min` : `${Number((v / 3600).toPrecision(3))} h`;
  }

  // A place on the horizontal axis.
  function place(curves, v) {
    if (curves.by === "bytes") return size(v);
    if (curves.by === "time") return curves.relative ? `after ${span(v)}` : new Date(v * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    return `Round ${v}`;
  }

  const tick = { bytes: size, time: span, round: (v) => `${v}` };

  // ---- the plot ---------------------------------------------------------------------------------

  const STEPS = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();
  const made = new Map();
  let zoom = null; // { by, min, max } of all plots of the page
  let applying = false;

  function options(box, figure, curves) {
    const isClock = curves.by === "time" && !curves.relative;
    const text = words(figure, curves);
    const axis = (more) => ({ stroke: colour("soft"), font: FONT, grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1, size: 4 }, ...more });
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
    const across = isClock ? {} : { incrs: STEPS, values: (u, ticks) => ticks.map(tick[curves.by]) };
    return {
      width: Math.max(120, box.clientWidth), height: box.clientHeight, series, bands,
      legend: { show: false },
      cursor: { y: false, points: { size: 8 }, drag: { x: true, y: false, dist: 4 }, sync: { key: "page", scales: ["x", null], setSeries: false } },
      scales: { x: { time: isClock }, y: { range: (u, low, high) => pad(low, high) } },
      axes: [axis({ ...across, space: curves.by === "round" ? 46 : 70, size: 28 }), axis({ size: 56, space: 32, values: (u, ticks) => { const digits = ticks.length > 1 && ticks[1] - ticks[0] < 0.0099 ? 1 : 0; return ticks.map((v) => text(v, digits)); } })],
      hooks: { setCursor: [(u) => tip(u, figure, curves)], setScale: [(u, key) => { if (key === "x") zoomed(u, curves); }] },
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

  function make(figure, curves) {
    const box = figure.querySelector(".plot");
    const plot = new uPlot(options(box, figure, curves), columns(curves), box);
    const bubble = document.createElement("div");
    bubble.className = "tip";
    bubble.hidden = true;
    plot.over.append(bubble);
    made.set(plot, { figure, curves, bubble });
    if (zoom && zoom.by === curves.by) scale(plot, zoom.min, zoom.max);
    opens(plot, figure, curves);
    key(figure, curves);
    describe(figure, curves);
    return plot;
  }

  function drop(plot) {
    made.delete(plot);
    plot.destroy();
  }

  // The key shows each line's last value.
  function key(figure, curves) {
    const text = words(figure, curves);
    const parts = curves.lines.map((line) => {
      const part = document.createElement("span");
      const stroke = document.createElement("i");
      stroke.className = `s${line.colour}${line.dash ? " dash" : ""}`;
      const shown = document.createElement("b");
      shown.textContent = text(line.values.findLast((v) => v !== null) ?? null);
      part.append(stroke, `${line.label} `, shown);
      return part;
    });
    figure.querySelector(".key").replaceChildren(...parts);
  }

  function describe(figure, curves) {
    const text = words(figure, curves);
    const ends = curves.lines.map((line) => {
      const known = line.values.filter((v) => v !== null);
      return known.length ? `${line.label} from ${text(known[0])} to ${text(known.at(-1))}` : "";
    }).filter(Boolean);
    figure.querySelector(".plot").setAttribute("aria-label", `${figure.dataset.title} over ${curves.x.length} rounds: ${ends.join("; ") || "nothing yet"}. Arrow keys read the rounds, Enter opens one, + and − zoom.`);
  }

  // ---- under the pointer ------------------------------------------------------------------------

  function lines(figure, curves, at) {
    const text = words(figure, curves);
    return curves.lines.filter((line) => line.values[at] !== null && line.values[at] !== undefined).map((line) => {
      const band = line.low && line.low[at] !== null && line.low[at] !== undefined ? `clients ${text(line.low[at])} to ${text(line.high[at])}` : "";
      const round = curves.by !== "round" || curves.relative ? ` · round ${line.numbers[at]}` : "";
      return { line, value: text(line.values[at]), band, round: curves.by === "round" ? "" : round };
    });
  }

  function tip(u, figure, curves) {
    const { bubble } = made.get(u) ?? {};
    if (!bubble) return;
    const at = u.cursor.idx;
    const found = at === null || at === undefined || u.cursor.left < 0 ? [] : lines(figure, curves, at);
    bubble.hidden = !found.length;
    if (!found.length) return;
    const head = document.createElement("strong");
    head.textContent = place(curves, curves.x[at]);
    bubble.replaceChildren(head, ...found.map(({ line, value, band, round }) => {
      const row = document.createElement("div");
      const mark = document.createElement("i");
      mark.className = `s${line.colour}${line.dash ? " dash" : ""}`;
      const shown = document.createElement("b");
      shown.textContent = value;
      const more = document.createElement("small");
      more.textContent = `${band}${round}`;
      const label = document.createElement("span");
      label.textContent = line.label;
      row.append(mark, label, " ", shown, " ", more);
      return row;
    }));
    const isLeft = u.cursor.left > u.over.clientWidth / 2;
    const room = isLeft ? u.cursor.left : u.over.clientWidth - u.cursor.left;
    bubble.style.maxWidth = `${Math.max(140, room - 12)}px`;
    bubble.classList.toggle("pinned", u.over.clientWidth < 320);
    bubble.style.left = isLeft ? "auto" : `${u.cursor.left + 12}px`;
    bubble.style.right = isLeft ? `${u.over.clientWidth - u.cursor.left + 12}px` : "auto";
  }

  // ---- a click opens the round; keys do all that the pointer does -------------------------------

  // The line that is nearest to the pointer, among those with a value there.
  function nearest(u, curves, at) {
    const known = curves.lines.filter((line) => line.values[at] !== null && line.values[at] !== undefined);
    const gap = (line) => Math.abs(u.valToPos(line.values[at], "y") - u.cursor.top);
    return known.sort((a, b) => gap(a) - gap(b))[0];
  }

  function open(u, curves) {
    const at = u.cursor.idx;
    const line = at === null || at === undefined ? null : nearest(u, curves, at);
    if (line) location.assign(`/runs/${encodeURIComponent(line.run)}/rounds/${line.numbers[at]}`);
  }

  function opens(u, figure, curves) {
    let pressed = null;
    u.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    u.over.addEventListener("click", (event) => {
      if (pressed !== null && Math.abs(event.clientX - pressed) < 4) open(u, curves);
    });
  }

  function move(u, curves, step) {
    const { min, max } = u.scales.x;
    const inside = curves.x.map((_, i) => i).filter((i) => curves.x[i] >= min && curves.x[i] <= max);
    if (!inside.length) return;
    const now = inside.indexOf(u.cursor.idx ?? -1);
    const at = inside[now < 0 ? (step > 0 ? 0 : inside.length - 1) : Math.min(inside.length - 1, Math.max(0, now + step))];
    const known = curves.lines.find((line) => line.values[at] !== null);
    u.setCursor({ left: u.valToPos(curves.x[at], "x"), top: known ? u.valToPos(known.values[at], "y") : 0 });
    const said = lines(made.get(u).figure, curves, at).map(({ line, value, band }) => `${line.label} ${value}${band ? `, ${band}` : ""}`);
    made.get(u).figure.querySelector(".said").textContent = `${place(curves, curves.x[at])}: ${said.join("; ")}`;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.matches?.("figure .plot")) return;
    const [u, held] = [...made].find(([, { figure }]) => figure.contains(event.target)) ?? [];
    if (!u) return;
    const { curves } = held;
    const { min, max } = u.scales.x;
    const middle = u.cursor.idx === null || u.cursor.idx === undefined ? (min + max) / 2 : curves.x[u.cursor.idx];
    if (event.key === "ArrowRight") move(u, curves, 1);
    else if (event.key === "ArrowLeft") move(u, curves, -1);
    else if (event.key === "Enter") open(u, curves);
    else if (event.key === "+" || event.key === "=") scale(u, middle - (max - min) / 4, middle + (max - min) / 4);
    else if (event.key === "-") scale(u, middle - (max - min), middle + (max - min));
    else if (event.key === "0" || event.key === "Escape") whole();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }, true);

  // ---- zoom -------------------------------------------------------------------------------------

  const ends = (curves) => [curves.x[0], curves.x.at(-1)];

  function scale(u, min, max) {
    const [first, last] = ends(made.get(u).curves);
    u.setScale("x", { min: Math.max(min, first), max: Math.min(max, last) });
  }

  function zoomed(u, curves) {
    if (applying || !made.has(u)) return;
    const { min, max } = u.scales.x;
    const [first, last] = ends(curves);
    zoom = min > first || max < last ? { by: curves.by, min, max } : null;
    applying = true;
    for (const [other, held] of made) {
      if (other === u || held.curves.by !== curves.by) continue;
      const [from, to] = ends(held.curves);
      other.setScale("x", zoom ? { min, max } : { min: from, max: to });
    }
    applying = false;
    offer();
  }

  function offer() {
    for (const button of document.querySelectorAll("button[data-unzoom]")) button.hidden = !zoom;
  }

  function whole() {
    zoom = null;
    applying = true;
    for (const [u, { curves }] of made) {
      const [min, max] = ends(curves);
      u.setScale("x", { min, max });
    }
    applying = false;
    offer();
  }

  // ---- files ------------------------------------------------------------------------------------

  function save(name, blob) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  const fileName = (figure) => `${figure.dataset.title}-${figure.dataset.curves.split("/").at(-2)}`.replace(/[^A-Za-z0-9._-]+/g, "-").toLowerCase();

  // RFC 4180, as `as_csv` of lists.py: a text that a spreadsheet would evaluate gets an apostrophe.
  function cell(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return `${value}`;
    const text = /^[=+\-@\t\r\n＝＋－＠]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function table(figure, curves) {
    const x = { round: "round", bytes: "bytes", time: curves.relative ? "seconds" : "time" }[curves.by];
    const names = curves.lines.flatMap((line) => [...(curves.by === "round" ? [] : [`${line.label} round`]), line.label, ...(line.low ? [`${line.label} low`, `${line.label} high`] : [])]);
    const rows = curves.x.map((v, at) => [
      x === "time" ? new Date(v * 1000).toISOString() : v,
      ...curves.lines.flatMap((line) => [...(curves.by === "round" ? [] : [line.numbers[at]]), line.values[at], ...(line.low ? [line.low[at], line.high[at]] : [])]),
    ]);
    return [[x, ...names], ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
  }

  // The plot with its title and its key, in the colours of the page.
  function picture(figure, u, curves) {
    const ratio = u.ctx.canvas.width / u.width;
    const canvas = document.createElement("canvas");
    const ctx = canvas.getContext("2d");
    const keys = [];
    let [left, row] = [12, 0];
    ctx.font = FONT;
    for (const line of curves.lines) {
      const width = 22 + ctx.measureText(line.label).width;
      if (left > 12 && left + width > u.width + 12) [left, row] = [12, row + 1];
      keys.push({ line, left, y: 38 + 19 * row, end: left + width });
      left += width + 18;
    }
    const top = 52 + 19 * row;
    const wide = Math.max(u.width + 24, ...keys.map(({ end }) => end + 12));
    canvas.width = wide * ratio;
    canvas.height = (u.height + top + 12) * ratio;
    ctx.scale(ratio, ratio);
    ctx.fillStyle = colour("card");
    ctx.fillRect(0, 0, wide, u.height + top + 12);
    ctx.fillStyle = colour("ink");
    ctx.font = `600 15px ui-sans-serif, system-ui, sans-serif`;
    ctx.fillText(figure.dataset.title, 12, 22);
    ctx.font = FONT;
    for (const { line, left, y } of keys) {
      ctx.fillStyle = colour(`series-${line.colour}`);
      for (const [at, width] of line.dash ? [[0, 6], [10, 6]] : [[0, 16]]) ctx.fillRect(left + at, y, width, 3);
      ctx.fillStyle = colour("soft");
      ctx.fillText(line.label, left + 22, y + 5);
    }
    ctx.drawImage(u.ctx.canvas, 12, top, u.width, u.height);
    return canvas;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.unzoom !== undefined) return whole();
    const figure = button.dataset.file && button.closest("figure");
    const [u, held] = [...made].find(([, each]) => each.figure === figure) ?? [];
    if (!u) return;
    if (button.dataset.file === "csv") save(`${fileName(figure)}.csv`, new Blob([table(figure, held.curves)], { type: "text/csv;charset=utf-8" }));
    else picture(figure, u, held.curves).toBlob((blob) => save(`${fileName(figure)}.png`, blob), "image/png");
  });

  return { make, drop, forget: () => { zoom = null; offer(); } };
})();
