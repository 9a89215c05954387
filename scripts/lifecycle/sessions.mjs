// Measure the control plane: what it adds to a call of browserd, to a create of hostd, to a page over raw CDP, and to memory.
// Everything that is compared takes turns in one run.
//
//   sessions.mjs PROGRAMS NODE_MODULES RESULT RUNS      (inside the namespaces of ./machine)
import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { createRequire } from "node:module";
import { emptied, filled, sleep, start, template } from "./daemon.mjs";
import { PAGE, playwright, stages } from "./rivals.mjs";

const [programs, modules, result, runs] = process.argv.slice(2);
const { chromium } = createRequire(path.join(modules, "x.js"))("playwright-core");
const folder = process.env.HOSTD_BENCH_INSIDE;
const ROUNDS = Number(runs);
const AT_ONCE = 50;
const CROWD = 300;
/** What one message of the throughput test carries. */
const MESSAGE = 4 << 20;

const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];

/** An HTTP client with its own persistent connections. `where` is `{socketPath}` or `{host, port}`. */
function caller(where, secret) {
  const agent = new http.Agent({ keepAlive: true, maxSockets: AT_ONCE * 2 });
  return (method, at, body) => new Promise((good, bad) => {
    const text = body === undefined ? undefined : JSON.stringify(body);
    const headers = { ...(text && { "content-type": "application/json" }), ...(secret && { authorization: `Bearer ${secret}` }) };
    const request = http.request({ ...where, agent, method, path: at, headers }, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("end", () => {
        const answer = Buffer.concat(parts).toString();
        if (response.statusCode >= 300) bad(new Error(`${method} ${at}: ${response.statusCode} ${answer}`));
        else good(answer === "" ? undefined : JSON.parse(answer));
      });
    });
    request.on("error", bad);
    request.end(text);
  });
}

async function timed(work) {
  const began = performance.now();
  await work();
  return performance.now() - began;
}

/** Start the control plane beside this hostd and wait until it answers. */
async function controlPlane(base, settings = {}) {
  const home = path.join(base, "plane");
  fs.mkdirSync(home, { recursive: true });
  const at = (name) => path.join(home, name);
  const all = {
    paths: { socket: at("sock"), hostd: path.join(base, "run/sock"), state: at("state") }, http: { listen: "127.0.0.1:0" },
    recording: { folder: at("recordings") }, log: { filter: "warn" },
    limits: { sessions: 1000, sessions_per_tenant: 1000, opens_per_minute: 1000000, open_burst: 1000000, calls_per_second: 1000000, call_burst: 1000000 },
    ...settings,
  };
  const toml = Object.entries(all).map(([name, keys]) => `[${name}]\n${Object.entries(keys).map(([key, value]) => `${key} = ${JSON.stringify(value)}`).join("\n")}\n`);
  fs.writeFileSync(at("controlplane.toml"), toml.join("\n"));
  const log = fs.openSync(at("log"), "a");
  const child = spawn(path.join(programs, "controlplane"), ["serve", "--config", at("controlplane.toml")], { stdio: ["ignore", log, log], env: {} });
  const call = caller({ socketPath: at("sock") });
  for (let tries = 0; ; tries++) {
    try {
      await call("GET", "/readyz");
      break;
    } catch (error) {
      if (child.exitCode !== null || tries > 300) throw new Error(`the control plane does not answer: ${error}\n${fs.readFileSync(at("log"))}`);
      await sleep(100);
    }
  }
  const stop = async () => {
    const ended = once(child, "exit");
    child.kill("SIGTERM");
    await ended;
  };
  return { call, child, stop, log: at("log") };
}

const clonesOf = async (client) => new Map((await client.list()).clones.map((clone) => [clone.request_id, clone]));

/** The same action directly and through the control plane, one session and many. */
async function overhead(hostd, plane) {
  const sessions = [];
  for (let count = 0; count < AT_ONCE; count++) {
    const { session_id } = await plane.call("POST", "/v1/sessions", { record: "off" });
    // Repeating the request returns the clone's secret, which the list does not have.
    sessions.push({ session_id });
  }
  const known = await clonesOf(hostd);
  for (const session of sessions) {
    const { clone, secret } = await hostd.create({ request_id: session.session_id, tenant: known.get(session.session_id).tenant });
    const { hostname, port } = new URL(clone.endpoint);
    session.direct = caller({ host: hostname, port }, secret);
    await plane.call("POST", `/v1/sessions/${session.session_id}/navigate`, { url: PAGE });
  }
  const through = ({ session_id }) => plane.call("POST", `/v1/sessions/${session_id}/text`, {});
  const direct = (session) => session.direct("POST", "/v1/text", {});
  const one = { direct: [], through: [] };
  for (let round = 0; round <= ROUNDS * 5; round++) {
    for (const [name, work] of [["direct", direct], ["through", through]]) {
      const took = await timed(() => work(sessions[0]));
      if (round > 0) one[name].push(took);
    }
  }
  const many = { direct: [], through: [] };
  for (let round = 0; round < Math.max(5, Math.ceil(ROUNDS / 5)); round++) {
    for (const [name, work] of [["direct", direct], ["through", through]]) {
      await Promise.all(sessions.map(async (session) => {
        for (let each = 0; each < 5; each++) many[name].push(await timed(() => work(session)));
      }));
    }
  }
  for (const { session_id } of sessions) await plane.call("DELETE", `/v1/sessions/${session_id}`);
  await emptied(hostd);
  return { one: { direct: median(one.direct), through: median(one.through) }, many: { direct: median(many.direct), through: median(many.through) } };
}

/** A warm open beside a warm create of hostd. */
async function opens(hostd, plane) {
  const times = { create: [], open: [] };
  for (let round = 0; round <= ROUNDS; round++) {
    await filled(hostd);
    await sleep(100);
    let clone;
    const create = await timed(async () => ({ clone } = await hostd.create({ request_id: `direct-${round}` })));
    await hostd.destroy({ name: clone.name, clone_id: clone.clone_id });
    await filled(hostd);
    await sleep(100);
    let session;
    const open = await timed(async () => (session = await plane.call("POST", "/v1/sessions", { record: "off" })));
    await plane.call("DELETE", `/v1/sessions/${session.session_id}`);
    if (round > 0) {
      times.create.push(create);
      times.open.push(open);
    }
  }
  return { create: median(times.create), open: median(times.open) };
}

const pageOf = (browser) => browser.contexts()[0].pages()[0] ?? browser.contexts()[0].newPage();

/** A session that Playwright drives through the relay. */
const session = (plane) => ({
  async create() {
    const { session_id } = await plane.call("POST", "/v1/sessions", { record: "off" });
    const { cdp_url: url } = await plane.call("POST", `/v1/sessions/${session_id}/cdp-address`, {});
    return { session_id, url };
  },
  async connect(state) {
    const browser = await chromium.connectOverCDP(state.url);
    return { ...state, browser, page: await pageOf(browser) };
  },
  async goto(state) {
    await state.page.goto(PAGE);
    return state;
  },
  async release({ session_id, browser }) {
    await plane.call("DELETE", `/v1/sessions/${session_id}`);
    await browser.close().catch(() => {});
  },
});

async function fourStages(hostd, plane, browser) {
  const rivals = { session: session(plane), Playwright: playwright(chromium, browser) };
  const totals = { session: [], Playwright: [] };
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [name, rival] of Object.entries(rivals)) {
      await filled(hostd);
      await sleep(200);
      const times = await stages(rival);
      if (round > 0) totals[name].push(Object.values(times).reduce((sum, each) => sum + each));
      await emptied(hostd);
    }
  }
  return { session: median(totals.session), Playwright: median(totals.Playwright) };
}

/** Bytes per second of one message after the other, over raw CDP directly and through the relay. */
async function throughput(hostd, plane) {
  const { session_id } = await plane.call("POST", "/v1/sessions", { record: "off" });
  const known = await clonesOf(hostd);
  const { clone } = await hostd.create({ request_id: session_id, tenant: known.get(session_id).tenant });
  const { cdp_url: url } = await plane.call("POST", `/v1/sessions/${session_id}/cdp-address`, {});
  const pages = {};
  const browsers = [];
  for (const [name, address] of [["direct", clone.cdp_endpoint], ["relay", url]]) {
    const browser = await chromium.connectOverCDP(address);
    browsers.push(browser);
    pages[name] = await browser.contexts()[0].newPage();
  }
  const times = { direct: [], relay: [] };
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [name, page] of Object.entries(pages)) {
      const took = await timed(() => page.evaluate((size) => "x".repeat(size), MESSAGE));
      if (round > 0) times[name].push(took);
    }
  }
  for (const browser of browsers) await browser.close().catch(() => {});
  await plane.call("DELETE", `/v1/sessions/${session_id}`);
  return { direct: median(times.direct), relay: median(times.relay) };
}

/** Resident memory of the control plane with many sessions of stand-in browsers. */
async function memory(settings) {
  const base = path.join(folder, "crowd");
  const noBrowser = path.join(folder, "no-browser");
  fs.copyFileSync(new URL("no-browser", import.meta.url), noBrowser);
  const hostd = await start(programs, base, { ...settings, "linux.browserd": noBrowser, "pool.size": 0, "pool.last_slot": 900 });
  const plane = await controlPlane(base);
  const resident = () => Number(fs.readFileSync(`/proc/${plane.child.pid}/status`, "utf8").match(/^VmRSS:\s+(\d+)/m)[1]) / 1024;
  const idle = resident();
  const sessions = [];
  for (let count = 0; count < CROWD; count++) sessions.push((await plane.call("POST", "/v1/sessions", {})).session_id);
  await sleep(1000);
  const crowded = resident();
  for (const session_id of sessions) await plane.call("DELETE", `/v1/sessions/${session_id}`);
  await plane.stop();
  await hostd.stop();
  return { idle, crowded };
}

const keep = [];
try {
  const base = path.join(folder, "a");
  const browser = template(programs, base);
  fs.chmodSync(folder, 0o755);
  const settings = { "server.max_clones_per_tenant": 900, "linux.browserd": path.join(programs, "browserd"), "pool.last_slot": 120, "linux.templates": path.join(base, "templates") };
  const hostd = await start(programs, base, { ...settings, "pool.size": 2, "pool.refill_percent": 100 });
  keep.push(hostd.log);
  const plane = await controlPlane(base);
  keep.push(plane.log);
  const figures = {
    opens: await opens(hostd.client, plane),
    stages: await fourStages(hostd.client, plane, browser),
    throughput: await throughput(hostd.client, plane),
    overhead: await overhead(hostd.client, plane),
  };
  await plane.stop();
  await hostd.stop();
  figures.memory = await memory(settings);
  const { overhead: { one, many }, opens: open, stages: life, throughput: bytes, memory: mib } = figures;
  const targets = [
    ["an action's overhead over browserd, audit committed, p50, ms", one.through - one.direct, 1],
    [`an action of ${AT_ONCE} sessions at once over browserd's, p50`, many.through / many.direct, 2],
    ["a warm open over hostd's warm create, p50", open.open / open.create, 2],
    ["open, connect through the relay, goto, close over Playwright's", life.session / life.Playwright, 0.4],
    ["a message directly over one through the relay (throughput)", -bytes.direct / bytes.relay, -0.9],
    [`memory with ${CROWD} sessions, MiB`, mib.crowded, 60],
  ].map(([what, value, most]) => ({ what, value: Math.abs(value), target: Math.abs(most), kept: value <= most }));
  const machine = `${os.cpus().length} processors (${os.cpus()[0].model.trim()}), Linux ${os.release()}`;
  console.log(`${machine}; ${browser}; medians; ${ROUNDS} runs each\n`);
  console.log(`text of a page: browserd ${one.direct.toFixed(2)} ms, control plane ${one.through.toFixed(2)} ms; ${AT_ONCE} sessions at once: ${many.direct.toFixed(1)} and ${many.through.toFixed(1)} ms`);
  console.log(`warm: hostd's create ${open.create.toFixed(1)} ms, open ${open.open.toFixed(1)} ms; four stages: session ${life.session.toFixed(0)} ms, Playwright ${life.Playwright.toFixed(0)} ms`);
  console.log(`${MESSAGE >> 20} MiB by CDP: directly ${bytes.direct.toFixed(1)} ms, through the relay ${bytes.relay.toFixed(1)} ms; memory idle ${mib.idle.toFixed(1)} MiB\n`);
  for (const { what, value, target, kept } of targets) {
    console.log(`${what.padEnd(64)} ${value.toFixed(2).padStart(8)}  ${what.startsWith("a message") ? "≥" : "≤"} ${target}  ${kept ? "ok" : "MISSED"}`);
  }
  fs.mkdirSync(path.dirname(result), { recursive: true });
  fs.writeFileSync(`${result}.json`, `${JSON.stringify({ machine, browser, runs: ROUNDS, figures, targets }, null, 1)}\n`);
  console.log(`written to ${result}.json`);
} catch (error) {
  console.error(error);
  for (const log of keep) console.error(fs.readFileSync(log, "utf8").split("\n").slice(-30).join("\n"));
  process.exitCode = 1;
}
process.exit();
