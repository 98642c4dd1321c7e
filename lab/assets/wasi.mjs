// node wasi.mjs MODULE ARGUMENT…: runs a program that was compiled to wasm32-wasip1, such as unit tests.
import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const [module, ...rest] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [module, ...rest], env: process.env, returnOnExit: true });
const { instance } = await WebAssembly.instantiate(await readFile(module), wasi.getImportObject());
process.exitCode = wasi.start(instance);
