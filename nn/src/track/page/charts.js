"use strict";
// Charts as SVG, heat maps as canvases, and tables.
const page = document.getElementById("page");
const COLOURS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const BRIGHTEST = 2, DECADES = 12;

const num = (v) => (v === "NaN" ? NaN : v === "inf" ? Infinity : v === "-inf" ? -Infinity : v);

/** A number of four digits. */
function text(v) {
  v = num(v);
  if (v === null || v === undefined) return "";
  if (!Number.isFinite(v)) return Number.isNaN(v) ? "NaN" : v > 0 ? "inf" : "-inf";
  const size = Math.abs(v);
  if (v === 0 || (size >= 0.01 && size < 1e5)) return String(Number(v.toPrecision(4)));
  return v.toExponential(2).replace("e+", "e");
}

/** A number on an axis. */
const brief = (v) => text(v).replace(/\.?0*e/, "e");

function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "text", "rect", "title"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function section(title, wide = false) {
  const own = make("section", wide ? { class: "wide" } : {}, make("h2", {}, title));
  page.append(own);
  return own;
}

function table(head, rows, odd = () => false) {
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, column) =>
    make("td", odd(cell, column, row) ? { class: "odd" } : {}, typeof cell === "string" ? cell : text(cell)))));
  const own = make("table", {}, make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...body));
  return make("div", { class: "table", tabindex: "0" }, own);
}

/** The colour of a magnitude: black of 0, red of what is not finite. */
function colour(v) {
  if (!Number.isFinite(v)) return [255, 0, 0];
  if (v <= 0) return [0, 0, 0];
  const share = Math.min(1, Math.max(0, (Math.log10(v) - BRIGHTEST) / DECADES + 1)) * (COLOURS.length - 1);
  const at = Math.min(Math.floor(share), COLOURS.length - 2);
  return COLOURS[at].map((low, i) => Math.round(low + (COLOURS[at + 1][i] - low) * (share - at)));
}

// ---- charts

/** The width of a chart in a section, so that its text has the size of the page's. */
const width = (parent) => Math.min(1200, Math.max(260, parent.clientWidth - 26 || 600));

/** Round values between two others. */
function ticks(low, high, log) {
  if (log) {
    const from = Math.ceil(low - 1e-9), to = Math.floor(high + 1e-9), by = Math.max(1, Math.ceil((to - from) / 5));
    const all = [];
    for (let power = from; power <= to; power += by) all.push(power);
    if (all.length > 2) return all;
    const finer = [];
    for (let power = Math.floor(low); power <= high; power += 1) {
      for (const times of [1, 2, 5]) {
        const at = power + Math.log10(times);
        if (at >= low - 1e-9 && at <= high + 1e-9) finer.push(at);
      }
    }
    return finer.length > 1 ? finer : [low, high];
  }
  const raw = (high - low) / 5 || 1, unit = 10 ** Math.floor(Math.log10(raw));
  const by = unit * ([1, 2, 5].find((step) => step * unit >= raw) || 10);
  const all = [];
  for (let value = Math.ceil(low / by) * by; value <= high + by * 1e-9; value += by) all.push(Number(value.toPrecision(12)));
  return all;
}

/**
 * A chart of lines over steps: `{ name, steps, low, high, key }` each, with `high` where a point stands for several updates.
 * Values that are not finite have no place in it, and are counted below.
 */
function chart(parent, lines, { log, label }) {
  const W = width(parent), H = 220, left = 56, right = 8, top = 8, bottom = 24;
  lines = lines.filter((line) => line.steps.length > 0).map((line) => ({ ...line, low: line.low.map(num), high: (line.high || line.low).map(num) }));
  if (lines.length === 0) return;
  const finite = lines.flatMap((line) => [...line.low, ...line.high]).filter(Number.isFinite).sort((a, b) => a - b);
  // One spike would leave all else at the bottom.
  if (log === undefined) log = finite[0] > 0 && finite[finite.length - 1] > 10 * finite[Math.floor(finite.length / 2)];
  const shown = (v) => Number.isFinite(v) && (!log || v > 0);
  const at = (v) => (log ? Math.log10(v) : v);
  let values = lines.flatMap((line) => [...line.low, ...line.high]).filter(shown).map(at);
  if (values.length === 0) values = [0, 1];
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (low === high) { low -= log ? 1 : Math.abs(low) / 2 || 1; high += log ? 1 : Math.abs(high) / 2 || 1; }
  const first = Math.min(...lines.map((line) => line.steps[0]));
  const last = Math.max(first + 1, ...lines.map((line) => line.steps[line.steps.length - 1]));
  const x = (step) => left + ((step - first) / (last - first)) * (W - left - right);
  const y = (v) => H - bottom - ((at(v) - low) / (high - low)) * (H - top - bottom);
  const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label, tabindex: "0" });
  for (const tick of ticks(low, high, log)) {
    const where = H - bottom - ((tick - low) / (high - low)) * (H - top - bottom);
    svg.append(make("line", { class: "grid", x1: left, x2: W - right, y1: where, y2: where }),
      make("text", { x: left - 6, y: where + 4, "text-anchor": "end" }, brief(log ? 10 ** tick : tick)));
  }
  for (const tick of ticks(first, last, false)) {
    const anchor = x(tick) > W - right - 16 ? "end" : "middle";
    svg.append(make("text", { x: x(tick), y: H - 6, "text-anchor": anchor }, text(Math.round(tick))));
  }
  let odd = 0;
  for (const line of lines) {
    let band = "", path = "", open = false;
    line.steps.forEach((step, i) => {
      const [a, b] = [line.low[i], line.high[i]];
      if (!shown(a) || !shown(b)) { open = false; odd += 1; return; }
      if (a !== b) band += `M${x(step).toFixed(1)} ${y(a).toFixed(1)}V${y(b).toFixed(1)}`;
      path += `${open ? "L" : "M"}${x(step).toFixed(1)} ${y(b).toFixed(1)}`;
      open = true;
    });
    const style = `fill:none;stroke:var(--${line.key});stroke-width:1.5;stroke-linejoin:round;stroke-linecap:round`;
    if (band) svg.append(make("path", { d: band, style: `${style};opacity:.4` }));
    svg.append(make("path", { d: path, style }));
  }
  const cursor = make("line", { class: "cursor", y1: top, y2: H - bottom, visibility: "hidden" });
  svg.append(cursor);
  const legend = make("div", { class: "legend" }, ...lines.map((line) => make("span", { style: `--key:var(--${line.key})` }, line.name)));
  const read = make("div", { class: "read", "aria-live": "polite" });
  parent.append(legend, svg, read);
  if (odd > 0) parent.append(make("p", { class: "note" }, `${odd} ${odd === 1 ? "value is" : "values are"} not shown: ${log ? "0 or not finite" : "not finite"}.`));
  let where = null;
  const show = (step) => {
    where = Math.min(last, Math.max(first, step));
    const found = lines.map((line) => {
      // The last point that is not behind it.
      let i = line.steps.findIndex((step) => step > where) - 1;
      if (i === -2) i = line.steps.length - 1;
      if (i < 0) return null;
      const [a, b] = [line.low[i], line.high[i]];
      return { step: line.steps[i], said: `${line.name} ${a === b || Number.isNaN(a) ? text(a) : `${text(a)} to ${text(b)}`}` };
    }).filter((one) => one);
    if (found.length === 0) return;
    cursor.setAttribute("x1", x(where));
    cursor.setAttribute("x2", x(where));
    cursor.setAttribute("visibility", "visible");
    read.textContent = `step ${found[0].step}: ${found.map((one) => one.said).join(", ")}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(Math.round(first + (((event.clientX - box.left) / box.width) * W - left) / (W - left - right) * (last - first)));
  });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (!by) return;
    event.preventDefault();
    const points = lines[0].steps;
    let i = where === null ? (by > 0 ? -1 : points.length) : points.findIndex((step) => step >= where);
    if (i === -1 && where !== null) i = points.length - 1;
    show(points[Math.min(points.length - 1, Math.max(0, i + by))]);
  });
}

/** A heat map: `columns` of numbers, drawn from the first row down. `said` puts a place in words. */
function heat(parent, columns, rows, paint, said, label) {
  const canvas = make("canvas", { width: columns.length, height: rows, role: "img", "aria-label": label, tabindex: "0" });
  canvas.style.height = `${Math.min(320, Math.max(60, rows * 14))}px`;
  const context = canvas.getContext("2d"), image = context.createImageData(columns.length, rows);
  columns.forEach((column, c) => {
    for (let r = 0; r < rows; r += 1) image.data.set([...paint(num(column[r]), column), 255], (r * columns.length + c) * 4);
  });
  context.putImageData(image, 0, 0);
  const read = make("div", { class: "read", "aria-live": "polite" });
  let [c, r] = [columns.length - 1, 0];
  const show = () => { read.textContent = said(c, r); };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    c = Math.min(columns.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns.length)));
    r = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
    show();
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    c = Math.min(columns.length - 1, Math.max(0, c + by[0]));
    r = Math.min(rows - 1, Math.max(0, r + by[1]));
    show();
  });
  parent.append(canvas, read);
}

/** The colours of magnitudes. */
function scale() {
  return make("div", {}, make("div", { class: "scale" }), make("div", { class: "ends" }, make("span", {}, "1e-10"), make("span", {}, "1e-4"), make("span", {}, "1e2")));
}

/**
 * The guides' bar picture: a number of each row on a logarithmic scale, such as mean |dL/dz| of each layer; and behind it, where
 * there are `tops`, a larger one.
 */
function bars(parent, title, values, rows, tops = []) {
  values = values.map(num);
  tops = tops.map(num);
  const finite = [...values, ...tops].filter((v) => Number.isFinite(v) && v > 0).map(Math.log10);
  if (finite.length === 0) return;
  const high = Math.ceil(Math.max(...finite)), low = Math.min(high - 2, Math.floor(Math.min(...finite)));
  const W = width(parent), H = 160, left = 56, bottom = 18, wide = (W - left - 8) / values.length;
  const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title} of each of ${rows.length} rows` });
  for (const tick of ticks(low, high, true)) {
    const y = H - bottom - ((tick - low) / (high - low)) * (H - bottom - 8);
    svg.append(make("line", { class: "grid", x1: left, x2: W - 8, y1: y, y2: y }), make("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, brief(10 ** tick)));
  }
  const bar = (v, i, key, said) => {
    const share = v > 0 && Number.isFinite(v) ? Math.max(0.01, (Math.log10(v) - low) / (high - low)) : Number.isFinite(v) ? 0 : 1;
    const height = share * (H - bottom - 8), gap = wide > 4 ? 1 : 0;
    svg.append(make("rect", { x: left + i * wide + gap, y: H - bottom - height, width: Math.max(0.5, wide - 2 * gap), height, fill: Number.isFinite(v) ? `var(--${key})` : "var(--alarm)" },
      make("title", {}, said)));
  };
  values.forEach((v, i) => {
    const said = `${rows[i]}: ${text(v)}${tops.length > 0 ? `, largest ${text(tops[i])}` : ""}`;
    if (tops.length > 0) bar(tops[i], i, "two", said);
    bar(v, i, "one", said);
  });
  svg.append(make("text", { x: left, y: H - 4 }, rows[0]), make("text", { x: W - 8, y: H - 4, "text-anchor": "end" }, rows[rows.length - 1]));
  parent.append(make("h3", {}, title), svg);
  if (tops.length > 0) {
    const key = (name, of) => make("span", { style: `--key:var(--${of})` }, name);
    parent.append(make("div", { class: "legend" }, key("mean", "one"), key("largest", "two")));
  }
}
