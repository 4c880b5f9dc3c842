// Shows the values under the pointer. Text is inserted with textContent, never as HTML.
for (const frame of document.querySelectorAll(".frame")) {
  const columns = JSON.parse(frame.dataset.hover);
  if (!columns.length) continue;
  const add = (parent, tag, text, name) => {
    const made = parent.appendChild(document.createElement(tag));
    if (text) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  let shown = [];
  const hide = () => { shown.forEach((it) => it.remove()); shown = []; };
  const show = (event) => {
    hide();
    const box = frame.getBoundingClientRect();
    const at = (100 * (event.clientX - box.left)) / box.width;
    if (at < -3 || at > 103) return;
    let nearest = columns[0];
    for (const it of columns) if (Math.abs(it[0] - at) < Math.abs(nearest[0] - at)) nearest = it;
    const [place, heading, rows, heights] = nearest;
    const cursor = add(frame, "div", "", "cursor");
    cursor.style.left = place + "%";
    for (const height of heights || []) add(cursor, "i").style.bottom = height + "%";
    const tip = add(frame, "div", "", "tip");
    add(tip, "b", heading);
    for (const [name, value] of rows) {
      const line = add(tip, "span", name);
      add(line, "em", value);
    }
    const x = (place / 100) * box.width;
    const left = x > box.width / 2 ? x - tip.offsetWidth - 12 : x + 12;
    tip.style.left = Math.max(-40, Math.min(left, box.width - tip.offsetWidth)) + "px";
    shown = [cursor, tip];
  };
  frame.addEventListener("pointermove", show);
  frame.addEventListener("pointerdown", show);
  frame.addEventListener("pointerleave", hide);
}
