// What calls cost with many clones on the host: on the fake host, so that hostd itself is what is measured.
import fs from "node:fs";
import { sleep, start } from "./daemon.mjs";

const COUNTS = [1, 10, 100, 500];
const SAMPLES = 41;

const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];

async function timed(times, work) {
  const began = performance.now();
  const result = await work();
  times.push(performance.now() - began);
  return result;
}

export async function growth(programs, folder) {
  fs.mkdirSync(`${folder}/state/fake-world`, { recursive: true });
  fs.writeFileSync(`${folder}/state/fake-world/in_memory`, "");
  // The timer's own looks are asked for here, so they shall not fall into something else's time.
  const { client, stop } = await start(programs, folder, {
    "host.driver": "fake", "pool.last_slot": 900, "lifecycle.reconcile_interval_ms": 600000,
  });
  const curve = [];
  let there = 0;
  for (const count of COUNTS) {
    for (; there < count; there++) await client.create({ request_id: `there-${there}`, deadline_seconds: 86400 });
    await sleep(200);
    const samples = { create: [], destroy: [], list: [], reap: [], reconcile: [] };
    for (let sample = 0; sample < SAMPLES; sample++) {
      const { clone } = await timed(samples.create, () => client.create({ request_id: `one-${count}-${sample}` }));
      await timed(samples.destroy, () => client.destroy({ name: clone.name, clone_id: clone.clone_id }));
    }
    for (let sample = 0; sample < SAMPLES; sample++) {
      await timed(samples.list, () => client.list());
      await timed(samples.reap, () => client.reap({}));
      // Looks at the whole host and compares, as the timer does, and does nothing.
      await timed(samples.reconcile, () => client.reap({ dry_run: true }));
    }
    curve.push({ clones: count, ...Object.fromEntries(Object.entries(samples).map(([call, times]) => [call, median(times)])) });
  }
  await stop();
  return curve;
}
