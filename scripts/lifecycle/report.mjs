// Print a table, and write JSON and a picture.
import fs from "node:fs";
import { picture } from "./picture.mjs";

const STAGES = ["create", "connect", "goto", "release"];
const CALLS = ["create", "destroy", "list", "reap", "reconcile"];

const quantile = (values, share) => {
  const sorted = values.toSorted((one, other) => one - other);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
};
const quantiles = (values) => ({ p50: quantile(values, 0.5), p90: quantile(values, 0.9), p99: quantile(values, 0.99) });

/** p50, p90 and p99 of each stage and of all together. */
function summarize(runs) {
  const rows = Object.fromEntries(STAGES.map((stage) => [stage, quantiles(runs.map((run) => run[stage]))]));
  return { runs: runs.length, ...rows, total: quantiles(runs.map((run) => STAGES.reduce((sum, stage) => sum + run[stage], 0))) };
}

const cell = (value) => value.toFixed(1).padStart(9);

function printTable(table) {
  for (const [atOnce, rows] of Object.entries(table)) {
    console.log(`${atOnce} at once`.padEnd(16) + [...STAGES, "all p50", "p90", "p99"].map((head) => head.padStart(9)).join("")
      + "   create p90, p99  × bare  × Playwright");
    for (const [name, row] of Object.entries(rows)) {
      const ratio = (other) => (row.total.p50 / rows[other].total.p50).toFixed(2);
      console.log(name.padEnd(16) + STAGES.map((stage) => cell(row[stage].p50)).join("")
        + [row.total.p50, row.total.p90, row.total.p99].map(cell).join("") + cell(row.create.p90) + cell(row.create.p99)
        + ratio("bare browser").padStart(8) + ratio("Playwright").padStart(14));
    }
    console.log();
  }
}

function targetsOf(one, floor, claim, density, growth) {
  const warm = one["hostd warm"];
  const [first, last] = [growth.kernel[0], growth.kernel.at(-1)];
  return [
    ["warm create by a client that does nothing else, p50, ms", claim.p50, 2.5],
    ["warm create by a client that does nothing else, p99/p50", claim.p99 / claim.p50, 5],
    ["warm, all four stages, over Playwright's", warm.total.p50 / one.Playwright.total.p50, 0.35],
    ["the same with wait: false, over Playwright's", one["warm, no wait"].total.p50 / one.Playwright.total.p50, 0.25],
    ["cold create over the bare browser until a page runs script", one["hostd cold"].create.p50 / floor.page.p50, 1.15],
    ["memory of a clone above the bare browser, MiB", density.clone_mib - density.bare_mib, 8],
    [`create with ${last.clones} clones over with ${first.clones}`, last.create / first.create, 1.2],
    [`destroy with ${last.clones} clones over with ${first.clones}`, last.destroy / first.destroy, 2],
    [`reconcile of ${last.clones} clones, ms`, last.reconcile, 20],
  ].map(([what, value, most]) => ({ what, value, most, kept: value <= most }));
}

export function report({ machine, load, stolen_percent, browser, runs, figures, floors, claims, waterfalls, density, growth, primitives }, file) {
  const table = {};
  for (const [name, byCount] of Object.entries(figures)) {
    for (const [atOnce, all] of Object.entries(byCount)) (table[atOnce] ??= {})[name] = summarize(all);
  }
  const floor = { listens: quantiles(floors.map(({ listens }) => listens)), page: quantiles(floors.map(({ page }) => page)) };
  const claim = quantiles(claims);
  const targets = targetsOf(table[1], floor, claim, density, growth);

  console.log(`${machine}; load before ${load}; ${stolen_percent.toFixed(1)} % of the processor time stolen by the hypervisor\n${browser}; milliseconds, medians unless said otherwise; ${runs} runs each\n`);
  printTable(table);
  console.log(`the bare browser's port listens after ${floor.listens.p50.toFixed(1)}, its page runs script after ${floor.page.p50.toFixed(1)}; `
    + `a cold create is ${(table[1]["hostd cold"].create.p50 / floor.listens.p50).toFixed(2)} times the first, and waits for the second`);
  console.log(`a warm create by a client that does nothing else: ${claim.p50.toFixed(1)} (p90 ${claim.p90.toFixed(1)}, p99 ${claim.p99.toFixed(1)})`);
  console.log(`primitives beside hostd: ${primitives.filter(({ floor_ms }) => floor_ms).map(({ what, median_ms, floor_ms }) => `${what.trim()} ${median_ms.toFixed(1)}/${floor_ms.toFixed(1)}`).join(", ")}\n`);
  for (const { what, value, most, kept } of targets) {
    console.log(`${what.padEnd(60)} ${value.toFixed(2).padStart(8)}  ≤ ${most}  ${kept ? "ok" : "MISSED"}`);
  }
  for (const [method, rows] of Object.entries(waterfalls)) {
    const parts = rows.filter(({ depth }) => depth === 1).map(({ part, took }) => `${part} ${took.toFixed(1)}`);
    console.log(`\ncold ${method}, part by part: ${parts.join(", ")}`);
  }
  console.log(`\nmemory (PSS): bare browser ${density.bare_mib.toFixed(0)} MiB, idle clone ${density.clone_mib.toFixed(0)}, with a page ${density.active_mib.toFixed(0)}; `
    + `into ${(density.available_mib / 1024).toFixed(1)} GiB fit ${density.idle_clones_that_fit} idle or ${density.active_clones_that_fit} active ones; `
    + `a page load takes ${density.load_processor_ms.toFixed(0)} ms of one processor`);
  for (const [of, rows] of [["no browser", growth.kernel], ["hostd alone, on the fake host", growth.model]]) {
    for (const { clones, ...calls } of rows) {
      console.log(`with ${String(clones).padStart(3)} clones: ${CALLS.map((call) => `${call} ${calls[call].toFixed(2)}`).join(", ")} (${of})`);
    }
  }
  fs.mkdirSync(new URL(".", `file://${file}`).pathname, { recursive: true });
  const all = { machine, load, stolen_percent, browser, runs, table, floor, claim, targets, waterfalls, density, growth, primitives };
  fs.writeFileSync(`${file}.json`, `${JSON.stringify(all, null, 1)}\n`);
  fs.writeFileSync(`${file}.svg`, picture(all));
  console.log(`written to ${file}.json and ${file}.svg`);
}
