// Memory of a clone compared with the bare browser, and how many idle and active clones fit: proportional set sizes and
// processor time of all processes in this PID namespace.
import fs from "node:fs";
import { emptied, filled, sleep } from "./daemon.mjs";
import { PAGE, end } from "./rivals.mjs";

const CLONES = 4;
const LOADS = 5;
/** `sysconf(_SC_CLK_TCK)`, which is 100 on every Linux architecture in use. */
const TICKS = 100;

/** The sum of a value over all processes. */
function total(read) {
  const pids = fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid);
  return pids.reduce((sum, pid) => {
    try {
      return sum + read(`/proc/${pid}`);
    } catch {
      // The process ended in the meantime.
      return sum;
    }
  }, 0);
}

const mebibytes = () => total((folder) => Number(fs.readFileSync(`${folder}/smaps_rollup`, "utf8").match(/^Pss:\s+(\d+)/m)[1])) / 1024;

const processorMs = () => total((folder) => {
  const fields = fs.readFileSync(`${folder}/stat`, "utf8").split(") ").at(-1).split(" ");
  return Number(fields[11]) + Number(fields[12]);
}) * (1000 / TICKS);

/** The memory that each object made by `make` adds, averaged over a few. */
async function each(make) {
  await sleep(500);
  const before = mebibytes();
  const made = [];
  for (let count = 0; count < CLONES; count++) made.push(await make(count));
  await sleep(500);
  return [(mebibytes() - before) / CLONES, made];
}

export async function memory(warm, cold, chromium, startBare) {
  await filled(warm);
  const [bare, browsers] = await each(startBare);
  await Promise.all(browsers.map(end));
  let before = mebibytes();
  const [clone, clones] = await each(async (count) => (await cold.create({ request_id: `memory-${process.pid}-${count}` })).clone);
  const pages = [];
  for (const { cdp_endpoint } of clones) {
    const browser = await chromium.connectOverCDP(cdp_endpoint);
    pages.push(browser.contexts()[0].pages()[0]);
    await pages.at(-1).goto(PAGE);
  }
  const began = processorMs();
  for (let load = 0; load < LOADS; load++) await Promise.all(pages.map((page) => page.goto(PAGE)));
  const load = (processorMs() - began) / (LOADS * CLONES);
  const active = (mebibytes() - before) / CLONES;
  for (const { name, clone_id } of clones) await cold.destroy({ name, clone_id });
  await emptied(cold);
  const available = Number(fs.readFileSync("/proc/meminfo", "utf8").match(/MemAvailable:\s+(\d+)/)[1]) / 1024;
  return {
    bare_mib: bare, clone_mib: clone, active_mib: active, available_mib: available,
    idle_clones_that_fit: Math.floor(available / clone), active_clones_that_fit: Math.floor(available / active), load_processor_ms: load,
  };
}
