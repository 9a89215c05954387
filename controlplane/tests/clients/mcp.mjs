// The life of a session by an MCP client, and what a second client sees of it.
//
//   node mcp.mjs sdk|client http|stdio
//
// The environment has MCP_URL and two keys (http), or two command lines as JSON (stdio). Prints what the Rust test checks.

const [line, transport] = process.argv.slice(2);
const env = process.env;

async function connect(number) {
  const http = () => [
    new URL(env.MCP_URL),
    { requestInit: { headers: { Authorization: `Bearer ${env[`MCP_KEY_${number}`]}` } } },
  ];
  const stdio = () => ({ ...JSON.parse(env[`MCP_COMMAND_${number}`]), stderr: "inherit" });
  const info = { name: "test", version: "1" };
  let client, over;
  if (line === "sdk") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
    client = new Client(info);
    over = transport === "http" ? new StreamableHTTPClientTransport(...http()) : new StdioClientTransport(stdio());
  } else {
    const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
    const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
    client = new Client(info, { versionNegotiation: { mode: { pin: "2026-07-28" } } });
    over = transport === "http" ? new StreamableHTTPClientTransport(...http()) : new StdioClientTransport(stdio());
  }
  await client.connect(over);
  return client;
}

// The signatures of the two lines differ: sdk has a result schema in between.
const call = (client, name, args = {}, options = {}) =>
  line === "sdk"
    ? client.callTool({ name, arguments: args }, undefined, options)
    : client.callTool({ name, arguments: args }, options);

const [one, two] = [await connect(1), await connect(2)];
const { tools } = await one.listTools();
const progress = [];
const opened = await call(one, "browser_open_session", {}, { onprogress: (p) => progress.push(p) });
const session_id = opened.structuredContent.session_id;
const navigated = await call(one, "browser_navigate", { session_id, url: env.MCP_PAGE });
const snapshot = await call(one, "browser.snapshot", { session_id });
const typed = await call(one, "browser_type", { session_id, selector: "#name", text: "Ada" });
const text = await call(one, "browser_text", { session_id });
const shot = await call(one, "browser_screenshot", { session_id });
const wrong = await call(one, "browser_click", { session_id, selector: "#none", timeout_ms: 2000 });
const stranger = await call(two, "browser_text", { session_id });
const listed = (await call(two, "browser_sessions")).structuredContent.sessions.map((s) => s.session_id);
const mine = (await call(one, "browser_sessions")).structuredContent.sessions.map((s) => s.session_id);

// Cancelling ends the call at once, on both sides.
const controller = new AbortController();
setTimeout(() => controller.abort("enough"), 500);
const waiting = call(one, "browser_wait_for", { session_id, selector: "#never", timeout_ms: 20000 }, { signal: controller.signal });
const cancelled = await waiting.then(() => false, () => true);

const second = (await call(two, "browser_open_session")).structuredContent.session_id;
const closed = await call(one, "browser_close_session", { session_id });
await call(two, "browser_close_session", { session_id: second });
const after = await call(one, "browser_text", { session_id });
const result = {
  version: one.getNegotiatedProtocolVersion?.() ?? null,
  tools, progress, opened, navigated, snapshot, typed, text, shot, wrong, stranger, listed, mine, cancelled, closed, after,
};
await Promise.all([one.close(), two.close()]);
console.log(JSON.stringify(result));
