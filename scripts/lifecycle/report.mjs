// One table for people, JSON for programs, and a picture.
import fs from "node:fs";
import { picture } from "./picture.mjs";

const STAGES = ["create", "connect", "goto", "release"];

const quantile = (values, share) => {
  const sorted = values.toSorted((one, other) => one - other);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
};

/** p50, p90 and p99 of each stage and of all together. */
export function summarize(runs) {
  const rows = {};
  for (const stage of [...STAGES, "total"]) {
    const values = runs.map((run) => (stage === "total" ? STAGES.reduce((sum, each) => sum + run[each], 0) : run[stage]));
    rows[stage] = { p50: quantile(values, 0.5), p90: quantile(values, 0.9), p99: quantile(values, 0.99) };
  }
  return rows;
}

/** The median of each stage of a cold create, in order. */
function waterfall(notes) {
  const names = notes[0].map(({ stage }) => stage).filter((stage) => stage !== "total");
  return names.map((stage) => {
    const seconds = notes.map((note) => note.find((each) => each.stage === stage)?.seconds ?? 0);
    return { stage, ms: quantile(seconds, 0.5) * 1000 };
  });
}

export function report({ machine, load, browser, runs, figures, cold, density, growth }, file) {
  const table = {};
  for (const [name, byCount] of Object.entries(figures)) {
    for (const [atOnce, all] of Object.entries(byCount)) (table[atOnce] ??= {})[name] = { runs: all.length, ...summarize(all) };
  }
  const cell = (value) => value.toFixed(1).padStart(9);
  console.log(`${machine}; load ${load}\n${browser}; milliseconds, p50 (p90, p99 of the whole)\n`);
  for (const [atOnce, rows] of Object.entries(table)) {
    console.log(`${atOnce} at once`.padEnd(16) + [...STAGES, "p50", "p90", "p99"].map((head) => head.padStart(9)).join("")
      + "  × bare  × Playwright");
    for (const [name, row] of Object.entries(rows)) {
      const ratio = (other) => (row.total.p50 / rows[other].total.p50).toFixed(2);
      console.log(name.padEnd(16) + STAGES.map((stage) => cell(row[stage].p50)).join("")
        + [row.total.p50, row.total.p90, row.total.p99].map(cell).join("")
        + ratio("bare browser").padStart(8) + ratio("Playwright").padStart(14));
    }
    console.log();
  }
  const one = table[1];
  const steps = waterfall(cold);
  const first = growth[0].create_ms, last = growth.at(-1).create_ms;
  const targets = [
    ["warm create p50, ms", one["hostd warm"].create.p50, 5],
    ["warm create p99/p50", one["hostd warm"].create.p99 / one["hostd warm"].create.p50, 5],
    ["warm four stages over Playwright's", one["hostd warm"].total.p50 / one.Playwright.total.p50, 0.35],
    ["cold create over the bare browser's", one["hostd cold"].create.p50 / one["bare browser"].create.p50, 1.15],
    ["memory of a clone above the bare browser, MiB", density.clone_mib - density.bare_mib, 8],
    [`create with ${growth.at(-1).clones} clones over with ${growth[0].clones}`, last / first, 1.2],
  ].map(([what, value, most]) => ({ what, value, most, kept: value <= most }));
  for (const { what, value, most, kept } of targets) {
    console.log(`${what.padEnd(50)} ${value.toFixed(2).padStart(8)}  ≤ ${most}  ${kept ? "ok" : "MISSED"}`);
  }
  console.log(`\ncold create: ${steps.map(({ stage, ms }) => `${stage} ${ms.toFixed(1)}`).join(", ")}`);
  console.log(`memory: bare browser ${density.bare_mib.toFixed(0)} MiB, clone ${density.clone_mib.toFixed(0)} MiB (PSS); `
    + `${density.idle_clones_that_fit} clones fit into what is free`);
  for (const { clones, create_ms, list_ms, reconcile_ms } of growth) {
    console.log(`with ${String(clones).padStart(3)} clones: create ${create_ms.toFixed(2)}, list ${list_ms.toFixed(2)}, reconcile ${reconcile_ms.toFixed(2)} (fake host)`);
  }
  fs.mkdirSync(new URL(".", `file://${file}`).pathname, { recursive: true });
  fs.writeFileSync(`${file}.json`, `${JSON.stringify({ machine, load, browser, runs, table, targets, cold: steps, density, growth }, null, 1)}\n`);
  fs.writeFileSync(`${file}.svg`, picture({ machine, table, cold: steps, growth }));
  console.log(`written to ${file}.json and ${file}.svg`);
}
