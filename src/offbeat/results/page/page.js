"use strict";
// The page of a report and of the live view. It draws `data`, which report.py describes; text from outside is only ever
// set as text. `show(data)` may be called again with newer data: what the reader chose (zoom, axis, run) stays.
(() => {
const $ = (id) => document.getElementById(id);
const root = document.documentElement;
const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const methodColour = (k) => `var(--m${k % 10})`;
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const state = { metric: null, axis: "time", logX: false, logY: false, zoom: null, hidden: new Set(), run: null, strip: null };
let data = null, curves = null, charts = [], stripData = null, stripRun = null;

// Elements and numbers ------------------------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") element.textContent = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") element.style.cssText = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}
function fill(element, ...children) { element.replaceChildren(...children); element.querySelectorAll("table").forEach(named); return element; }
function named(made) {  // a table is named after its section
  const title = made.closest("section")?.getAttribute("aria-labelledby");
  if (title) made.setAttribute("aria-labelledby", title);
}
function reachable() {  // what scrolls sideways can be focused, and so be scrolled by keys
  document.querySelectorAll(".scroll").forEach((box) => {
    if (box.scrollWidth <= box.clientWidth + 1) { box.removeAttribute("tabindex"); box.removeAttribute("role"); box.removeAttribute("aria-label"); return; }
    box.tabIndex = 0; box.setAttribute("role", "region"); box.setAttribute("aria-label", "Table, scrolls sideways");
  });
}
function table(headings, rows, texts = 1) {
  const cell = (tag, value, k, scope) => {
    const made = make(tag, { class: k < texts ? "text" : "", ...scope });
    made.append(value instanceof Node ? value : document.createTextNode(value));
    return made;
  };
  return make("table", {},
    make("thead", {}, make("tr", {}, ...headings.map((each, k) => cell("th", each, k, { scope: "col" })))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((each, k) => k ? cell("td", each, k, {}) : cell("th", each, k, { scope: "row" }))))));
}
const size = (value) => {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const a = Math.abs(value);
  if (a !== 0 && (a < 1e-3 || a >= 1e7)) return value.toExponential(2);
  return value.toLocaleString("en-GB", { maximumSignificantDigits: a >= 1000 ? 6 : 4 });
};
const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)} %`;
const isShare = (name) => data.shares.includes(name);
const shown = (name, value) => value === null || value === undefined ? "–" : isShare(name) ? percent(value) : size(value);
const words = (name) => name.replaceAll("_", " ");

// Curves --------------------------------------------------------------------------------------------------------------

function at(xs, ys, x) {  // linear interpolation; the last value after the end
  let low = 0, high = xs.length - 1;
  if (high < 0 || x < xs[0]) return null;
  if (x >= xs[high]) return ys[high];
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] <= x) low = middle; else high = middle; }
  const width = xs[high] - xs[low];
  return width > 0 ? ys[low] + (ys[high] - ys[low]) * (x - xs[low]) / width : ys[high];
}

function columns(run, x, y) {
  const xs = run.columns[x], ys = run.columns[y], pairs = [[], []];
  if (!xs || !ys) return pairs;
  for (let k = 0; k < xs.length; k++) if (xs[k] !== null && ys[k] !== null && xs[k] !== undefined) { pairs[0].push(xs[k]); pairs[1].push(ys[k]); }
  return pairs;
}

function curveData() {
  const visible = data.methods.map((method, k) => ({ method, k })).filter(({ method }) => !state.hidden.has(method.name));
  const lines = visible.map(({ method, k }) => ({ method, k, runs: method.runs.map((r) => columns(data.runs[r], state.axis, state.metric)).filter((p) => p[0].length) })).filter((l) => l.runs.length);
  let grid = [...new Set(lines.flatMap((line) => line.runs.flatMap((pair) => pair[0])))].filter((x) => !state.logX || x > 0).sort((a, b) => a - b);
  if (grid.length > 900) {
    const first = grid[0], last = grid[grid.length - 1];
    grid = Array.from({ length: 700 }, (_, k) => state.logX ? first * (last / first) ** (k / 699) : first + (last - first) * k / 699);
  }
  const positive = (value) => value !== null && (!state.logY || value > 0) ? value : null;
  const series = [grid];
  for (const line of lines) {
    const end = Math.max(...line.runs.map((pair) => pair[0][pair[0].length - 1]));
    const rows = [[], [], []];
    for (const x of grid) {
      const values = x > end ? [] : line.runs.map((pair) => at(pair[0], pair[1], x)).filter((v) => v !== null);
      const whole = values.length === line.runs.length && values.length > 0;
      rows[0].push(whole ? positive(values.reduce((a, b) => a + b, 0) / values.length) : null);
      rows[1].push(whole ? positive(Math.min(...values)) : null);
      rows[2].push(whole ? positive(Math.max(...values)) : null);
    }
    series.push(...rows);
  }
  return { series, lines };
}

function axisOptions(more) {
  return { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1, size: 5 },
    font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 22, ...more };
}

function tooltip(box, text) {
  const tip = make("div", { class: "tip" });
  return { hooks: {
    init: (u) => { u.over.append(tip); },
    setCursor: (u) => {
      const { idx, left, top } = u.cursor;
      const lines = idx === null || idx === undefined || left < 0 ? null : text(u, idx);
      if (!lines) { tip.style.display = "none"; return; }
      fill(tip, ...lines);
      tip.style.display = "block";
      const width = u.over.clientWidth, height = u.over.clientHeight;
      const x = left + 14 + tip.offsetWidth > width ? left - tip.offsetWidth - 14 : left + 14;
      tip.style.left = `${Math.max(0, x)}px`;
      tip.style.top = `${Math.max(0, Math.min((top || 0) + 10, height - tip.offsetHeight))}px`;
    },
  } };
}

function drawCurves() {
  const box = $("curves-chart");
  const { series, lines } = curveData();
  if (curves) { curves.destroy(); curves = null; }
  box.replaceChildren();
  const several = lines.some((line) => line.runs.length > 1);
  const axisName = data.axes.find((each) => each[0] === state.axis)?.[1] ?? state.axis;
  const held = data.metrics.includes(state.metric) ? " on held-out data" : "";
  $("curves-note").textContent = !lines.length ? "Nothing to draw: no visible run has this metric over this axis." :
    `${several ? "Lines are means over seeds, bands the lowest to the highest seed. " : ""}Drag to zoom, double-click to reset; select a name to hide it.`;
  if (!lines.length) { $("curves-table").lastElementChild.replaceChildren(); return; }
  const bands = [], options = [{}];
  lines.forEach(({ method, k }) => {
    const ink = colour(`--m${k % 10}`), dash = DASHES[Math.floor(k / 10) % DASHES.length];
    const base = options.length;
    options.push({ label: method.name, stroke: ink, width: 2.2, dash, points: { show: series[0].length < 40, size: 5, fill: ink } });
    for (const end of ["low", "high"]) options.push({ label: `${method.name} ${end}`, stroke: "transparent", width: 0, points: { show: false } });
    bands.push({ series: [base + 2, base + 1], fill: `color-mix(in srgb, ${ink} 16%, transparent)` });
  });
  const target = state.metric === data.metric.name ? data.target : null;
  const percentAxis = isShare(state.metric);
  curves = new uPlot({
    width: box.clientWidth, height: 380, padding: [12, 20, 0, 0], legend: { show: false },
    cursor: { drag: { x: true, y: false }, focus: { prox: 30 }, points: { show: (u, k) => (k - 1) % 3 === 0 ? undefined : false } },
    scales: {
      x: { time: false, distr: state.logX ? 3 : 1, range: (u, low, high) => state.zoom ?? (state.logX ? [low, high] : [Math.min(low, data.live ? low : 0), high === low ? low + 1 : high]) },
      y: { distr: state.logY ? 3 : 1, range: (u, low, high) => {
        if (low === null) return [0, 1];
        if (state.logY) return [low > 0 ? low / 1.1 : 1e-6, high * 1.1];
        if (target !== null) { low = Math.min(low, target); high = Math.max(high, target); }
        const room = (high - low || Math.abs(high) || 1) * 0.06;
        return [percentAxis || low >= 0 && low < 0.4 * high ? Math.min(0, low) : low - room, percentAxis ? Math.min(1, high + room) : high + room];
      } },
    },
    axes: [
      axisOptions({ label: axisName, size: 36, values: (u, ticks) => ticks.map((v) => v === null ? "" : size(v)) }),
      axisOptions({ label: words(state.metric) + held, size: 62, values: (u, ticks) => ticks.map((v) => v === null ? "" : percentAxis ? `${+(100 * v).toFixed(1)} %` : size(v)) }),
    ],
    series: options, bands,
    plugins: [tooltip(box, (u, idx) => {
      const rows = lines.map(({ method, k }, n) => ({ method, k, value: u.data[1 + 3 * n][idx], low: u.data[2 + 3 * n][idx], high: u.data[3 + 3 * n][idx] }))
        .filter((row) => row.value !== null && row.value !== undefined).sort((a, b) => b.value - a.value);
      if (!rows.length) return null;
      return [make("div", {}, make("b", { text: `${axisName.replace(/ \(.*/, "")} ${size(u.data[0][idx])}` })),
        ...rows.slice(0, 12).map((row) => make("div", {}, make("span", {}, make("i", { style: `--c:${methodColour(row.k)}` }), row.method.name),
          make("b", { text: shown(state.metric, row.value) + (row.low !== row.high ? ` (${shown(state.metric, row.low)} to ${shown(state.metric, row.high)})` : "") })))];
    })],
    hooks: {
      setSelect: [(u) => { if (u.select.width > 4) state.zoom = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]; }],
      draw: [(u) => {
        if (target === null) return;
        const y = u.valToPos(target, "y", true), { left, width, top, height } = u.bbox;
        if (!(y >= top && y <= top + height)) return;
        const pen = u.ctx; pen.save(); pen.strokeStyle = colour("--soft"); pen.setLineDash([3, 4]); pen.lineWidth = 1.2 * devicePixelRatio;
        pen.beginPath(); pen.moveTo(left, y); pen.lineTo(left + width, y); pen.stroke();
        pen.fillStyle = colour("--soft"); pen.font = `${12 * devicePixelRatio}px system-ui, sans-serif`; pen.textAlign = "left";
        pen.fillText(`target ${data.target_text}`, left + 8 * devicePixelRatio, y - 5 * devicePixelRatio); pen.restore();
      }],
    },
  }, series, box);
  curves.over.addEventListener("dblclick", () => { state.zoom = null; drawCurves(); });
  box.dataset.lines = lines.length;
  curvesTable(series, lines, axisName);
}

function curvesTable(series, lines, axisName) {
  const count = series[0].length, step = Math.max(1, Math.ceil(count / 14)), rows = [];
  for (let k = 0; k < count; k += step) rows.push([size(series[0][k]), ...lines.map((_, n) => shown(state.metric, series[1 + 3 * n][k]))]);
  fill($("curves-table").lastElementChild, table([axisName, ...lines.map((line) => line.method.name)], rows, 0));
}

function zoomCurves(factor, shift = 0) {
  if (!curves) return;
  const { min, max } = curves.scales.x, middle = (min + max) / 2 + shift * (max - min), half = (max - min) / 2 * factor;
  state.zoom = [middle - half, middle + half];
  drawCurves();
}

function curveKeys(event) {
  if (!curves) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) {
    const count = curves.data[0].length, index = Math.max(0, Math.min(count - 1, (curves.cursor.idx ?? (step > 0 ? -1 : count)) + step));
    curves.setCursor({ left: curves.valToPos(curves.data[0][index], "x"), top: 10 });
    const told = data.methods.filter((m) => !state.hidden.has(m.name)).map((m, n) => `${m.name} ${shown(state.metric, curves.data[1 + 3 * n]?.[index])}`);
    $("spoken").textContent = `${size(curves.data[0][index])}: ${told.join(", ")}`;
  } else if (event.key === "+" || event.key === "=") zoomCurves(0.6);
  else if (event.key === "-") zoomCurves(1.6);
  else if (event.key === "0" || event.key === "Escape") { state.zoom = null; drawCurves(); }
  else return;
  event.preventDefault();
}

// Tables --------------------------------------------------------------------------------------------------------------

function sortable(made) {
  if (!made || made.dataset.sortable) return;
  made.dataset.sortable = "yes";
  made.querySelectorAll("thead th").forEach((heading, column) => {
    if (heading.dataset.plain) return;
    const name = heading.textContent;
    heading.setAttribute("scope", "col");
    fill(heading, make("button", { type: "button", text: name, onclick: () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      made.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = made.tBodies[0];
      const key = (row) => { const text = row.cells[column].textContent.trim().replaceAll(",", ""); const value = parseFloat(text);
        return text === "-" || /^not reached/.test(text) ? Infinity : Number.isNaN(value) ? text : value; };
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1) * (up ? 1 : -1));
      body.append(...rows.map(([, row]) => row));
    } }));
  });
}

function drawForest() {
  const made = $("target-table").querySelector("table");
  if (!made || !data.times.some((each) => each)) { sortable(made); return; }
  const furthest = Math.max(...data.times.filter(Boolean).map((each) => each.high ?? each.median)) || 1;
  const heading = make("th", { class: "text", text: `median and ${data.spread}`, "data-plain": "yes", scope: "col" });
  made.tHead.rows[0].cells[Math.min(1, made.tHead.rows[0].cells.length - 1)].after(heading);
  [...made.tBodies[0].rows].forEach((row, k) => {
    const time = data.times[k], cell = make("td", { class: "forest" });
    if (time) cell.append(make("div", { class: "range", style: `--c:${methodColour(k)}`, "aria-hidden": "true" },
      make("i", { style: `left:${100 * (time.low ?? time.median) / furthest}%;width:${100 * ((time.high ?? time.median) - (time.low ?? time.median)) / furthest}%` }),
      make("b", { style: `left:${100 * time.median / furthest}%` })));
    row.cells[Math.min(1, row.cells.length - 1)].after(cell);
  });
  sortable(made);
}

// The fleet strip -----------------------------------------------------------------------------------------------------

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

async function loadStrip() {
  const run = data.runs[state.run], strip = run?.views?.strip;
  stripData = null; stripRun = state.run;
  if (!strip || !strip.rows) { drawStrip(); return; }
  const bytes = await unpacked(strip.data);
  if (stripRun !== state.run || data.runs[state.run]?.views?.strip !== strip) return;
  if (strip.cells) stripData = { strip, cells: new Uint8Array(bytes) };
  else {
    const n = strip.parts, view = new DataView(bytes);
    const row = new Uint16Array(n), start = new Float32Array(n), length = new Float32Array(n), kind = new Uint8Array(bytes, 2 * n, n);
    for (let k = 0; k < n; k++) { row[k] = view.getUint16(2 * k, true); start[k] = view.getFloat32(3 * n + 4 * k, true); length[k] = view.getFloat32(7 * n + 4 * k, true); }
    const first = new Uint32Array(strip.rows + 1);
    for (let k = 0; k < n; k++) first[row[k] + 1]++;
    for (let k = 0; k < strip.rows; k++) first[k + 1] += first[k];
    stripData = { strip, row, start, length, kind, first };
  }
  drawStrip();
  stripTable();
}

const TOP = 14, BOTTOM = 26;
function stripView() { return state.strip ?? [0, stripData.strip.until || 1]; }
function rgb(name) {  // a colour as 32 bits of an ImageData
  const [r, g, b] = colour(name).match(/\w\w/g).map((hex) => parseInt(hex, 16));
  return [r, g, b];
}
const pixel = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;

function drawStrip() {
  const canvas = $("strip-canvas"), note = $("strip-note"), run = data.runs[state.run];
  const available = Boolean(stripData);
  canvas.classList.toggle("hidden", !available);
  $("strip-legend").classList.toggle("hidden", !available);
  if (!available) {
    note.textContent = run?.missing || "This run has no order yet.";
    $("strip-readout").textContent = ""; canvas.dataset.drawn = "";
    return;
  }
  const { strip } = stripData, dpr = Math.min(2, devicePixelRatio || 1);
  const lines = strip.cells ? strip.cells[0] : strip.rows;
  const rowHeight = Math.max(1, Math.min(16, Math.floor(520 / lines)));
  const width = canvas.parentElement.clientWidth, height = lines * rowHeight + TOP + BOTTOM;
  canvas.width = Math.round(width * dpr); canvas.height = Math.round(height * dpr); canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d"), [from, to] = stripView();
  const W = canvas.width, H = Math.round(lines * rowHeight * dpr), image = pen.createImageData(W, H), pixels = new Uint32Array(image.data.buffer);
  const empty = pixel(rgb("--wait")), inks = data.kinds.map((_, k) => rgb(`--k${k}`)), back = rgb("--wait"), gap = pixel(rgb("--card"));
  pixels.fill(empty);
  const scale = W / (to - from || 1);
  const lineTop = (line) => Math.round(line * rowHeight * dpr);
  const paint = (line, x0, x1, ink) => {
    const top = lineTop(line), a = Math.max(0, Math.floor(x0)), b = Math.min(W, Math.max(Math.floor(x0) + 1, Math.floor(x1)));
    if (b > a) pixels.fill(ink, top * W + a, top * W + b);
  };
  if (strip.cells) {
    const [rows, cols] = strip.cells, seconds = strip.until / cols || 1;
    const mixed = (byte) => { const ink = inks[byte >> 4], part = (byte & 15) / 15; return pixel(ink.map((value, k) => Math.round(back[k] + (value - back[k]) * part))); };
    for (let r = 0; r < rows; r++) for (let c = 0; c < cols; c++) {
      const byte = stripData.cells[r * cols + c];
      if (byte & 15) paint(r, (c * seconds - from) * scale, ((c + 1) * seconds - from) * scale, mixed(byte));
    }
  } else {
    const flat = inks.map(pixel), { row, start, length, kind } = stripData;
    for (let k = 0; k < row.length; k++) {
      const begin = start[k], end = begin + length[k];
      if (end < from || begin > to) continue;
      paint(row[k], (begin - from) * scale, (end - from) * scale, flat[kind[k]]);
    }
  }
  for (let line = 0; line < lines; line++) {  // the first scan line of a row is copied to its others; a gap between rows
    const top = lineTop(line), bottom = lineTop(line + 1);
    for (let y = top + 1; y < bottom; y++) pixels.copyWithin(y * W, top * W, (top + 1) * W);
    if (bottom - top >= 4) pixels.fill(gap, (bottom - 1) * W, bottom * W);
  }
  pen.clearRect(0, 0, W, canvas.height);
  pen.putImageData(image, 0, TOP * dpr);
  pen.scale(dpr, dpr);
  pen.fillStyle = colour("--ink");
  let previous = -9;
  for (const time of strip.commits) {
    if (time === null || time < from || time > to) continue;
    const x = (time - from) / (to - from) * width;
    if (x - previous < 1.5) continue;
    previous = x; pen.fillRect(x - 0.5, 2, 1, TOP - 4);
  }
  axisBelow(pen, width, lines * rowHeight + TOP, from, to);
  canvas.dataset.drawn = strip.cells ? "cells" : "parts";
  const clock = run.real ? "s of wall-clock time" : "s of virtual time";
  canvas.setAttribute("aria-label", `What each of ${strip.rows} devices did over ${size(strip.until)} ${clock}: ${strip.orders} orders, ${strip.versions} versions. Arrow keys move, plus and minus zoom.`);
  const merged = strip.cells ? ` ${strip.orders.toLocaleString("en-GB")} orders are too many to draw one by one: each cell merges ${strip.group === 1 ? "one device" : `${strip.group} devices`} and ${size(strip.until / strip.cells[1])} s; its colour is the most frequent activity, its strength the share of the time.` : "";
  note.textContent = `A row is a device, the fastest at the top; ticks above are new versions (${strip.versions.toLocaleString("en-GB")}).${merged} Drag to zoom, double-click to reset.`;
}

function axisBelow(pen, width, top, from, to) {
  const rough = (to - from) / Math.max(2, Math.floor(width / 110)), power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough) || rough || 1;
  pen.fillStyle = colour("--soft"); pen.font = "12px system-ui, sans-serif"; pen.textAlign = "center";
  for (let t = Math.ceil(from / step) * step; t <= to + 1e-9; t += step) {
    const x = (t - from) / (to - from) * width;
    pen.fillRect(x, top, 1, 4);
    pen.fillText(`${size(+t.toPrecision(10))} s`, Math.max(18, Math.min(width - 18, x)), top + 18);
  }
}

function stripAt(event) {
  if (!stripData) return null;
  const canvas = $("strip-canvas"), box = canvas.getBoundingClientRect(), { strip } = stripData, [from, to] = stripView();
  const lines = strip.cells ? strip.cells[0] : strip.rows, rowHeight = (box.height - TOP - BOTTOM) / lines;
  const line = Math.floor((event.clientY - box.top - TOP) / rowHeight), time = from + (event.clientX - box.left) / box.width * (to - from);
  return line < 0 || line >= lines ? { time, line: null } : { time, line };
}

function stripWords({ time, line }) {
  const { strip } = stripData;
  if (line === null) return `${size(time)} s`;
  if (strip.cells) {
    const column = Math.min(strip.cells[1] - 1, Math.floor(time / (strip.until / strip.cells[1]))), byte = stripData.cells[line * strip.cells[1] + column];
    const first = line * strip.group + 1, last = Math.min(strip.rows, first + strip.group - 1);
    return `${size(time)} s, devices ${first} to ${last} by speed: ${byte & 15 ? `mostly ${data.kinds[byte >> 4]}, ${percent((byte & 15) / 15, 0)} of the time` : "no order"}`;
  }
  const { start, length, kind, first } = stripData;
  let found = "no order";
  for (let k = first[line]; k < first[line + 1]; k++)
    if (start[k] <= time && time <= start[k] + length[k]) found = `${data.kinds[kind[k]]} from ${size(start[k])} to ${size(start[k] + length[k])} s`;
  const pace = strip.pace[line];
  return `${size(time)} s, device ${strip.device[line]}${pace === null || pace === undefined ? "" : ` (${size(pace)} s per slice)`}: ${found}`;
}

function zoomStrip(factor, middle = null, shift = 0) {
  if (!stripData) return;
  const whole = stripData.strip.until || 1, [from, to] = stripView();
  const centre = (middle ?? (from + to) / 2) + shift * (to - from), half = Math.min(whole, (to - from) * factor) / 2;
  let low = centre - half, high = centre + half;
  if (low < 0) [low, high] = [0, 2 * half];
  if (high > whole) [low, high] = [Math.max(0, whole - 2 * half), whole];
  state.strip = low <= 0 && high >= whole ? null : [low, high];
  drawStrip();
}

function stripTable() {
  const run = data.runs[state.run], { strip } = stripData, box = $("strip-table").lastElementChild;
  if (strip.cells || !strip.device.length) { fill(box, make("p", { class: "note", text: "Too many devices for a table: see devices.csv in the run directory." })); return; }
  const rows = [];
  for (let line = 0; line < strip.rows; line++) {
    const seconds = new Array(data.kinds.length).fill(0);
    for (let k = stripData.first[line]; k < stripData.first[line + 1]; k++) seconds[stripData.kind[k]] += stripData.length[k];
    seconds[1] -= seconds[3];
    const busy = seconds.reduce((a, b) => a + b, 0);
    rows.push([`device ${strip.device[line]}`, size(strip.pace[line]), ...seconds.map((each) => size(+each.toFixed(2))), size(+(strip.until - busy).toFixed(2))]);
  }
  fill(box, table(["device", "s per slice", ...data.kinds.map((kind) => `${kind} (s)`), "no order (s)"], rows));
}

function stripEvents() {
  const canvas = $("strip-canvas"), pick = canvas.parentElement.querySelector(".pick");
  let from = null;
  canvas.addEventListener("pointermove", (event) => {
    const place = stripAt(event);
    if (!place) return;
    $("strip-readout").textContent = stripWords(place);
    if (from !== null) {
      const x = event.clientX - canvas.getBoundingClientRect().left;
      pick.style.cssText = `display:block;left:${Math.min(x, from.x)}px;width:${Math.abs(x - from.x)}px`;
    }
  });
  canvas.addEventListener("pointerdown", (event) => { const place = stripAt(event); if (place && event.button === 0) { from = { time: place.time, x: event.clientX - canvas.getBoundingClientRect().left }; canvas.setPointerCapture(event.pointerId); } });
  canvas.addEventListener("pointerup", (event) => {
    const place = stripAt(event), began = from;
    from = null; pick.style.display = "none";
    if (!began || !place || Math.abs(event.clientX - canvas.getBoundingClientRect().left - began.x) < 5) return;
    state.strip = [Math.max(0, Math.min(began.time, place.time)), Math.min(stripData.strip.until, Math.max(began.time, place.time))];
    drawStrip();
  });
  canvas.addEventListener("pointerleave", () => { $("strip-readout").textContent = ""; });
  canvas.addEventListener("dblclick", () => { state.strip = null; drawStrip(); });
  canvas.addEventListener("keydown", (event) => {
    const does = { "+": () => zoomStrip(0.5), "=": () => zoomStrip(0.5), "-": () => zoomStrip(2), ArrowLeft: () => zoomStrip(1, null, -0.2),
      ArrowRight: () => zoomStrip(1, null, 0.2), 0: () => { state.strip = null; drawStrip(); } }[event.key];
    if (!does || !stripData) return;
    does(); event.preventDefault();
    const [a, b] = stripView();
    $("spoken").textContent = `from ${size(a)} to ${size(b)} s`;
  });
  $("strip-in").addEventListener("click", () => zoomStrip(0.5));
  $("strip-out").addEventListener("click", () => zoomStrip(2));
  $("strip-reset").addEventListener("click", () => { state.strip = null; if (stripData) drawStrip(); });
}

// Views of one run ----------------------------------------------------------------------------------------------------

function small(id, options, series) {
  const box = $(id);
  box.replaceChildren();
  const chart = new uPlot({ width: box.clientWidth, height: 230, padding: [10, 8, 0, 0], ...options, legend: { show: false } }, series, box);
  charts.push(chart);
  return chart;
}

function drawRun() {
  for (const chart of charts) chart.destroy();
  charts = [];
  const run = data.runs[state.run], views = run?.views;
  drawStaleness(run, views?.staleness);
  drawBuffer(run, views?.buffer);
  drawWaited(run, views?.waited_for);
  drawFleet(run);
}

function drawStaleness(run, stale) {
  const box = $("staleness-chart"), note = $("staleness-note");
  $("staleness-table").classList.toggle("hidden", !stale?.counts.length);
  if (!stale || !stale.counts.length) { box.replaceChildren(); note.textContent = run?.missing || "No update has been used yet."; return; }
  const xs = stale.counts.map((_, k) => k), weighted = stale.weights.length > 0;
  const total = stale.used + stale.discarded;
  small("staleness-chart", {
    height: 300,
    scales: { x: { time: false, range: [-0.6, Math.max(xs.length - 0.4, 3)] }, y: { range: (u, low, high) => [0, (high || 1) * 1.08] }, w: { range: [0, 1.08] } },
    axes: [axisOptions({ label: "staleness (versions)", size: 36, values: (u, ticks) => ticks.map((v) => Number.isInteger(v) ? v : "") , incrs: [1, 2, 5, 10, 20, 50] }), axisOptions({ label: "used updates", size: 56, values: (u, ticks) => ticks.map((v) => Number.isInteger(v) ? size(v) : "") }),
      ...(weighted ? [axisOptions({ scale: "w", side: 1, label: "weight relative to fresh", grid: { show: false }, size: 44 })] : [])],
    series: [{}, { label: "used updates", fill: colour("--k1"), stroke: colour("--k1"), width: 0, paths: uPlot.paths.bars({ size: [0.82, 60] }), points: { show: false } },
      ...(weighted ? [{ label: "weight", scale: "w", stroke: colour("--m1"), width: 2.2, points: { show: true, size: 6, fill: colour("--m1") } }] : [])],
    plugins: [tooltip(box, (u, k) => [make("div", {}, make("b", { text: `staleness ${stale.merged && k === xs.length - 1 ? `${k} or more` : k}` })), make("div", {}, `${size(stale.counts[k])} updates, ${percent(stale.counts[k] / stale.used)}`),
      ...(weighted ? [make("div", {}, `weight ${size(stale.weights[k])}`)] : [])])],
  }, [xs, stale.counts, ...(weighted ? [stale.weights] : [])]);
  const mean = stale.counts.reduce((sum, count, k) => sum + count * k, 0) / stale.used;
  note.textContent = `${size(stale.used)} updates used, mean staleness ${mean.toFixed(2)}; ${stale.discarded ? `${percent(stale.discarded / total)} of ${size(total)} resolved updates were dropped` : "none was dropped"}. ` +
    (weighted ? "The line is the weight that the policy gives to an update of this staleness, relative to a fresh one." : "The policy has no fixed weight by staleness.");
  fill($("staleness-table").lastElementChild, table(["staleness", "used updates", ...(weighted ? ["weight"] : [])], xs.map((k) => [String(k), size(stale.counts[k]), ...(weighted ? [size(stale.weights[k])] : [])]), 0));
}

function drawBuffer(run, buffer) {
  const box = $("buffer-chart"), note = $("buffer-note");
  if (!buffer || !buffer.time.length) { box.replaceChildren(); note.textContent = run?.missing || "No update has been received yet."; return; }
  const until = run.views.strip.until;
  small("buffer-chart", {
    height: 190, padding: [10, 20, 0, 0],
    scales: { x: { time: false, range: [0, until || 1] }, y: { range: (u, low, high) => [0, (high || 1) * 1.1] } },
    axes: [axisOptions({ size: 30, values: (u, ticks) => ticks.map((v) => `${size(v)} s`) }), axisOptions({ size: 46, values: (u, ticks) => ticks.map((v) => Number.isInteger(v) ? v : "") })],
    series: [{}, { stroke: colour("--k2"), width: 1.6, fill: `color-mix(in srgb, ${colour("--k2")} 18%, transparent)`, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
    plugins: [tooltip(box, (u, k) => [make("div", {}, `${size(u.data[0][k])} s: ${u.data[1][k]} updates wait`)])],
  }, [buffer.time, buffer.fill]);
  note.textContent = `An update waited ${size(buffer.wait)} s on average between its upload and its use; at most ${buffer.most} waited at once.`;
}

function meter(share, mark = null, ink = "var(--k1)") {
  const made = make("div", { class: "meter", style: `--c:${ink}` }, make("i", { style: `width:${Math.min(100, 100 * share)}%` }));
  if (mark !== null) made.append(make("b", { style: `left:calc(${Math.min(100, 100 * mark)}% - 1px)`, title: `proportional: ${percent(mark)}` }));
  return made;
}
function barRows(rows) {  // [label, node, text]
  return make("table", { class: "bars" }, make("tbody", {}, ...rows.map(([label, node, text]) => {
    const grow = make("td", { class: "grow text" }, node);
    return make("tr", {}, make("th", { class: "text", scope: "row", text: label }), grow, make("td", { text }));
  })));
}

function drawWaited(run, waited) {
  const box = $("waited");
  if (!waited) { fill(box, make("p", { class: "note", text: run?.missing || "" })); return; }
  if (!waited.versions) { fill(box, make("p", { class: "note", text: "No version waited for a second update." })); return; }
  if (!waited.devices.length) { fill(box, make("p", { class: "note", text: `The last two uploads of each of ${size(waited.versions)} versions came at the same time.` })); return; }
  const most = waited.devices[0][1];
  fill(box, barRows(waited.devices.map(([device, seconds, count]) => [`device ${device}`, meter(seconds / most), `${size(seconds)} s, ${count}×`])),
    make("p", { class: "note", text: `Seconds between the last and the next-to-last upload of a version, by the device that came last: ${size(waited.seconds)} s over ${size(waited.versions)} versions.` +
      (waited.fifths.length ? ` The slowest fifth of the devices caused ${percent(waited.fifths[4], 0)} of it.` : "") }));
}

function drawFleet(run) {
  const fleet = data.fleets[run?.fleet], box = $("fleet-chart");
  const canvas = $("labels-canvas");
  canvas.classList.toggle("hidden", !fleet?.counts);
  if (!fleet) { box.replaceChildren(); $("fleet-note").textContent = "The run has no fleet.json, which says what is known of the devices in advance."; $("labels-note").textContent = ""; $("labels-readout").textContent = ""; return; }
  const xs = fleet.device.map((_, k) => k), paced = fleet.pace.some((v) => v !== null);
  small("fleet-chart", {
    scales: { x: { time: false, range: [-0.5, Math.max(1, xs.length - 0.5)] }, y: { range: (u, low, high) => [0, (high || 1) * 1.08] }, s: { range: (u, low, high) => [0, (high || 1) * 1.08] } },
    axes: [axisOptions({ size: 36, label: `device, by speed${fleet.total > xs.length ? ` (${xs.length} of ${fleet.total.toLocaleString("en-GB")})` : ""}`, values: (u, ticks) => ticks.map((v) => Number.isInteger(v) ? v + 1 : "") }), axisOptions({ scale: "s", label: "samples", size: 56, values: (u, ticks) => ticks.map(size) }),
      ...(paced ? [axisOptions({ scale: "y", side: 1, label: "s per slice", grid: { show: false }, size: 50, values: (u, ticks) => ticks.map(size) })] : [])],
    series: [{}, { scale: "s", fill: `color-mix(in srgb, ${colour("--k0")} 55%, transparent)`, stroke: "transparent", width: 0, paths: uPlot.paths.bars({ size: [0.85, 40] }), points: { show: false } },
      ...(paced ? [{ scale: "y", stroke: colour("--m1"), width: 2.2, points: { show: false } }] : [])],
    plugins: [tooltip(box, (u, k) => [make("div", {}, make("b", { text: `device ${fleet.device[k]}` })), make("div", {}, `${size(fleet.samples[k])} samples`), ...(paced ? [make("div", {}, `${size(fleet.pace[k])} s per slice`)] : [])])],
  }, [xs, fleet.samples, ...(paced ? [fleet.pace] : [])]);
  const ends = (values) => { const known = values.filter((v) => v !== null); return `${size(Math.min(...known))} to ${size(Math.max(...known))}`; };
  $("fleet-note").textContent = `Bars: samples, ${ends(fleet.samples)} on a device. ${paced ? `Line: ${ends(fleet.pace)} s per slice (an epoch, or a layer in deadline algorithms).` : ""}`;
  if (fleet.counts) drawLabels(fleet); else { $("labels-note").textContent = "The labels on the devices are not known: they were not counted, because the data are too large, loaded per device, or on real devices."; $("labels-readout").textContent = ""; }
}

function drawLabels(fleet) {
  const canvas = $("labels-canvas"), width = canvas.parentElement.clientWidth, rows = fleet.counts.length, cols = fleet.columns.length;
  const dpr = Math.min(2, devicePixelRatio || 1), line = Math.max(6, Math.min(22, Math.floor(220 / rows))), left = 58, height = rows * line;
  canvas.width = width * dpr; canvas.height = (height + 4) * dpr; canvas.style.width = `${width}px`; canvas.style.height = `${height + 4}px`;
  const pen = canvas.getContext("2d"), most = Math.max(1, ...fleet.counts.flat()), ink = rgb("--k1"), back = rgb("--wait");
  pen.scale(dpr, dpr); pen.clearRect(0, 0, width, height + 4);
  const w = (width - left) / cols;
  pen.font = "11px system-ui, sans-serif"; pen.textAlign = "right"; pen.textBaseline = "middle";
  fleet.counts.forEach((counts, r) => {
    counts.forEach((count, c) => {
      const part = Math.sqrt(count / most);
      pen.fillStyle = `rgb(${ink.map((v, k) => Math.round(back[k] + (v - back[k]) * part)).join(",")})`;
      pen.fillRect(left + c * w, r * line, w > 3 ? w - 0.5 : w + 0.5, line - 1);
    });
    if (line >= 10 || r % 2 === 0) { pen.fillStyle = colour("--soft"); pen.fillText(fleet.labels[r].slice(0, 8), left - 6, r * line + line / 2); }
  });
  canvas.onpointermove = (event) => {
    const box = canvas.getBoundingClientRect(), c = Math.floor((event.clientX - box.left - left) / w), r = Math.floor((event.clientY - box.top) / line);
    $("labels-readout").textContent = r >= 0 && r < rows && c >= 0 && c < cols ? `device ${fleet.columns[c]}, ${fleet.labels[r]}: ${size(fleet.counts[r][c])} samples` : "";
  };
  canvas.setAttribute("aria-label", `Samples of ${rows} labels on ${cols} devices, at most ${most}`);
  $("labels-note").textContent = `A column is a device, from fast to slow${cols < fleet.total ? ` (${cols} of ${fleet.total.toLocaleString("en-GB")})` : ""}; darker is more samples, up to ${size(most)}. ${fleet.remark || ""}`;
}

// Views of all methods ------------------------------------------------------------------------------------------------

const mean = (values) => values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0;
function viewsOf(method) { return method.runs.map((r) => data.runs[r].views).filter(Boolean); }

function drawHeard() {
  const box = $("heard-bars"), rows = [], labels = [], never = [];
  let proportional = null;
  const tintedShares = (shares, held) => shares.map((share, n) => tinted(percent(share, 0), held[n] ? share / held[n] : 1));
  data.methods.forEach((method) => {
    const known = viewsOf(method).map((views) => views.heard).filter((heard) => heard && heard.groups.length);
    if (!known.length) return;
    const used = known[0].groups.map((_, n) => mean(known.map((h) => h.used[n]))), held = known[0].groups.map((_, n) => mean(known.map((h) => h.held[n])));
    proportional ??= { groups: known[0].groups, held };
    rows.push([method.name, ...tintedShares(used, held)]);
    const bounded = known.map((h) => h.influence).filter(Boolean);
    if (bounded.length) rows.push([`${method.name}, with the bounds of [trust]`, ...tintedShares(held.map((_, n) => mean(bounded.map((each) => each[n]))), held)]);
    never.push(`${method.name} ${size(mean(known.map((h) => h.never)))}`);
    labels.push(...labelRows(method, known));
  });
  if (!rows.length) { fill(box, make("p", { class: "note", text: data.runs[0]?.missing || "There are too few devices for fifths." })); return; }
  const head = ["method", ...proportional.groups];
  fill(box, make("div", { class: "scroll" }, table(head, [[make("em", { text: "proportional" }), ...proportional.held.map((share) => percent(share, 0))], ...rows])),
    make("p", { class: "note", text: `Devices without a used update, mean per run: ${never.join(", ")}.` }),
    ...(labels.length ? [make("h3", { text: "Labels" }), ...labels] : []), ...groupRows());
}

function groupRows() {
  const names = [...new Set(data.methods.flatMap((method) => Object.keys(method.groups ?? {})))];
  if (!names.length) return [];
  return [make("h3", { text: `Final ${words(data.metric.name)} by group of devices` }), make("div", { class: "scroll" },
    table(["method", ...names], data.methods.map((method) => [method.name, ...names.map((name) => shown(data.metric.name, method.groups[name]))])))];
}

function tinted(text, ratio) {  // blue: less than its share, orange: more
  const part = Math.min(60, Math.abs(Math.log2(Math.max(ratio, 0.05))) * 45);
  return make("span", { class: "tint", style: `background:color-mix(in srgb, var(${ratio < 1 ? "--k0" : "--k4"}) ${part.toFixed(0)}%, transparent)`, title: `${ratio.toFixed(2)} times its share of the samples`, text });
}

function labelRows(method, known) {
  const some = known.filter((heard) => heard.labels?.length);
  if (!some.length) return [];
  const labels = some[0].labels;
  const used = labels.map((_, n) => mean(some.map((h) => h.label_used[n] ?? 0))), held = labels.map((_, n) => mean(some.map((h) => h.label_held[n] ?? 0)));
  const ratios = labels.map((_, n) => held[n] ? used[n] / held[n] : 1), worst = ratios.indexOf(Math.min(...ratios));
  return [make("details", {}, make("summary", { text: `${method.name}: least heard is ${labels[worst]}, ${ratios[worst].toFixed(2)} times its share` }),
    table(["label", "of used samples", "of all samples", "ratio"], labels.map((label, n) => [label, percent(used[n]), percent(held[n]), tinted(ratios[n].toFixed(2), ratios[n])])))];
}

const TIMES = [["training", "training that was used or goes on", "--k1"], ["transfer", "transfers", "--k0"], ["fresh", "waiting for a fresh model", "--k3"], ["wasted", "wasted: lost or discarded", "--k5"], ["waiting", "no order", "--wait"]];
function drawTime() {
  const rows = [];
  data.methods.forEach((method) => {
    const known = viewsOf(method).map((views) => views.time);
    if (!known.length) return;
    const seconds = TIMES.map(([key]) => mean(known.map((each) => each[key] ?? 0))), total = seconds.reduce((a, b) => a + b, 0) || 1;
    const bar = make("div", { class: "stack", role: "img", "aria-label": `${method.name}: ${TIMES.map(([, name], n) => `${name} ${percent(seconds[n] / total)}`).join(", ")}` },
      ...TIMES.map(([, name, ink], n) => make("i", { style: `width:${100 * seconds[n] / total}%;background:var(${ink})`, title: `${name}: ${percent(seconds[n] / total)}, ${size(seconds[n])} device seconds` })));
    rows.push([method.name, bar, ...seconds.map((each) => percent(each / total))]);
  });
  fill($("time-legend"), ...TIMES.map(([, name, ink]) => make("span", { class: "key" }, make("i", { style: `--c:var(${ink})` }), name)));
  if (rows.length) fill($("time-bars"), table(["method", "share of all device seconds", ...TIMES.map(([key]) => key === "waiting" ? "no order" : key === "fresh" ? "fresh model" : key)], rows, 2));
  else fill($("time-bars"), make("p", { class: "note", text: data.runs[0]?.missing || "" }));
  $("time-legend").classList.toggle("hidden", !rows.length);
}

function drawFaults() {
  const kinds = data.fault_kinds.filter(([key]) => data.methods.some((method) => method.runs.some((r) => data.runs[r].faults[key])));
  const box = $("faults-table");
  if (!kinds.length) { fill(box, make("p", { class: "note", text: "No update was discarded, lost or refused, and no device failed." })); return; }
  fill(box, table(["method", ...kinds.map(([, name]) => name)], data.methods.map((method) => [method.name, ...kinds.map(([key]) => size(mean(method.runs.map((r) => data.runs[r].faults[key] ?? 0))))])),
    make("p", { class: "note", text: "Means per run." }));
}

// The whole page ------------------------------------------------------------------------------------------------------

function choices() {
  const select = (element, entries, chosen) => { fill(element, ...entries.map(([value, text]) => make("option", { value, text, ...(value === chosen ? { selected: "" } : {}) }))); element.value = chosen; };
  const metrics = [...data.metrics, ...data.more_metrics];
  if (!metrics.includes(state.metric)) state.metric = data.metric.name;
  if (!data.axes.some(([key]) => key === state.axis)) state.axis = "time";
  select($("metric"), metrics.map((name) => [name, words(name)]), state.metric);
  select($("axis"), data.axes, state.axis);
  if (state.run === null) state.run = data.first_run ?? 0;
  if (state.run >= data.runs.length) state.run = 0;
  document.querySelectorAll("select.run").forEach((element) => select(element, data.runs.map((run, k) => [String(k), run.name]), String(state.run)));
  fill($("methods"), ...data.methods.map((method, k) => make("button", { type: "button", "aria-pressed": String(!state.hidden.has(method.name)), onclick: (event) => {
    if (state.hidden.has(method.name)) state.hidden.delete(method.name); else state.hidden.add(method.name);
    event.currentTarget.setAttribute("aria-pressed", String(!state.hidden.has(method.name)));
    drawCurves();
  } }, make("i", { style: `--c:${methodColour(k)}` }), method.name + (method.runs.length > 1 ? ` (${method.runs.length} seeds)` : ""))));
  fill($("strip-legend"), ...data.kinds.map((kind, k) => make("span", { class: "key" }, make("i", { style: `--c:var(--k${k})` }), kind)), make("span", { class: "key" }, make("i", { style: "--c:var(--wait)" }), "no order"));
}

function drawAll() {
  drawCurves(); drawRun(); drawHeard(); drawTime(); drawFaults();
  if (stripRun === state.run && stripData && data.runs[state.run]?.views?.strip === stripData.strip) drawStrip(); else loadStrip();
  reachable();
}

function header() {
  const facts = data.facts ?? [];
  fill($("facts"), ...facts.map(([name, value]) => make("li", {}, make("span", { text: name }), name === "state" ? make("b", { class: `state ${value.split(/[ ,]/)[0]}`, text: value }) : name === "resume" ? make("code", { text: value }) : make("b", { text: value }))));
  const alarms = $("alarms"), told = (data.alarms ?? []).join("\n");
  if (alarms.dataset.told !== told) { alarms.dataset.told = told; fill(alarms, ...(data.alarms ?? []).map((text) => make("li", { text }))); }
  const progress = $("progress");
  progress.classList.toggle("hidden", data.progress === undefined || data.progress === null);
  progress.firstElementChild.style.width = `${100 * (data.progress ?? 0)}%`;
}

function show(fresh) {
  const first = data === null;
  data = fresh;
  const report = data.runs && data.runs.length > 0;
  $("report").classList.toggle("hidden", !report);
  if (!data.html) $("headline").querySelector("p.findings:not(:has(strong))")?.remove();
  $("index").classList.toggle("hidden", !data.index);
  header();
  if (data.html) for (const [id, text] of Object.entries(data.html)) {  // made, and escaped, by the server
    const sorted = [...$(id).querySelectorAll("th[aria-sort]")].map((th) => [th.cellIndex, th.getAttribute("aria-sort")]);
    const open = [...$(id).querySelectorAll("details")].map((each) => each.open);
    $(id).innerHTML = text;
    $(id).querySelectorAll("details").forEach((each, k) => { each.open = open[k] ?? each.open; });
    if (id === "target-table") drawForest(); else sortable($(id).querySelector("table"));
    for (const [column, way] of sorted) { const button = $(id).querySelectorAll("th")[column]?.querySelector("button"); button?.click(); if (way === "descending") button?.click(); }
  }
  if (data.title) { $("title").textContent = data.title; document.title = data.title; }
  if (data.index) drawIndex();
  if (!report) return;
  choices();
  if (first && !data.html) { drawForest(); sortable($("runs-table").querySelector("table")); }
  for (const id of ["target-table", "runs-table"]) $(id).querySelectorAll("table").forEach(named);
  drawAll();
}

function drawIndex() {
  const link = (entry) => make("a", { href: entry.href, text: entry.name });
  const rows = data.index.map((entry) => [link(entry), make("span", { class: `state ${entry.state}`, text: entry.progress }), entry.what, entry.time, entry.value, entry.target]);
  fill($("index"), make("section", { class: "card", "aria-labelledby": "title" }, data.index.length ? make("div", { class: "scroll" }, table(["directory", "state", "algorithm", "time", "metric", "target"], rows, 3)) :
    make("p", { text: data.empty })));
  sortable($("index").querySelector("table"));
}

function theme(name) {
  root.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  if (data) { if (data.runs?.length) drawAll(); }
}

function start() {
  const prefers = matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  try { kept = localStorage.getItem("offbeat-theme"); } catch { /* a page from a file may have no storage */ }
  theme(kept ?? (prefers.matches ? "dark" : "light"));
  prefers.addEventListener("change", (event) => { if (!kept) theme(event.matches ? "dark" : "light"); });
  $("theme").addEventListener("click", () => { kept = root.dataset.theme === "dark" ? "light" : "dark"; try { localStorage.setItem("offbeat-theme", kept); } catch { /* as above */ } theme(kept); });
  $("print").addEventListener("click", () => window.print());
  let before = null;
  let opened = [];  // the notes are printed; tables of the charts and settings only if the reader opened them
  addEventListener("beforeprint", () => {
    before = root.dataset.theme; if (before !== "light") theme("light");
    opened = [...document.querySelectorAll("#caption details:not([open])")]; opened.forEach((each) => { each.open = true; });
  });
  addEventListener("afterprint", () => { if (before && before !== "light") theme(before); opened.forEach((each) => { each.open = false; }); });
  $("metric").addEventListener("change", (event) => { state.metric = event.target.value; drawCurves(); });
  $("axis").addEventListener("change", (event) => { state.axis = event.target.value; state.zoom = null; drawCurves(); });
  for (const [id, key] of [["log-x", "logX"], ["log-y", "logY"]]) $(id).addEventListener("click", (event) => {
    state[key] = !state[key]; state.zoom = null; event.currentTarget.setAttribute("aria-pressed", String(state[key])); drawCurves();
  });
  $("reset").addEventListener("click", () => { state.zoom = null; drawCurves(); });
  $("curves-chart").addEventListener("keydown", curveKeys);
  document.querySelectorAll("select.run").forEach((element) => element.addEventListener("change", (event) => {
    state.run = Number(event.target.value); state.strip = null;
    document.querySelectorAll("select.run").forEach((each) => { each.value = event.target.value; });
    drawRun(); loadStrip();
  }));
  stripEvents();
  let width = innerWidth, timer = null;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(() => { if (innerWidth !== width && data?.runs?.length) { width = innerWidth; drawAll(); } }, 150); });
  const given = JSON.parse($("data").textContent);
  if (given.source) live(given); else show(given);
  root.dataset.ready = "yes";
}

// Live ----------------------------------------------------------------------------------------------------------------

function live(given) {
  $("brand").replaceChildren(make("a", { href: given.home, text: "offbeat, all runs" }));
  let busy = false, again = false;
  $("report").classList.add("hidden");  // until there is something to show
  fill($("headline"), make("p", { class: "findings", text: "Reading the results …" }));
  const refresh = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(given.source, { cache: "no-store" });
      const text = await answer.text();
      if (answer.ok) { show(JSON.parse(text)); root.dataset.updates = String(Number(root.dataset.updates ?? 0) + 1); lost(""); }
      else lost(text || `The server answered ${answer.status}.`);
    } catch { lost("The server does not respond; this page reconnects when it is back."); }
    busy = false;
    if (again) { again = false; refresh(); }
  };
  const lost = (text) => fill($("problems"), ...(text ? [make("li", { text })] : (data?.problems ?? []).map((each) => make("li", { text: each }))));
  const events = new EventSource(given.events);
  events.onmessage = refresh;
  events.onopen = refresh;
  events.onerror = () => lost("The server does not respond; this page reconnects when it is back.");
}

start();
})();
