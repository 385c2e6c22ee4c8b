// Lets the browser go on while a program waits for WebGPU: the program's stack is put aside (JavaScript Promise Integration).

export const canWait = typeof WebAssembly.Suspending === "function" && typeof WebAssembly.promising === "function";

const channel = new MessageChannel();
const waiting = [];
channel.port1.onmessage = () => waiting.shift()();

// As soon as the browser has nothing else to do; timers would wait for milliseconds.
const later = () =>
  new Promise((resolve) => {
    waiting.push(resolve);
    channel.port2.postMessage(0);
  });

export const pause = canWait
  ? new WebAssembly.Suspending(later)
  : () => {
      throw new Error("this browser cannot put a program aside (JavaScript Promise Integration)");
    };
