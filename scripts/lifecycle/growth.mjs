// What calls cost with many clones on the host: on the fake host, so that hostd itself is what is measured.
import fs from "node:fs";
import { start } from "./daemon.mjs";

const COUNTS = [1, 10, 100, 500];
const SAMPLES = 15;

const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];

async function timed(work) {
  const began = performance.now();
  await work();
  return performance.now() - began;
}

export async function growth(programs, folder) {
  fs.mkdirSync(`${folder}/state/fake-world`, { recursive: true });
  fs.writeFileSync(`${folder}/state/fake-world/in_memory`, "");
  const { client, stop } = await start(programs, folder, {
    "host.driver": "fake", "pool.last_slot": 900, "lifecycle.reconcile_interval_ms": 600000,
  });
  const curve = [];
  let there = 0;
  for (const count of COUNTS) {
    for (; there < count; there++) await client.create({ request_id: `there-${there}`, deadline_seconds: 86400 });
    const samples = { create: [], list: [], reap: [] };
    for (let sample = 0; sample < SAMPLES; sample++) {
      let made;
      samples.create.push(await timed(async () => { made = await client.create({ request_id: `one-${count}-${sample}` }); }));
      await client.destroy({ name: made.clone.name, clone_id: made.clone.clone_id });
      samples.list.push(await timed(() => client.list()));
      // A reap looks at the whole host and compares: that is a reconcile.
      samples.reap.push(await timed(() => client.reap({ dry_run: true })));
    }
    curve.push({ clones: count, create_ms: median(samples.create), list_ms: median(samples.list), reconcile_ms: median(samples.reap) });
  }
  await stop();
  return curve;
}
