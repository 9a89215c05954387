// The candidates that run the four stages: create a browser, connect to it, load the page, release it. The same Playwright
// drives all of them, as in the public benchmarks of hosted services.
import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import path from "node:path";
import { pageAnswers } from "./cdp.mjs";

export const PAGE = "http://203.0.113.10:8088/";
/** The user id of benchmarks (kernel/src/user_ids.rs): Chromium does not run its own sandbox as root. */
const USER = 1_900_300_000;

/** Run the stages and return the milliseconds of each. */
export async function stages(rival) {
  const times = {};
  let state;
  for (const stage of ["create", "connect", "goto", "release"]) {
    const began = performance.now();
    state = await rival[stage](state);
    times[stage] = performance.now() - began;
    // Checking the page is not part of any stage's time.
    if (stage === "goto") await check(state);
  }
  return times;
}

async function check({ page }) {
  const title = await page.title();
  if (title !== "rendered") throw new Error(`the page's title is ${title}, not rendered`);
}

async function goto(state) {
  await state.page.goto(PAGE);
  return state;
}

const pageOf = (browser) => browser.contexts()[0].pages()[0] ?? browser.contexts()[0].newPage();

let requests = 0;

/** A clone of hostd. The caller makes sure that the warm pool is full if a warm clone is expected. `wait`: until nothing is left. */
export const hostd = (client, chromium, launch, wait = true) => ({
  async create() {
    const { clone } = await client.create({ request_id: `bench-${process.pid}-${requests++}` });
    if (clone.launch !== launch) throw new Error(`${clone.name} is ${clone.launch}, not ${launch}`);
    return { clone };
  },
  async connect({ clone }) {
    const browser = await chromium.connectOverCDP(clone.cdp_endpoint);
    return { clone, browser, page: await pageOf(browser) };
  },
  goto,
  async release({ clone, browser }) {
    await client.destroy({ name: clone.name, clone_id: clone.clone_id, wait });
    await browser.close().catch(() => {});
  },
});

/** Playwright starts the browser itself, as it does by default. */
export const playwright = (chromium, executablePath) => ({
  create: () => chromium.launch({ executablePath }),
  connect: async (browser) => ({ browser, page: await browser.newPage() }),
  goto,
  release: ({ browser }) => browser.close(),
});

/** The bare browser, or the browser behind a wrapper, with a debugging port. */
export const bare = (chromium, executablePath, folder, wrapper) => ({
  async create() {
    const profile = fs.mkdtempSync(path.join(folder, "profile-"));
    fs.chownSync(profile, USER, USER);
    const line = [...(wrapper ? [wrapper] : []), executablePath, "--headless", "--remote-debugging-port=0",
      "--no-first-run", `--user-data-dir=${profile}`, "about:blank"];
    const child = spawn(line[0], line.slice(1), {
      uid: USER, gid: USER, cwd: "/", detached: true, stdio: ["ignore", "ignore", "pipe"],
      env: { PATH: "/usr/bin:/bin", HOME: profile, PROFILE: profile },
    });
    let said = "";
    const endpoint = await new Promise((good, bad) => {
      child.once("exit", (code) => bad(new Error(`the browser ended with ${code}: ${said}`)));
      child.stderr.on("data", (text) => {
        said += text;
        const found = said.match(/DevTools listening on (ws:\S+)/);
        if (found) good(found[1]);
      });
    });
    return { child, profile, endpoint };
  },
  async connect(state) {
    const browser = await chromium.connectOverCDP(state.endpoint);
    return { ...state, browser, page: await pageOf(browser) };
  },
  goto,
  async release(state) {
    await end(state);
    await state.browser.close().catch(() => {});
  },
});

/** End a browser that `bare` started. */
export async function end({ child, profile }) {
  const gone = once(child, "exit");
  process.kill(-child.pid, "SIGKILL");
  await gone;
  fs.rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 5 });
}

/** How long the bare browser takes until its port listens, and until its page runs script. */
export async function floor(rival) {
  const began = performance.now();
  const state = await rival.create();
  const listens = performance.now() - began;
  await pageAnswers(state.endpoint);
  const page = performance.now() - began;
  await end(state);
  return { listens, page };
}
