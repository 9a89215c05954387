// What an agent does with a session: open it and read a page by MCP, then drive the same browser with Playwright.
//
//   node agent.mjs BROWSERCTL URL SCREENSHOT
//
// BROWSERCTL_SOCKET names the service's socket. It prints what each step took.

import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { chromium } from "playwright-core";

const [browserctl, url, screenshot] = process.argv.slice(2);
const timings = [];

async function step(what, work) {
  const start = performance.now();
  const result = await work();
  timings.push([what, performance.now() - start]);
  return result;
}

const mcp = new Client({ name: "quickstart", version: "1" });

// A tool's answer; its error as an exception.
async function tool(name, args) {
  const answer = await mcp.callTool({ name, arguments: args });
  if (answer.isError) throw new Error(`${name}: ${answer.content.map((part) => part.text).join(" ")}`);
  return answer;
}

const transport = new StdioClientTransport({ command: browserctl, args: ["mcp"], env: { ...process.env }, stderr: "inherit" });
await step("MCP: connect", () => mcp.connect(transport));
const { tools } = await mcp.listTools();
console.log(`${tools.length} tools by MCP: ${tools.map((each) => each.name).join(" ")}`);
const opened = await step("MCP: browser_open_session", () => tool("browser_open_session", { record: "audit" }));
const { session_id } = opened.structuredContent;
try {
  const page = await step("MCP: browser_navigate", () => tool("browser_navigate", { session_id, url }));
  console.log(`page: ${page.structuredContent.title} (${page.structuredContent.status}) at ${page.structuredContent.final_url}`);
  const picture = await step("MCP: browser_screenshot", () => tool("browser_screenshot", { session_id }));
  const image = picture.content.find((part) => part.type === "image");
  writeFileSync(screenshot, Buffer.from(image.data, "base64"));

  const address = execFileSync(browserctl, ["cdp", "--session", session_id], { encoding: "utf8" }).trim();
  const browser = await step("Playwright: connectOverCDP", () => chromium.connectOverCDP(address));
  const tab = browser.contexts()[0].pages()[0];
  const heading = await step("Playwright: read the page", () => tab.locator("h1").innerText());
  console.log(`Playwright sees the same page: ${heading}`);
  await browser.close();
} finally {
  await step("MCP: browser_close_session", () => tool("browser_close_session", { session_id }));
  await mcp.close();
}
console.log();
for (const [what, milliseconds] of timings) console.log(`${what.padEnd(32)} ${milliseconds.toFixed(1).padStart(9)} ms`);
