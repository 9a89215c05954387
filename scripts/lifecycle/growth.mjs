// The cost of calls with many clones on the host.
import fs from "node:fs";
import path from "node:path";
import { sleep, start } from "./daemon.mjs";

const COUNTS = [1, 10, 100, 500];
const MODEL_SAMPLES = 61;
const KERNEL_SAMPLES = 31;
// Inspections are requested explicitly here, so the timer must not add its own.
const CROWD = { "pool.last_slot": 900, "lifecycle.reconcile_interval_ms": 600000 };

const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];
const noTimes = () => ({ create: [], destroy: [], list: [], reap: [], reconcile: [] });
const row = (clones, times) => ({ clones, ...Object.fromEntries(Object.entries(times).map(([call, all]) => [call, median(all)])) });

let requests = 0;

/** Create clones, or destroy the last ones, until there are `count`. */
async function have(client, clones, count) {
  while (clones.length < count) clones.push((await client.create({ request_id: `there-${requests++}`, deadline_seconds: 86400 })).clone);
  for (const { name, clone_id } of clones.splice(count)) await client.destroy({ name, clone_id });
}

/** Measure each kind of call `rounds` times, one kind after the other, so that they do not disturb each other. */
async function sample(client, times, rounds, pause) {
  const timed = async (call, work) => {
    const began = performance.now();
    const result = await work();
    times[call].push(performance.now() - began);
    return result;
  };
  for (let round = 0; round < rounds; round++) {
    await sleep(pause);
    const { clone } = await timed("create", () => client.create({ request_id: `one-${requests++}` }));
    await timed("destroy", () => client.destroy({ name: clone.name, clone_id: clone.clone_id }));
  }
  const others = {
    list: () => client.list(),
    reap: () => client.reap({}),
    // Inspects the whole host and plans, as the timer does, without acting.
    reconcile: () => client.reap({ dry_run: true }),
  };
  for (const [call, work] of Object.entries(others)) {
    for (let round = 0; round < rounds; round++) await timed(call, work);
  }
}

/** hostd alone, on the fake host. There is one daemon per number of clones, and they take turns, so that other load affects
 * all of them alike. */
export async function growthOfModel(programs, folder) {
  const daemons = [];
  for (const count of COUNTS) {
    const home = path.join(folder, String(count));
    fs.mkdirSync(`${home}/state/fake-world`, { recursive: true });
    fs.writeFileSync(`${home}/state/fake-world/in_memory`, "");
    const { client, stop } = await start(programs, home, { ...CROWD, "host.driver": "fake" });
    await have(client, [], count);
    daemons.push({ count, client, stop, times: noTimes() });
  }
  for (let round = 0; round < MODEL_SAMPLES; round++) {
    for (const { client, times } of daemons) await sample(client, times, 1, 5);
  }
  await Promise.all(daemons.map(({ stop }) => stop()));
  return daemons.map(({ count, times }) => row(count, times));
}

/** hostd and the kernel, with a fake browserd, because that many browsers do not fit. There is one kernel, so the numbers of
 * clones are measured one after the other, first ascending and then descending. */
export async function growthOnKernel(programs, folder, settings) {
  const { client, stop } = await start(programs, folder, { ...settings, ...CROWD });
  const clones = [];
  const times = new Map(COUNTS.map((count) => [count, noTimes()]));
  for (const count of [...COUNTS, ...COUNTS.toReversed().slice(1)]) {
    await have(client, clones, count);
    // Let the kernel finish earlier teardowns. The first samples warm caches and are not counted.
    await sleep(2000);
    await sample(client, noTimes(), 3, 20);
    await sample(client, times.get(count), KERNEL_SAMPLES, 20);
  }
  await have(client, clones, 0);
  await stop();
  return COUNTS.map((count) => row(count, times.get(count)));
}
