// The sections of the page of a run, from the numbers of the element `data`.
const data = JSON.parse(document.getElementById("data").textContent);
const { updates, measured } = data;
const names = measured.names || { flow: [], params: [], sites: [] };
const looks = measured.all;

function head() {
  const state = document.getElementById("state");
  const at = new Date(data.written * 1000).toLocaleString();
  state.className = data.state;
  // A step that was run again has no updates of its own.
  state.textContent = data.count === 0 && data.state !== "running" ? `One step, run again; this page was written ${at}.` : {
    running: `The run goes on; this page was written ${at}. Load it again to see more. If the run is over and this still stands here, it was killed.`,
    finished: `The run reached its end; this page was written ${at}.`,
    broken: `The run broke; this page was written ${at}.`,
    interrupted: `Somebody stopped the run; this page was written ${at}.`,
    stopped: `The run ended before it said how; this page was written ${at}.`,
  }[data.state];
  const metric = (data.values[`${data.metric}`] || []).slice(-1)[0];
  const figures = [
    ["updates", data.count || undefined],
    ["first loss", updates.loss.low[0]],
    ["last loss", updates.loss.high[updates.loss.high.length - 1]],
    [data.metric, metric && metric[1]],
    ["clipped", updates.clips ? `${text((100 * updates.clipped) / Math.max(1, data.count))} %` : undefined],
    ["skipped", updates.skipped || undefined],
    ["seconds", data.count ? Number(data.seconds.toFixed(1)) : undefined],
  ];
  const list = document.getElementById("figures");
  for (const [name, value] of figures) {
    if (value === undefined || name === "") continue;
    list.append(make("div", {}, make("dt", {}, name), make("dd", {}, typeof value === "string" && !["NaN", "inf", "-inf"].includes(value) ? value : text(value))));
  }
}

function finding() {
  if (!data.finding) return;
  section("The finding", true).append(make("pre", { id: "finding" }, data.finding));
}

function losses() {
  if (data.count === 0) return;
  const own = section("Loss");
  chart(own, [{ name: "loss", steps: updates.step, ...updates.loss, key: "one" }], { label: "The loss of each update" });
  if (updates.stride > 1) own.append(make("p", { class: "note" }, `Each point stands for ${updates.stride} updates: from the lowest to the highest.`));
}

const KEYS = ["one", "two", "three", "four"];

/** Numbers by name; those whose names begin alike, up to a slash, share a chart. */
function values() {
  const charts = new Map();
  for (const [name, points] of Object.entries(data.values)) {
    // One number makes no line: it is among the figures above.
    if (points.length < 2) continue;
    const [group, rest] = name.includes("/") ? [name.slice(0, name.indexOf("/")), name.slice(name.indexOf("/") + 1)] : [name, name];
    if (!charts.has(group)) charts.set(group, []);
    charts.get(group).push({ name: rest, steps: points.map((p) => p[0]), low: points.map((p) => p[1]), key: KEYS[charts.get(group).length % KEYS.length] });
  }
  return charts;
}

function proof() {
  const lines = values().get("proof");
  if (!lines) return;
  const own = section("The proof: the loss of the same steps, run again", true);
  chart(own, lines, { label: "The loss of each replay" });
}

function metrics() {
  for (const [group, lines] of values()) {
    if (group !== "proof") chart(section(group), lines, { label: `${group} over the run` });
  }
}

function norms() {
  if (data.count === 0) return;
  const own = section("Norm of the gradient");
  const lines = [{ name: "before clipping", steps: updates.step, ...updates.norm, key: "one" }];
  if (looks.length > 0) lines.push({ name: "what the optimizer was given", steps: looks.map((l) => l.step), low: looks.map((l) => l.applied), key: "two" });
  chart(own, lines, { log: true, label: "The global norm of gradients" });
  const said = [];
  if (updates.clips) said.push(`${updates.clipped} of ${data.count} updates were clipped.`);
  if (updates.suggested !== null) said.push(`5 % of norms are above ${text(updates.suggested)}, a bound to begin with.`);
  own.append(make("p", { class: "note" }, said.join(" ")));
  if (updates.scale.some((scale) => scale !== 1)) {
    const scale = section("Loss scale");
    chart(scale, [{ name: "loss scale", steps: updates.step, low: updates.scale, key: "three" }], { log: true, label: "The scale that the loss is multiplied by" });
    scale.append(make("p", { class: "note" }, `${updates.skipped} of ${data.count} updates were skipped.`));
  }
}

function flow() {
  if (names.flow.length === 0) return;
  const own = section("Flow: mean |dL/dz|, layer by layer", true);
  own.append(make("p", { class: "note" }, "From the first layer (or time step) at the top to the last; steps from left to right. Black is 0, red is not finite."));
  heat(own, looks.map((look) => look.flow), names.flow.length, colour,
    (c, r) => `step ${looks[c].step}, ${names.flow[r]}: ${text(looks[c].flow[r])}`, "The flow of gradients over the run");
  own.append(scale());
}

/** A number with a range that is sound: what lies outside stands out. */
const RANGES = { "update / parameter": [1e-6, 0.1], "dead units": [0, 0.9], "score range": [0, 100], "of the largest": [0.1, 1], "of the median": [1e-6, 1e6] };

/** Parts of a model, by the first word of their parameters' paths, side by side: their balance. */
function parts(look) {
  const all = new Map();
  names.params.forEach((path, i) => {
    const part = path.split("/")[0], [norm, , , , own, update] = look.params[i].map(num), sums = all.get(part) || [0, 0, 0];
    all.set(part, [sums[0] + norm ** 2, sums[1] + own ** 2, sums[2] + update ** 2]);
  });
  const largest = Math.max(...[...all.values()].map((sums) => Math.sqrt(sums[0])));
  return [...all].map(([part, sums]) => {
    const [norm, own, update] = sums.map(Math.sqrt);
    return [part, norm, norm / largest, own, update, update / own];
  });
}

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

function oneStep() {
  if (looks.length === 0) return;
  const own = section("One measurement", true);
  const slider = make("input", { type: "range", id: "slider", min: 0, max: looks.length - 1, value: looks.length - 1, step: 1 });
  const title = make("label", { for: "slider" });
  const place = make("div", {});
  own.append(title, slider, place);
  const draw = () => {
    const look = looks[Number(slider.value)];
    title.textContent = `Step ${look.step}, measurement ${Number(slider.value) + 1} of ${looks.length}`;
    slider.setAttribute("aria-valuetext", `step ${look.step}`);
    place.replaceChildren();
    bars(place, "Mean |dL/dz|", look.flow, names.flow);
    bars(place, "|gradient| of each parameter", look.params.map((param) => param[1]), names.params, look.params.map((param) => param[2]));
    const odd = (column, value) => {
      const range = RANGES[column], v = num(value);
      return typeof v === "number" && (!Number.isFinite(v) || (range && v !== 0 && (v < range[0] || v > range[1])));
    };
    const heads = ["parameter", "|gradient|", "mean |g|", "largest |g|", "share of 0", "|parameter|", "|update|", "update / parameter"];
    const rows = names.params.map((path, i) => [path, ...look.params[i], num(look.params[i][5]) / num(look.params[i][4])]);
    if (rows.length > 0) {
      place.append(make("h3", {}, "Parameters"), table(heads, rows, (cell, column) => column > 0 && odd(heads[column], cell)));
    }
    const balance = parts(look), of = ["part", "|gradient|", "of the largest", "|parameter|", "|update|", "update / parameter"];
    if (balance.length > 1) {
      place.append(make("h3", {}, "Parts"), table(of, balance, (cell, column) => column > 0 && odd(of[column], cell)));
    }
    const kinds = [...new Set(names.sites.flatMap((site) => site[1]))], mean = "mean |dL/dz|";
    const sites = names.sites.map(([path, own], i) => [path, ...kinds.map((kind) => (own.includes(kind) ? look.sites[i][own.indexOf(kind)] : ""))]);
    // Behind what is frozen, the gradient must still be one.
    const flows = sites.map((row) => num(row[1 + kinds.indexOf(mean)]));
    const known = kinds.includes(mean) ? flows.filter((flow) => typeof flow === "number") : [];
    if (known.length > 1) {
      kinds.push("of the median");
      sites.forEach((row, i) => row.push(typeof flows[i] === "number" ? flows[i] / median(known) : ""));
    }
    if (sites.length > 0) {
      place.append(make("h3", {}, "Probes"), table(["site", ...kinds], sites, (cell, column) => column > 0 && cell !== "" && odd(kinds[column - 1], cell)));
    }
  };
  slider.addEventListener("input", draw);
  draw();
}

function histograms() {
  const counted = looks.filter((look) => look.histograms);
  if (counted.length === 0) return;
  const own = section("Gradients by magnitude and sign, over time", true);
  const choice = make("select", { id: "parameter", "aria-label": "Parameter" }, ...names.params.map((path, i) => make("option", { value: i }, path)));
  const place = make("div", {});
  own.append(choice, make("p", { class: "note" }, "Positive ones from the largest at the top down to 0 in the middle, then negative ones; a row is a factor of 4, from 2^6 to 2^-30. The brighter, the more."), place);
  const draw = () => {
    const at = Number(choice.value);
    const columns = counted.map((look) => look.histograms[at].slice().reverse());
    const rows = columns[0].length, middle = (rows - 1) / 2;
    const edge = (r) => (r === middle ? "0" : `${r < middle ? "" : "-"}2^${r < middle ? 6 - 2 * r : 6 - 2 * (rows - 1 - r)}`);
    place.replaceChildren();
    heat(place, columns, rows, (v, column) => {
      const all = column.reduce((a, b) => a + b, 0) || 1;
      return v === 0 ? [0, 0, 0] : colour(10 ** (BRIGHTEST + (DECADES / 4) * Math.log10(v / all)));
    }, (c, r) => `step ${counted[c].step}, about ${edge(r)}: ${columns[c][r]} of ${columns[c].reduce((a, b) => a + b, 0)}`, "How many elements of a gradient have each magnitude");
  };
  choice.addEventListener("change", draw);
  draw();
}

function alerts() {
  if (data.alerts.length === 0) return;
  const own = table(["step", "kind", "message"], data.alerts.map(([step, kind, message]) => [String(step), kind, message]));
  own.classList.add("words");
  section("Alerts").append(own);
}

function settings() {
  // The command is the title.
  const all = Object.entries(data.settings).filter(([name]) => name !== "command");
  if (all.length === 0) return;
  const own = table(["name", "value"], all.map(([name, value]) => [name, String(value)]));
  own.classList.add("words");
  section("Settings").append(own);
}

function texts() {
  for (const [name, content] of Object.entries(data.texts)) {
    section(name, true).append(make("details", {}, make("summary", {}, `${content.split("\n").length} lines`), make("pre", { class: "code", tabindex: "0" }, content)));
  }
}

/** Kernels with their share of the time of a step, as bars and numbers. */
function time() {
  const kernels = data.tape ? data.tape.kernels : [];
  if (kernels.length === 0) return;
  const own = section("Where the time of a step goes", true);
  const all = kernels.reduce((sum, kernel) => sum + num(kernel[5]), 0);
  own.append(make("p", { class: "note" }, `${text(all)} ms in kernels, the median of a few steps ${data.tape.moment}. Kernels that do the same are one line.`));
  const share = (kernel) => num(kernel[5]) / all;
  const rows = kernels.map((kernel) => [kernel[0], text(kernel[5]), `${(100 * share(kernel)).toFixed(1)} %`, String(kernel[4]), kernel[1], kernel[2], kernel[3]]);
  const shown = table(["kernel", "ms", "share", "times", "over", "computes", "recorded in"], rows);
  shown.classList.add("time");
  shown.querySelectorAll("tbody tr").forEach((row, i) => row.children[2].style.setProperty("--share", `${100 * share(kernels[i])}%`));
  own.append(shown);
}

function numbers() {
  if (data.count === 0) return;
  const own = section("The numbers", true);
  const details = make("details", { id: "numbers" }, make("summary", {}, "Loss and norm of each update, as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const rows = updates.step.map((step, i) => [String(step), updates.loss.low[i], updates.loss.high[i], updates.norm.low[i], updates.norm.high[i]]);
    const same = updates.stride === 1;
    details.append(same
      ? table(["step", "loss", "norm"], rows.map((row) => [row[0], row[1], row[3]]))
      : table(["from step", "lowest loss", "highest", "lowest norm", "highest"], rows));
  });
  own.append(details);
}

head();
finding();
proof();
losses();
metrics();
norms();
flow();
oneStep();
histograms();
time();
tape();
alerts();
settings();
texts();
numbers();
