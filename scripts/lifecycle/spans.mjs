// Turn the log lines of hostd's tracing spans into the waterfall of one operation.
import fs from "node:fs";

const UNITS = { s: 1000, ms: 1, "µs": 1e-3, ns: 1e-6 };

function milliseconds(text) {
  const [, value, unit] = text.match(/^([\d.]+)(s|ms|µs|ns)$/);
  return Number(value) * UNITS[unit];
}

const median = (values) => values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)];

/** Each part of a method's operations in order: its start and duration as medians, and its nesting depth. */
export function waterfall(log, method) {
  const operations = new Map();
  for (const line of fs.readFileSync(log, "utf8").split("\n")) {
    if (!line.startsWith("{")) continue;
    const event = JSON.parse(line);
    const spans = [...(event.spans ?? []), ...(event.message === "close" ? [event.span] : [])];
    if (spans[0]?.method !== method) continue;
    const parts = operations.get(spans[0].object) ?? operations.set(spans[0].object, []).get(spans[0].object);
    const depth = spans.length - (event.message === "close" ? 1 : 0);
    const ended = Date.parse(event.timestamp.replace(/(\.\d{3})\d*Z$/, "$1Z")) + Number(event.timestamp.match(/\.\d{3}(\d*)Z$/)?.[1] ?? 0) / 1000;
    if (event.message === "close") {
      const took = milliseconds(event["time.busy"]) + milliseconds(event["time.idle"]);
      parts.push({ part: event.span.part ?? "whole", depth, took, began: ended - took });
    } else if (event.seconds !== undefined) {
      parts.push({ part: event.part, depth, took: event.seconds * 1000, inside: true });
    }
  }
  const named = [...operations.values()].filter((parts) => parts.some(({ part }) => part === "whole")).map(number);
  const keys = [...new Set(named.flatMap((parts) => parts.map(({ key }) => key)))];
  const rows = keys.map((key) => {
    const found = named.flatMap((parts) => parts.filter((part) => part.key === key));
    const { part, depth } = found[0];
    return { part, depth, began: median(found.map(({ began }) => began)), took: median(found.map(({ took }) => took)), seen: found.length };
  });
  // Drop parts that only a minority of the operations have.
  return rows.filter(({ seen }) => seen * 2 > named.length).sort((one, other) => one.began - other.began || one.depth - other.depth);
}

/** Make starts relative to the operation and give parts of the same name distinct keys. */
function number(parts) {
  const start = parts.find(({ part }) => part === "whole").began;
  const counts = new Map();
  // Parts measured by the supervisor are inside the service and sequential.
  const service = parts.find(({ part }) => part === "service");
  let next = service ? service.began - start : 0;
  return parts.map((part) => {
    const count = (counts.get(part.part) ?? 0) + 1;
    counts.set(part.part, count);
    const began = part.inside ? next : part.began - start;
    if (part.inside) next += part.took;
    return { ...part, began, key: `${part.part}/${part.depth}/${count}` };
  });
}
