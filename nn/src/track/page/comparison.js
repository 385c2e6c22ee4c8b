// The sections of a page of two runs, from the numbers of the element `data`.
const data = JSON.parse(document.getElementById("data").textContent);
const KEYS = ["one", "two"];

function summary() {
  document.getElementById("state").textContent = data.changes.length > 0 ? `${data.runs[1].name}, beside ${data.runs[0].name}: ${data.changes.join("; ")}.` : "";
  const own = section("Side by side", true);
  const shown = table(["", ...data.runs.map((run) => run.name)], data.rows.map(([what, cells]) => [what, ...cells]));
  shown.id = "rows";
  own.append(shown);
}

function lines(of) {
  return data.runs.map((run, i) => ({ name: run.name, key: KEYS[i], ...of(run) })).filter((line) => line.steps && line.steps.length > 0);
}

function charts() {
  const updates = (name) => lines((run) => ({ steps: run.updates.step, ...run.updates[name] }));
  chart(section("Loss"), updates("loss"), { label: "The loss of each run" });
  chart(section("Norm of the gradient, before clipping"), updates("norm"), { log: true, label: "The global norm of gradients" });
  const names = new Set(data.runs.flatMap((run) => Object.keys(run.values)));
  for (const name of names) {
    const points = lines((run) => ({ steps: (run.values[name] || []).map((p) => p[0]), low: (run.values[name] || []).map((p) => p[1]) }));
    if (points.some((line) => line.steps.length > 1)) chart(section(name), points, { label: `${name} of each run` });
  }
}

function flows() {
  const runs = data.runs.filter((run) => run.rows.length > 0 && run.flow.length > 0);
  if (runs.length === 0) return;
  const own = section("Flow: mean |dL/dz|, layer by layer", true);
  own.append(make("p", { class: "note" }, "From the first layer (or time step) at the top to the last; steps from left to right. Black is 0, red is not finite."));
  for (const run of runs) {
    own.append(make("h3", {}, run.name));
    heat(own, run.flow.map((look) => look.flow), run.rows.length, colour,
      (c, r) => `step ${run.flow[c].step}, ${run.rows[r]}: ${text(run.flow[c].flow[r])}`, `The flow of gradients of ${run.name}`);
  }
  own.append(scale());
  const slider = make("input", { type: "range", id: "slider", min: 0, max: 1000, value: 1000, step: 1 });
  const title = make("label", { for: "slider" }), place = make("div", {});
  own.append(title, slider, place);
  const draw = () => {
    place.replaceChildren();
    // Each run at the same share of its measurements.
    const said = runs.map((run) => {
      const look = run.flow[Math.round((Number(slider.value) / 1000) * (run.flow.length - 1))];
      bars(place, `Mean |dL/dz| of ${run.name}, step ${look.step}`, look.flow, run.rows);
      return `step ${look.step} of ${run.name}`;
    });
    title.textContent = said.join(", ");
    slider.setAttribute("aria-valuetext", title.textContent);
  };
  slider.addEventListener("input", draw);
  draw();
}

function findings() {
  for (const run of data.runs.filter((run) => run.finding)) section(`The finding: ${run.name}`).append(make("pre", {}, run.finding));
}

function settings() {
  const [a, b] = data.runs.map((run) => run.settings);
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])];
  const said = (v) => (v === undefined ? "" : String(v));
  const rows = names.map((name) => [name, said(a[name]), said(b[name])]);
  const own = table(["name", ...data.runs.map((run) => run.name)], rows, (cell, column, row) => column > 0 && row[1] !== row[2]);
  own.classList.add("words");
  section("Settings", true).append(own);
}

summary();
charts();
flows();
findings();
settings();
