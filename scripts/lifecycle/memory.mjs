// Memory of a clone above the bare browser, and how many fit: proportional set sizes of all processes here.
import fs from "node:fs";
import { emptied, filled, sleep } from "./daemon.mjs";

const CLONES = 4;

function total() {
  let kilobytes = 0;
  for (const pid of fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const text = fs.readFileSync(`/proc/${pid}/smaps_rollup`, "utf8");
      kilobytes += Number(text.match(/^Pss:\s+(\d+)/m)?.[1] ?? 0);
    } catch {
      // One that ended meanwhile has none.
    }
  }
  return kilobytes / 1024;
}

/** What `make` adds to the memory of this machine, for each of a few. */
async function each(make) {
  await sleep(500);
  const before = total();
  const made = [];
  for (let count = 0; count < CLONES; count++) made.push(await make(count));
  await sleep(500);
  return [(total() - before) / CLONES, made];
}

export async function memory(warm, cold, startBare) {
  await filled(warm);
  const [bare, browsers] = await each(startBare);
  for (const { child, profile } of browsers) {
    process.kill(-child.pid, "SIGKILL");
    fs.rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 5 });
  }
  const [clone, clones] = await each((count) => cold.create({ request_id: `memory-${process.pid}-${count}` }));
  for (const { clone } of clones) await cold.destroy({ name: clone.name, clone_id: clone.clone_id });
  await emptied(cold);
  const available = Number(fs.readFileSync("/proc/meminfo", "utf8").match(/MemAvailable:\s+(\d+)/)[1]) / 1024;
  return { bare_mib: bare, clone_mib: clone, available_mib: available, idle_clones_that_fit: Math.floor(available / clone) };
}
