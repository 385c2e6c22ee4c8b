// The page: two runs, a few steps of each at a time, drawn as they go.

import { Run, close, whyNoGpu } from "./wgrad.js";
import { draw } from "./chart.js";

const STEPS = 400;
const AT_A_TIME = 4;

const by = (id) => document.getElementById(id);
const [form, device, seed, button, status, summary] = ["controls", "device", "seed", "run", "status", "summary"].map(by);

function say(text, wrong = false) {
  status.textContent = text;
  status.classList.toggle("wrong", wrong);
}

// The number of the training that is wanted: another one, or none, ends the one at work.
let wanted = 0;

async function train(mine) {
  const [onGpu, from] = [device.value === "gpu", Math.max(0, Math.floor(Number(seed.value) || 0))];
  say(onGpu ? "Compiling kernels." : "Recording both runs.");
  await close();
  const [plain, cured] = [await Run.open(onGpu, false, from), await Run.open(onGpu, true, from)];
  const start = performance.now();
  for (let made = 0; made < STEPS && mine === wanted; made += AT_A_TIME) {
    for (const run of [plain, cured]) await run.steps(AT_A_TIME);
    show(plain, cured, made + AT_A_TIME, (performance.now() - start) / 1e3);
    await new Promise(requestAnimationFrame);
  }
}

function show(plain, cured, made, seconds) {
  const lines = (of) => [{ name: "plain", values: of(plain) }, { name: "cured", values: of(cured) }];
  draw(by("loss"), lines((run) => run.losses), "step", STEPS);
  draw(by("flow"), lines((run) => run.flow), "time step");
  say(`Step ${made} of ${STEPS}, ${(made / seconds).toFixed(0)} steps of each a second, on ${plain.device}.`);
  const most = (run) => run.norms.reduce((most, norm) => (norm > most || Number.isNaN(norm) ? norm : most), 0);
  summary.textContent =
    `The largest norm of a gradient so far: ${most(plain).toPrecision(3)} without the cure, ` +
    `${most(cured).toPrecision(3)} with it, before it is clipped.`;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (button.textContent === "Stop") {
    wanted += 1;
    return;
  }
  const mine = ++wanted;
  button.textContent = "Stop";
  device.disabled = seed.disabled = true;
  try {
    await train(mine);
  } catch (error) {
    say(`It failed: ${error.message ?? error}`, true);
  }
  button.textContent = "Train";
  device.disabled = seed.disabled = false;
});

const why = await whyNoGpu();
if (why) {
  device.querySelector("[value=gpu]").disabled = true;
  device.value = "cpu";
  say(`${why}: the CPU trains.`);
} else {
  say("Ready.");
}
document.documentElement.dataset.ready = "true";
