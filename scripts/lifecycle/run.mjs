// The rounds of scripts/bench lifecycle. In each round everybody takes a turn, so what else the machine does hits all.
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { createRequire } from "node:module";
import { emptied, filled, start, template } from "./daemon.mjs";
import { growth } from "./growth.mjs";
import { memory } from "./memory.mjs";
import { report } from "./report.mjs";
import { bare, hostd, playwright, stages } from "./rivals.mjs";

const [programs, modules, result, runs] = process.argv.slice(2);
const { chromium } = createRequire(path.join(modules, "x.js"))("playwright-core");
const AT_ONCE = 4;
// Made and removed by ./machine.
const folder = process.env.HOSTD_BENCH_INSIDE;
const keep = { log: "" };

try {
  const base = path.join(folder, "a");
  const browser = template(programs, base);
  fs.chmodSync(folder, 0o755);
  const common = { "linux.browserd": path.join(programs, "browserd"), "pool.last_slot": 60 };
  // Two daemons: one makes clones ahead, the other never does.
  const warm = await start(programs, base, { ...common, "pool.size": AT_ONCE, "pool.refill_percent": 100 });
  keep.log = warm.log;
  const cold = await start(programs, path.join(folder, "b"), {
    ...common, "linux.templates": path.join(base, "templates"), "pool.prefix": "coldtask", "pool.interface_prefix": "ct",
    "pool.subnet": "10.88.64.0/22", "pool.uid_base": 62000, "egress.table": "hostd_cold",
  });
  const notes = [];
  const rivals = {
    "hostd warm": hostd(warm.client, chromium, "warm"),
    "hostd cold": hostd(cold.client, chromium, "cold", notes),
    "bare browser": bare(chromium, browser, folder),
    "shell script": bare(chromium, browser, folder, new URL("seed-wrapper", import.meta.url).pathname),
    "Playwright": playwright(chromium, browser),
  };
  const figures = {};
  for (const atOnce of [1, AT_ONCE]) {
    const rounds = Math.max(3, Math.ceil(Number(runs) / atOnce));
    // The first round warms caches and is not counted.
    for (let round = 0; round <= rounds; round++) {
      for (const [name, rival] of Object.entries(rivals)) {
        await filled(warm.client);
        const all = await Promise.all(Array.from({ length: atOnce }, () => stages(rival)));
        if (round > 0) ((figures[name] ??= {})[atOnce] ??= []).push(...all);
        await emptied(cold.client);
      }
    }
  }
  const density = await memory(warm.client, cold.client, () => bare(chromium, browser, folder).create());
  await warm.stop();
  await cold.stop();
  const curve = await growth(programs, path.join(folder, "c"));
  report({
    machine: `${os.cpus().length} processors (${os.cpus()[0].model.trim()}), ${Math.round(os.totalmem() / 2 ** 30)} GiB, Linux ${os.release()}`,
    load: os.loadavg().map((load) => load.toFixed(1)).join(" "),
    browser, runs: Number(runs), figures, cold: notes, density, growth: curve,
  }, result);
} catch (error) {
  console.error(error);
  if (keep.log) console.error(fs.readFileSync(keep.log, "utf8").split("\n").slice(-30).join("\n"));
  process.exitCode = 1;
}
process.exit();
