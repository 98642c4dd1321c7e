// node run.mjs MODULE BODY…: how fast the module scans each body, in GB/s, by V8, which is also the proxy's engine.
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { performance } from "node:perf_hooks";

const ROUNDS = 9;
const ROUND_MS = 150;

const [module, ...bodies] = process.argv.slice(2);
const { instance } = await WebAssembly.instantiate(readFileSync(module), {});
const { memory, room, scan } = instance.exports;

for (const path of bodies) {
  const body = readFileSync(path);
  const place = room(body.length);
  new Uint8Array(memory.buffer).set(body, place);
  const round = () => {
    const begin = performance.now();
    let scans = 0;
    let elapsed = 0;
    do {
      // Looking at the clock is not to be what is measured.
      for (let more = Math.ceil(1e6 / body.length); more > 0; more--, scans++) {
        if (scan(place, body.length) !== body.length) throw new Error(`${path} was not read as JSON`);
      }
      elapsed = performance.now() - begin;
    } while (elapsed < ROUND_MS);
    return (scans * body.length) / elapsed / 1e6;
  };
  // The engine compiles in earnest what it has run for a while.
  for (let warm = 0; warm < 3; warm++) round();
  const rates = Array.from({ length: ROUNDS }, round).sort((a, b) => a - b);
  const [low, middle, high] = [rates[0], rates[ROUNDS >> 1], rates[ROUNDS - 1]].map((rate) => rate.toFixed(3));
  console.log(`scan_wasm/${basename(path).padEnd(16)} ${middle} GB/s  [${low} ${high}]`);
}
