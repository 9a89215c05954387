// The client against the real daemon with its fake host. HOSTD_SOCKET names the daemon's socket; the host may have
// four clones. `cargo test -p hostd --test node` starts both.

import assert from "node:assert/strict";
import { before, test } from "node:test";
import { connect, HostdError, retry } from "./hostd.mjs";

assert.ok(process.env.HOSTD_SOCKET, "HOSTD_SOCKET must name the daemon's socket");

const code = (wanted) => (error) => {
  assert.ok(error instanceof HostdError, String(error));
  assert.equal(error.code, wanted);
  return true;
};

async function client(t) {
  const hostd = await connect({ timeoutMs: 60_000 });
  t.after(() => hostd.close());
  return hostd;
}

// Creates are refused before the first inspection of the host; a dry run triggers it.
before(async () => {
  const hostd = await connect();
  await hostd.reap({ dry_run: true });
  hostd.close();
});

const destroy = (hostd, { name, clone_id }) => hostd.destroy({ name, clone_id });

test("discover returns the contract, and the client has every method of it", async (t) => {
  const hostd = await client(t);
  const document = await hostd.discover();
  const sent = [];
  hostd.call = async (method) => void sent.push(method);
  for (const method of ["create", "destroy", "reap", "forceUnmount", "list", "status", "discover"]) {
    await hostd[method]({});
  }
  assert.deepEqual(sent, document.methods.map(({ name }) => name));
});

test("a clone from create to destroy, with progress", async (t) => {
  const hostd = await client(t);
  const steps = [];
  const { clone, renewed } = await hostd.create(
    { request_id: "js-1", tenant: "js", deadline_seconds: 600 },
    { onProgress: (progress) => steps.push(progress) },
  );
  assert.equal(renewed, false);
  assert.equal(clone.state, "ready");
  assert.match(clone.clone_id, /^[0-9a-f]{32}$/);
  assert.ok(clone.deadline_seconds_left > 590);
  const done = steps.filter(({ state }) => state === "done").map(({ step }) => step);
  assert.deepEqual(done, ["storage", "limits", "network", "egress", "jail", "service"]);
  assert.ok(steps.every(({ name, seconds }) => name === clone.name && seconds >= 0));

  const again = await hostd.create({ request_id: "js-1", tenant: "js", deadline_seconds: 1200 });
  assert.equal(again.renewed, true);
  assert.equal(again.clone.clone_id, clone.clone_id);
  assert.ok(again.clone.deadline_seconds_left > 1190);

  const { clones } = await hostd.list({ tenant: "js" });
  assert.deepEqual(clones.map(({ name }) => name), [clone.name]);
  assert.equal((await hostd.status()).clones.ready >= 1, true);
  const plan = await hostd.reap({ dry_run: true });
  assert.equal(plan.dry_run, true);
  assert.ok(plan.kept.some(({ name }) => name === clone.name));

  assert.equal((await destroy(hostd, clone)).already_gone, false);
  const repeated = await hostd.destroy({ name: clone.name, clone_id: clone.clone_id, wait: false });
  assert.deepEqual([repeated.already_gone, repeated.complete], [true, true]);
  assert.deepEqual((await hostd.list({ tenant: "js" })).clones.filter(({ state }) => state === "ready"), []);
});

test("errors are typed", async (t) => {
  const hostd = await client(t);
  const { clone } = await hostd.create({ request_id: "js-2" });
  await assert.rejects(hostd.destroy({ name: clone.name, clone_id: "0".repeat(32) }), code("wrong_clone"));
  await assert.rejects(hostd.forceUnmount({ name: clone.name, clone_id: clone.clone_id }), code("not_destroying"));
  await assert.rejects(hostd.create({ request_id: "js-2", tenant: "other" }), code("request_conflict"));
  await assert.rejects(hostd.create({ request_id: "js 2" }), code("invalid_params"));
  await assert.rejects(hostd.create({ request_id: "a", naem: "x" }), code("invalid_params"));
  await assert.rejects(hostd.call("browser-clone-pause"), code("method_not_found"));
  const error = await hostd.destroy({ name: clone.name, clone_id: "0".repeat(32) }).catch((error) => error);
  assert.equal(error.number, -32011);
  assert.equal(error.retryable, false);
  assert.equal(error.clone, clone.name);
  assert.ok(error.hint.length > 0);
  await destroy(hostd, clone);
});

test("one connection carries concurrent calls, and a full host is retryable", async (t) => {
  const hostd = await client(t);
  const made = await Promise.all([1, 2, 3, 4].map((n) => hostd.create({ request_id: `many-${n}` })));
  assert.equal(new Set(made.map(({ clone }) => clone.name)).size, 4);
  await assert.rejects(hostd.create({ request_id: "many-5" }), code("host_full"));

  // A clone is destroyed between two attempts.
  let tries = 0;
  const fifth = retry(
    async () => {
      if (++tries === 2) await destroy(hostd, made[0].clone);
      return hostd.create({ request_id: "many-5" });
    },
    { attempts: 50, firstDelayMs: 10, longestDelayMs: 200 },
  );
  const { clone } = await fifth;
  assert.ok(tries >= 2);
  await Promise.all([clone, ...made.slice(1).map(({ clone }) => clone)].map((clone) => destroy(hostd, clone)));
});

test("concurrent creates with the same request_id return one clone", async (t) => {
  const [one, two] = [await client(t), await client(t)];
  const [a, b] = await Promise.all([one, two].map((hostd) => hostd.create({ request_id: "twins" })));
  assert.equal(a.clone.clone_id, b.clone.clone_id);
  await destroy(one, a.clone);
});

test("an aborted call does not stop the operation", async (t) => {
  const hostd = await client(t);
  const controller = new AbortController();
  const call = hostd.create(
    { request_id: "aborted" },
    { signal: controller.signal, onProgress: () => controller.abort() },
  );
  await assert.rejects(call, { name: "AbortError" });
  const { clone } = await retry(() => hostd.create({ request_id: "aborted" }));
  assert.equal(clone.state, "ready");
  await destroy(hostd, clone);
});
