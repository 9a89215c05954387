// The client against a scripted server.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { connect, Hostd, HostdError, retry } from "./hostd.mjs";

/** A server whose answer to each request is a function of the request and the socket. */
async function scripted(t, script) {
  const folder = mkdtempSync(join(tmpdir(), "hostd-js-"));
  const path = join(folder, "hostd.sock");
  const sockets = new Set();
  const requests = [];
  const server = net.createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    script.connected?.(socket);
    let rest = "";
    socket.setEncoding("utf8");
    socket.on("data", (text) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const request = JSON.parse(line);
        requests.push(request);
        script.request?.(request, socket, requests.length);
      }
    });
  });
  await new Promise((resolve) => server.listen(path, resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
    rmSync(folder, { recursive: true, force: true });
  });
  return { path, requests, sockets };
}

const send = (socket, message) => socket.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
const isHostdError = (code) => (error) => error instanceof HostdError && error.code === code;

test("answers are matched by id in any order", async (t) => {
  const waiting = [];
  const { path } = await scripted(t, {
    request(request, socket) {
      waiting.push(request);
      if (waiting.length === 3) {
        for (const { id, params } of waiting.reverse()) send(socket, { id, result: { echo: params.n } });
      }
    },
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  const answers = await Promise.all([1, 2, 3].map((n) => hostd.call("x", { n })));
  assert.deepEqual(answers, [{ echo: 1 }, { echo: 2 }, { echo: 3 }]);
});

test("requests are JSON-RPC 2.0, one per line, with the method's name", async (t) => {
  const { path, requests } = await scripted(t, {
    request: ({ id }, socket) => send(socket, { id, result: {} }),
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  await hostd.create({ request_id: "line\nend" });
  await hostd.destroy({ name: "n", clone_id: "c" });
  await hostd.reap();
  await hostd.forceUnmount({ name: "n", clone_id: "c" });
  await hostd.list();
  await hostd.status();
  await hostd.discover();
  assert.deepEqual(requests[0], {
    jsonrpc: "2.0",
    id: 1,
    method: "browser-clone-create",
    params: { request_id: "line\nend" },
  });
  assert.deepEqual(
    requests.map(({ method }) => method),
    [
      "browser-clone-create",
      "browser-clone-destroy",
      "browser-clone-reap",
      "browser-clone-force-unmount",
      "browser-clone-list",
      "host-status",
      "rpc.discover",
    ],
  );
});

test("lines may be split anywhere, even inside a character, and arrive together", async (t) => {
  const { path } = await scripted(t, {
    request({ id, method }, socket) {
      const line = Buffer.from(`${JSON.stringify({ jsonrpc: "2.0", id, result: { text: "ä€😀" } })}\n`);
      if (method === "pieces") {
        let at = 0;
        const next = () => {
          socket.write(line.subarray(at, at + 1));
          if (++at < line.length) setImmediate(next);
        };
        next();
      } else {
        socket.write(Buffer.concat([Buffer.from("\n\n"), line, line, Buffer.from("\n")]));
      }
    },
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  assert.equal((await hostd.call("pieces")).text, "ä€😀");
  assert.equal((await hostd.call("twice")).text, "ä€😀");
});

test("progress goes to the call that asked for it", async (t) => {
  const { path, requests } = await scripted(t, {
    request({ id, params }, socket) {
      const progress_token = params.progress_token;
      send(socket, { method: "progress", params: { progress_token: "nobody", step: "x" } });
      if (progress_token) {
        for (const step of ["one", "two"]) send(socket, { method: "progress", params: { progress_token, step } });
      }
      send(socket, { id, result: {} });
    },
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  const seen = { a: [], b: [] };
  await Promise.all([
    hostd.create({ request_id: "a" }, { onProgress: ({ step }) => seen.a.push(step) }),
    hostd.create({ request_id: "b", progress_token: "mine" }, { onProgress: ({ step }) => seen.b.push(step) }),
    hostd.create({ request_id: "c" }),
  ]);
  assert.deepEqual(seen, { a: ["one", "two"], b: ["one", "two"] });
  assert.equal(requests[1].params.progress_token, "mine");
  assert.equal("progress_token" in requests[2].params, false);
  await assert.rejects(
    hostd.create({ request_id: "d" }, { onProgress: () => { throw new RangeError("my mistake"); } }),
    RangeError,
  );
  await hostd.create({ request_id: "e" });
});

test("errors are typed", async (t) => {
  const { path } = await scripted(t, {
    request({ id }, socket) {
      const data = {
        code: "step_failed", hint: "look", retryable: true, retry_after_ms: 7,
        step: "storage", name: "browsertask001", cleanup: ["a mount stayed"],
      };
      send(socket, { id, error: { code: -32020, message: "storage failed", data } });
    },
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  const error = await hostd.create({ request_id: "a" }).catch((error) => error);
  assert.ok(error instanceof HostdError && error instanceof Error);
  const { name, message, code, number, hint, retryable, retryAfterMs, step, clone, cleanup } = error;
  assert.deepEqual(
    { name, message, code, number, hint, retryable, retryAfterMs, step, clone, cleanup },
    {
      name: "HostdError", message: "storage failed", code: "step_failed", number: -32020, hint: "look",
      retryable: true, retryAfterMs: 7, step: "storage", clone: "browsertask001", cleanup: ["a mount stayed"],
    },
  );
});

test("an error of the connection fails every call", async (t) => {
  const { path } = await scripted(t, {
    request(_, socket, count) {
      if (count < 2) return;
      const data = { code: "too_many_connections", hint: "", retryable: true, retry_after_ms: 1000 };
      send(socket, { id: null, error: { code: -32003, message: "too many", data } });
      socket.end();
    },
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  const calls = [hostd.status(), hostd.list()];
  for (const call of calls) await assert.rejects(call, isHostdError("too_many_connections"));
});

test("a lost connection fails its calls, and the next call reconnects", async (t) => {
  const { path, sockets } = await scripted(t, {
    request({ id, method }, socket) {
      if (method === "die") socket.destroy();
      else send(socket, { id, result: { ok: true } });
    },
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  const lost = await hostd.call("die").catch((error) => error);
  assert.ok(isHostdError("disconnected")(lost) && lost.retryable);
  assert.deepEqual(await hostd.status(), { ok: true });
  assert.equal(sockets.size, 2);
});

test("calls made before the connection is up share one", async (t) => {
  const { path, sockets } = await scripted(t, {
    request: ({ id }, socket) => send(socket, { id, result: id }),
  });
  const hostd = new Hostd({ path });
  t.after(() => hostd.close());
  await Promise.all([hostd.status(), hostd.list(), hostd.discover()]);
  assert.equal(sockets.size, 1);
});

for (const [what, line] of [
  ["garbage", "HTTP/1.1 400 Bad Request"],
  ["another protocol", '{"jsonrpc":"1.0","id":1,"result":{}}'],
  ["null", "null"],
  ["neither result nor error", '{"jsonrpc":"2.0","id":1}'],
]) {
  test(`${what} for an answer is a protocol error`, async (t) => {
    const { path } = await scripted(t, { request: (_, socket) => socket.write(`${line}\n`) });
    const hostd = await connect({ path });
    t.after(() => hostd.close());
    await assert.rejects(hostd.status(), isHostdError("protocol"));
  });
}

test("an endless line is a protocol error and uses bounded memory", async (t) => {
  const { path } = await scripted(t, {
    request(_, socket) {
      const chunk = "x".repeat(1024 * 1024);
      const more = () => {
        while (!socket.destroyed && socket.write(chunk)) { /* until the socket is full */ }
      };
      socket.on("drain", more);
      more();
    },
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  await assert.rejects(hostd.status(), isHostdError("protocol"));
});

test("an unexpected answer is ignored", async (t) => {
  const { path } = await scripted(t, {
    request({ id }, socket) {
      send(socket, { id: 99, result: {} });
      send(socket, { id: 98, error: { code: 1, message: "x" } });
      send(socket, { method: "something-new", params: {} });
      send(socket, { id, result: { ok: true } });
    },
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  assert.deepEqual(await hostd.status(), { ok: true });
});

test("a timeout ends the waiting and its late answer is ignored", async (t) => {
  let late;
  const { path } = await scripted(t, {
    request({ id, method }, socket) {
      if (method === "slow") late = () => send(socket, { id, result: "late" });
      else send(socket, { id, result: "in time" });
    },
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  const error = await hostd.call("slow", {}, { timeoutMs: 20 }).catch((error) => error);
  assert.ok(isHostdError("timeout")(error) && error.retryable);
  late();
  assert.equal(await hostd.call("fast"), "in time");
});

test("a signal ends the waiting with its own reason", async (t) => {
  const { path, requests } = await scripted(t, {});
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  const controller = new AbortController();
  const call = hostd.status({}, { signal: controller.signal });
  controller.abort(new RangeError("enough"));
  await assert.rejects(call, RangeError);
  const before = requests.length;
  await assert.rejects(hostd.status({}, { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.equal(requests.length, before, "an aborted signal sends nothing");
});

test("a missing socket is unreachable and retryable", async () => {
  const error = await connect({ path: "/nonexistent/hostd.sock" }).catch((error) => error);
  assert.ok(isHostdError("unreachable")(error) && error.retryable, String(error));
});

test("close fails running calls and refuses new ones", async (t) => {
  const { path } = await scripted(t, {});
  const hostd = await connect({ path });
  const call = hostd.status();
  await new Promise(setImmediate);
  hostd.close();
  await assert.rejects(call, isHostdError("closed"));
  await assert.rejects(hostd.status(), isHostdError("closed"));
});

test("retry waits as long as hostd says and stops at errors that are not retryable", async (t) => {
  const refusals = [
    { code: "rate_limited", hint: "", retryable: true, retry_after_ms: 30 },
    { code: "host_full", hint: "", retryable: true },
  ];
  const { path, requests } = await scripted(t, {
    request({ id, method }, socket) {
      const data = method === "final" ? { code: "denied", hint: "", retryable: false } : refusals.shift();
      send(socket, data ? { id, error: { code: -32001, message: data.code, data } } : { id, result: "done" });
    },
  });
  const hostd = await connect({ path });
  t.after(() => hostd.close());
  const began = performance.now();
  assert.equal(await retry(() => hostd.call("x"), { firstDelayMs: 1 }), "done");
  assert.ok(performance.now() - began >= 29, "the 30 ms hostd asked for");
  assert.equal(requests.length, 3);
  await assert.rejects(retry(() => hostd.call("final")), isHostdError("denied"));
  assert.equal(requests.length, 4);

  let tries = 0;
  const always = () => {
    tries += 1;
    throw new HostdError("host_full", "full", { retryable: true });
  };
  await assert.rejects(retry(always, { attempts: 3, firstDelayMs: 1 }), isHostdError("host_full"));
  assert.equal(tries, 3);
  const waiting = retry(always, { firstDelayMs: 60_000, signal: AbortSignal.timeout(10) });
  await assert.rejects(waiting, { name: "TimeoutError" });
});
