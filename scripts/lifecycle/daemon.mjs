// Start and stop a private hostd in the benchmark's namespaces.
import { spawn, execFileSync } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import path from "node:path";
import { connect } from "../../hostd/clients/hostd.mjs";

/** Start hostd with these settings and wait until it answers. */
export async function start(programs, folder, settings) {
  fs.mkdirSync(path.join(folder, "run"), { recursive: true });
  const at = (name) => path.join(folder, name);
  const all = {
    "paths.socket": at("run/sock"), "paths.socket_group": "", "paths.state": at("state"), "paths.audit": at("audit.log"),
    "pool.clones_dir": at("clones"), "linux.templates": at("templates"), "linux.limits": "available",
    "lifecycle.quarantine_seconds": 0, "server.creates_per_minute": 1000000, "server.create_burst": 1000000,
    "server.max_clones": 900, "log.filter": "warn", access: '[{users=["0"],operator=true}]', ...settings,
  };
  const set = Object.entries(all).flatMap(([key, value]) => ["--set", `${key}=${value}`]);
  fs.writeFileSync(at("none.toml"), "");
  const log = fs.openSync(at("log"), "a");
  const child = spawn(path.join(programs, "hostd"), ["--config", at("none.toml"), ...set], { stdio: ["ignore", log, log], env: {} });
  for (let tries = 0; ; tries++) {
    try {
      const client = await connect({ path: at("run/sock") });
      await client.status();
      return { client, child, log: at("log"), stop: () => stop(client, child) };
    } catch (error) {
      if (child.exitCode !== null || tries > 600) throw new Error(`hostd does not answer: ${error}\n${fs.readFileSync(at("log"))}`);
      await sleep(100);
    }
  }
}

async function stop(client, child) {
  client.close();
  const ended = once(child, "exit");
  child.kill("SIGTERM");
  await ended;
}

/** Create a template from this system's browser and return the browser's executable. */
export function template(programs, folder) {
  fs.mkdirSync(folder, { recursive: true });
  const config = path.join(folder, "template.toml");
  fs.writeFileSync(config, `[linux]\ntemplates = "${folder}/templates"\n`);
  execFileSync(path.join(programs, "hostctl"), ["template", "create", "--config", config]);
  const manifest = fs.readFileSync(path.join(folder, "templates/browser/default/template.toml"), "utf8");
  return manifest.match(/browser = "([^"]+)"/)[1];
}

/** Wait until the warm pool is full. */
export async function filled(client) {
  for (;;) {
    const { warm_pool: pool } = await client.status();
    if (pool.members.length >= pool.size) return;
    await sleep(10);
  }
}

/** Wait until only warm-pool members are left. */
export async function emptied(client) {
  for (;;) {
    const { clones } = await client.list();
    if (clones.every((clone) => clone.state === "pooled")) return;
    await sleep(20);
  }
}

export const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
