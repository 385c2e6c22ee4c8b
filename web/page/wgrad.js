// The program, as the page uses it. What may wait is called through `promising`, one call after another.

import init, * as program from "./wgrad_web.js";
import { canWait } from "./pause.js";

const raw = await init();
const may = (name) => (canWait ? WebAssembly.promising(raw[name]) : raw[name]);
const [open, steps] = [may("open"), may("steps")];

let last = Promise.resolve();
function inTurn(call) {
  const next = last.then(call);
  last = next.catch(() => {});
  return next;
}

// Why there is no WebGPU, or null.
export async function whyNoGpu() {
  if (!navigator.gpu) return "This browser has no WebGPU";
  if (!canWait) return "This browser has WebGPU, but not JavaScript Promise Integration, which wgrad waits by";
  const adapter = await navigator.gpu.requestAdapter().catch(() => null);
  return adapter ? null : "This browser has WebGPU, but no adapter";
}

export class Run {
  static async open(onGpu, cured, seed) {
    const number = await inTurn(() => open(onGpu, cured, seed));
    if (number < 0) throw new Error(program.message());
    return new Run(number);
  }
  constructor(number) {
    this.number = number;
  }
  async steps(count) {
    if (!(await inTurn(() => steps(this.number, count)))) throw new Error(program.message());
  }
  get losses() {
    return program.losses(this.number);
  }
  get norms() {
    return program.norms(this.number);
  }
  get flow() {
    return program.flow(this.number);
  }
  get device() {
    return program.device(this.number);
  }
}

export const close = () => inTurn(() => program.close());
