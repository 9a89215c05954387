// The figures as one SVG: the four stages of every candidate, the waterfalls of a cold create and destroy, the growth curves.

const DEPTHS = ["#9aa5b1", "#2563a8", "#7fb069"];
const COLORS = { create: "#2563a8", connect: "#5b9bd5", goto: "#7fb069", release: "#c9a227" };
const text = (x, y, words, more = "") => `<text x="${x}" y="${y}" ${more}>${String(words).replace(/[<&]/g, "")}</text>`;
const bar = (x, y, width, color) => `<rect x="${x}" y="${y}" width="${Math.max(width, 0.5)}" height="16" fill="${color}"/>`;

function lifecycle(rows, title, top) {
  const most = Math.max(...Object.values(rows).map((row) => row.total.p50));
  const scale = 560 / most;
  const lines = [text(10, top, title, 'font-weight="bold"')];
  Object.entries(rows).forEach(([name, row], index) => {
    const y = top + 14 + index * 22;
    let x = 130;
    lines.push(text(10, y + 13, name));
    for (const [stage, color] of Object.entries(COLORS)) {
      lines.push(bar(x, y, row[stage].p50 * scale, color));
      x += row[stage].p50 * scale;
    }
    lines.push(text(x + 6, y + 13, `${row.total.p50.toFixed(0)} ms`));
  });
  return lines;
}

function waterfall(rows, method, top) {
  const whole = rows.find(({ part }) => part === "whole").took;
  const scale = 440 / whole;
  const lines = [text(10, top, `A cold ${method}, by its spans: ${whole.toFixed(1)} ms (medians)`, 'font-weight="bold"')];
  rows.forEach(({ part, depth, began, took }, index) => {
    const y = top + 10 + index * 18;
    const x = 130 + Math.max(began, 0) * scale;
    lines.push(text(10 + depth * 10, y + 12, part), bar(x, y, took * scale, DEPTHS[Math.min(depth, DEPTHS.length - 1)]));
    lines.push(text(x + Math.max(took * scale, 0.5) + 6, y + 12, `${took.toFixed(1)} ms`));
  });
  return lines;
}

function curves(points, of, top) {
  const keys = [["create", "#2563a8"], ["destroy", "#5b9bd5"], ["list", "#7fb069"], ["reap", "#b0543c"], ["reconcile", "#c9a227"]];
  const most = Math.max(...points.flatMap((point) => keys.map(([call]) => point[call])));
  const x = (clones) => 130 + (Math.log10(clones) / Math.log10(points.at(-1).clones)) * 480;
  const y = (value) => top + 170 - (value / most) * 140;
  const lines = [text(10, top, `Milliseconds by number of clones (${of}; at most ${most.toFixed(1)})`, 'font-weight="bold"')];
  for (const [call, color] of keys) {
    const path = points.map((point) => `${x(point.clones).toFixed(1)},${y(point[call]).toFixed(1)}`).join(" ");
    lines.push(`<polyline points="${path}" fill="none" stroke="${color}" stroke-width="2"/>`);
    lines.push(text(x(points.at(-1).clones) + 6, y(points.at(-1)[call]) + 4, call, `fill="${color}"`));
  }
  for (const { clones } of points) lines.push(text(x(clones) - 8, top + 188, clones));
  return lines;
}

export function picture({ machine, table, waterfalls, growth }) {
  const lines = [];
  let top = 30;
  for (const [atOnce, rows] of Object.entries(table)) {
    lines.push(...lifecycle(rows, `Create, connect, load a page, release: ${atOnce} at once (medians)`, top));
    top += 50 + Object.keys(rows).length * 22;
  }
  Object.entries(COLORS).forEach(([stage, color], index) => lines.push(bar(130 + index * 110, top - 26, 16, color), text(152 + index * 110, top - 13, stage)));
  top += 26;
  for (const [method, rows] of Object.entries(waterfalls)) {
    lines.push(...waterfall(rows, method, top));
    top += 45 + rows.length * 18;
  }
  for (const [of, points] of [["real kernel, no browser", growth.kernel], ["hostd alone, fake host", growth.model]]) {
    lines.push(...curves(points, of, top));
    top += 225;
  }
  lines.push(text(10, top, machine, 'fill="#666"'));
  return `<svg xmlns="http://www.w3.org/2000/svg" width="760" height="${top + 15}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#fff"/>\n${lines.join("\n")}\n</svg>\n`;
}
