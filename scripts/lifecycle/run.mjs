// The rounds of scripts/bench lifecycle. In each round every candidate runs once, so other load affects all of them.
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { createRequire } from "node:module";
import { emptied, filled, sleep, start, template } from "./daemon.mjs";
import { growthOfModel, growthOnKernel } from "./growth.mjs";
import { memory } from "./memory.mjs";
import { report } from "./report.mjs";
import { bare, floor, hostd, playwright, stages } from "./rivals.mjs";
import { waterfall } from "./spans.mjs";

const [programs, modules, result, runs, primitives] = process.argv.slice(2);
const { chromium } = createRequire(path.join(modules, "x.js"))("playwright-core");
const AT_ONCE = 4;
/** The number of cold creates for the waterfall. */
const PROFILED = 15;
// Created and removed by ./machine.
const folder = process.env.HOSTD_BENCH_INSIDE;
const keep = { log: "" };

/** Ticks of all processors since the boot, and the stolen ones among them. */
function ticks() {
  const [, ...fields] = fs.readFileSync("/proc/stat", "utf8").split("\n")[0].split(/\s+/).map(Number);
  return { all: fields.slice(0, 8).reduce((sum, each) => sum + each), stolen: fields[7] };
}

try {
  const base = path.join(folder, "a");
  const browser = template(programs, base);
  fs.chmodSync(folder, 0o755);
  const common = { "linux.browserd": path.join(programs, "browserd"), "pool.last_slot": 60 };
  const coldSettings = {
    ...common, "linux.templates": path.join(base, "templates"), "pool.prefix": "coldtask", "pool.interface_prefix": "ct",
    "pool.subnet": "10.88.64.0/22", "pool.uid_base": 62000, "egress.table": "hostd_cold",
  };
  // Two daemons: one with a warm pool, one without.
  const warm = await start(programs, base, { ...common, "pool.size": AT_ONCE, "pool.refill_percent": 100 });
  keep.log = warm.log;
  const cold = await start(programs, path.join(folder, "b"), coldSettings);
  const bareBrowser = bare(chromium, browser, folder);
  const rivals = {
    "hostd warm": hostd(warm.client, chromium, "warm"),
    "warm, no wait": hostd(warm.client, chromium, "warm", false),
    "hostd cold": hostd(cold.client, chromium, "cold"),
    "bare browser": bareBrowser,
    "shell script": bare(chromium, browser, folder, new URL("seed-wrapper", import.meta.url).pathname),
    "Playwright": playwright(chromium, browser),
  };
  const load = os.loadavg().map((each) => each.toFixed(1)).join(" ");
  const figures = {};
  const floors = [];
  const before = ticks();
  for (const atOnce of [1, AT_ONCE]) {
    const rounds = Math.max(3, Math.ceil(Number(runs) / atOnce));
    // The first round warms caches and is not counted.
    for (let round = 0; round <= rounds; round++) {
      for (const [name, rival] of Object.entries(rivals)) {
        await filled(warm.client);
        // Let the kernel finish the previous candidate's teardown (memory, namespaces).
        await sleep(200);
        const all = await Promise.all(Array.from({ length: atOnce }, () => stages(rival)));
        if (round > 0) ((figures[name] ??= {})[atOnce] ??= []).push(...all);
        await emptied(cold.client);
        await emptied(warm.client);
      }
      if (atOnce === 1 && round > 0) {
        await sleep(200);
        floors.push(await floor(bareBrowser));
      }
    }
  }
  const after = ticks();
  const claims = JSON.parse(execFileSync(process.execPath, [new URL("claims.mjs", import.meta.url).pathname, path.join(base, "run/sock"), runs]));
  const density = await memory(warm.client, cold.client, chromium, () => bareBrowser.create());
  await warm.stop();
  await cold.stop();
  const profiled = await start(programs, path.join(folder, "d"), { ...coldSettings, "log.format": "json", "log.filter": "warn,hostd::time=debug" });
  for (let round = 0; round < PROFILED; round++) {
    const { clone } = await profiled.client.create({ request_id: `profiled-${round}` });
    await profiled.client.destroy({ name: clone.name, clone_id: clone.clone_id });
  }
  await profiled.stop();
  const waterfalls = { create: waterfall(profiled.log, "create"), destroy: waterfall(profiled.log, "destroy") };
  const noBrowser = path.join(folder, "no-browser");
  fs.copyFileSync(new URL("no-browser", import.meta.url), noBrowser);
  const growth = {
    kernel: await growthOnKernel(programs, path.join(folder, "e"), { ...coldSettings, "linux.browserd": noBrowser }),
    model: await growthOfModel(programs, path.join(folder, "c")),
  };
  report({
    machine: `${os.cpus().length} processors (${os.cpus()[0].model.trim()}), ${Math.round(os.totalmem() / 2 ** 30)} GiB, Linux ${os.release()}`,
    load, stolen_percent: (after.stolen - before.stolen) / (after.all - before.all) * 100, browser, runs: Number(runs), figures, floors, claims, waterfalls, density, growth,
    primitives: JSON.parse(fs.readFileSync(primitives, "utf8")).rows,
  }, result);
} catch (error) {
  console.error(error);
  if (keep.log) console.error(fs.readFileSync(keep.log, "utf8").split("\n").slice(-30).join("\n"));
  process.exitCode = 1;
}
process.exit();
