// What calls cost with many clones on the host: on the fake host, so that hostd itself is what is measured. There is a daemon
// for every number of clones, and they take turns, so that what else the machine does hits all alike.
import fs from "node:fs";
import path from "node:path";
import { sleep, start } from "./daemon.mjs";

const COUNTS = [1, 10, 100, 500];
const SAMPLES = 61;

const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];

/** A daemon of its own with so many clones. */
async function crowded(programs, folder, clones) {
  fs.mkdirSync(`${folder}/state/fake-world`, { recursive: true });
  fs.writeFileSync(`${folder}/state/fake-world/in_memory`, "");
  // The timer's own looks are asked for here, so they shall not fall into something else's time.
  const { client, stop } = await start(programs, folder, {
    "host.driver": "fake", "pool.last_slot": 900, "lifecycle.reconcile_interval_ms": 600000,
  });
  for (let there = 0; there < clones; there++) await client.create({ request_id: `there-${there}`, deadline_seconds: 86400 });
  return { clones, client, stop, times: { create: [], destroy: [], list: [], reap: [], reconcile: [] } };
}

async function sample({ client, times }, round) {
  const timed = async (call, work) => {
    const began = performance.now();
    const result = await work();
    times[call].push(performance.now() - began);
    return result;
  };
  const { clone } = await timed("create", () => client.create({ request_id: `one-${round}` }));
  await timed("destroy", () => client.destroy({ name: clone.name, clone_id: clone.clone_id }));
  await timed("list", () => client.list());
  await timed("reap", () => client.reap({}));
  // Looks at the whole host and compares, as the timer does, and does nothing.
  await timed("reconcile", () => client.reap({ dry_run: true }));
}

export async function growth(programs, folder) {
  const daemons = [];
  for (const count of COUNTS) daemons.push(await crowded(programs, path.join(folder, String(count)), count));
  for (let round = 0; round < SAMPLES; round++) {
    for (const daemon of daemons) {
      await sleep(5);
      await sample(daemon, round);
    }
  }
  await Promise.all(daemons.map(({ stop }) => stop()));
  return daemons.map(({ clones, times }) => ({
    clones, ...Object.fromEntries(Object.entries(times).map(([call, all]) => [call, median(all)])),
  }));
}
