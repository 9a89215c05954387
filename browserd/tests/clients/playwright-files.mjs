// Tests what Playwright's own calls for files do over connectOverCDP, and how their bytes get in and out.
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const [endpoint, site] = process.argv.slice(2);
const get = (path) => fetch(endpoint + path);
const browser = await chromium.connectOverCDP(endpoint, { timeout: 0 });
const made = await browser.newContext();
made.setDefaultTimeout(0);

const page = await made.newPage();
// The event, the URL and the name are Playwright's own. The file is in the clone: fetch it by HTTP.
const [download] = await Promise.all([
  page.waitForEvent("download"),
  page.goto(site + "/download?7").catch((error) => assert.match(error.message, /Download is starting/)),
]);
assert.equal(download.suggestedFilename(), "report.csv");
// For Playwright it failed, because the file is not in the folder that Playwright named.
assert.equal(await download.failure(), "canceled");
const { downloads } = await (await get("/v1/downloads")).json();
const mine = downloads.find((one) => one.url === download.url() && one.state === "completed");
const bytes = await (await get(`/v1/downloads/${mine.guid}?delete=true`)).text();
assert.equal(bytes, "the file's content\n".repeat(7));
// Playwright's calls that read the file fail. None gives an empty file.
const never = "/tmp/browserd-test-never-" + process.pid;
await assert.rejects(download.saveAs(never), /canceled/);
assert.ok(!existsSync(never));
await assert.rejects(download.path(), /canceled/);
await assert.rejects(download.createReadStream(), /canceled/);

// In the default context Playwright asks for nothing, and browserd keeps the download.
const [context] = browser.contexts();
context.setDefaultTimeout(0);
const shared = await context.newPage();
await shared.goto(site + "/download?8").catch(() => undefined);
let other;
while (!other) {
  const list = (await (await get("/v1/downloads")).json()).downloads;
  other = list.find((one) => one.url.endsWith("?8") && one.state === "completed");
}
assert.equal((await (await get("/v1/downloads/" + other.guid)).text()).length, 8 * 19);

// Uploads: from memory with Playwright's own call.
await page.goto(site + "/upload");
await page.setInputFiles("#one", { name: "memory.txt", mimeType: "text/plain", buffer: Buffer.from("from memory") });
await page.waitForFunction(() => log.join() === "one:memory.txt=from memory");
// A large file is put into the clone first. Its path is given by CDP, because Playwright looks for it on its own machine.
const put = await fetch(endpoint + "/v1/files?name=big.bin", {
  method: "POST", body: "x".repeat(100000), headers: { "Content-Type": "application/octet-stream" },
});
const { path } = await put.json();
await assert.rejects(page.setInputFiles("#one", "/nowhere" + path), /ENOENT/);
const cdp = await made.newCDPSession(page);
const { result } = await cdp.send("Runtime.evaluate", { expression: "document.querySelector('#many')" });
await cdp.send("DOM.setFileInputFiles", { files: [path], objectId: result.objectId });
assert.equal(await page.evaluate(() => many.files[0].name + many.files[0].size), "big.bin100000");
// A file that the clone does not have is refused. The page would get an empty one.
await assert.rejects(
  cdp.send("DOM.setFileInputFiles", { files: ["/home/me/report.csv"], objectId: result.objectId }),
  /does not exist in the clone.*\/v1\/files/,
);
await made.close();
await browser.close();
console.log("playwright files: ok");
