// What calls cost with many clones on the host.
import fs from "node:fs";
import path from "node:path";
import { sleep, start } from "./daemon.mjs";

const COUNTS = [1, 10, 100, 500];
const MODEL_SAMPLES = 61;
const KERNEL_SAMPLES = 31;
// The timer's own looks are asked for here, so they shall not fall into something else's time.
const CROWD = { "pool.last_slot": 900, "lifecycle.reconcile_interval_ms": 600000 };

const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];
const noTimes = () => ({ create: [], destroy: [], list: [], reap: [], reconcile: [] });
const row = (clones, times) => ({ clones, ...Object.fromEntries(Object.entries(times).map(([call, all]) => [call, median(all)])) });

let requests = 0;

/** Create clones, or destroy the last of these, until there are so many. */
async function have(client, clones, count) {
  while (clones.length < count) clones.push((await client.create({ request_id: `there-${requests++}`, deadline_seconds: 86400 })).clone);
  for (const { name, clone_id } of clones.splice(count)) await client.destroy({ name, clone_id });
}

/** Each call so often, one kind after the other: what one wakes shall not be in another's way. */
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
    // Looks at the whole host and compares, as the timer does, and does nothing.
    reconcile: () => client.reap({ dry_run: true }),
  };
  for (const [call, work] of Object.entries(others)) {
    for (let round = 0; round < rounds; round++) await timed(call, work);
  }
}

/** hostd itself, on the fake host. There is a daemon for every number of clones, and they take turns, so that what else the
 * machine does hits all alike. */
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

/** The whole of it: the kernel's part too, with a stand-in for browserd, because so many browsers do not fit. There is one
 * kernel, so the numbers of clones come one after the other; the small ones before the large ones and after them again. */
export async function growthOnKernel(programs, folder, settings) {
  const { client, stop } = await start(programs, folder, { ...settings, ...CROWD });
  const clones = [];
  const times = new Map(COUNTS.map((count) => [count, noTimes()]));
  for (const count of [...COUNTS, ...COUNTS.toReversed().slice(1)]) {
    await have(client, clones, count);
    // The kernel ends what is left of others, and the first ones warm caches and are not counted.
    await sleep(2000);
    await sample(client, noTimes(), 3, 20);
    await sample(client, times.get(count), KERNEL_SAMPLES, 20);
  }
  await have(client, clones, 0);
  await stop();
  return COUNTS.map((count) => row(count, times.get(count)));
}
