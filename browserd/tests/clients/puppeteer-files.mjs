// Tests what Puppeteer's own calls for files do, and how their bytes get in and out.
import assert from "node:assert/strict";
import puppeteer from "puppeteer-core";

const [endpoint, site] = process.argv.slice(2);
const { webSocketDebuggerUrl } = await (await fetch(endpoint + "/json/version")).json();
const browser = await puppeteer.connect({
  browserWSEndpoint: webSocketDebuggerUrl, defaultViewport: null, protocolTimeout: 0,
  downloadBehavior: { policy: "allow", downloadPath: "/home/me/Downloads" },
});
const completed = async (part) => {
  for (;;) {
    const { downloads } = await (await fetch(endpoint + "/v1/downloads")).json();
    const done = downloads.find((one) => one.url.endsWith(part) && one.state === "completed");
    if (done) return (await fetch(`${endpoint}/v1/downloads/${done.guid}`)).text();
  }
};
// The folder that Puppeteer names is one of its own machine. The file is kept by browserd, in every context.
const page = await browser.newPage();
page.setDefaultTimeout(0);
await page.goto(site + "/download?5").catch(() => undefined);
assert.equal((await completed("?5")).length, 5 * 19);
const context = await browser.createBrowserContext();
const inContext = await context.newPage();
await inContext.goto(site + "/download?6").catch(() => undefined);
assert.equal((await completed("?6")).length, 6 * 19);
await context.close();

// Puppeteer passes the path on, so uploadFile takes the path that browserd returned.
const put = await fetch(endpoint + "/v1/files?name=from%20puppeteer.txt", {
  method: "POST", body: "hello", headers: { "Content-Type": "application/octet-stream" },
});
const { path } = await put.json();
await page.goto(site + "/upload");
const input = await page.$("#one");
await input.uploadFile(path);
await page.waitForFunction(() => log.join() === "one:from puppeteer.txt=hello");
await assert.rejects(input.uploadFile("/home/me/report.csv"), /does not exist in the clone/);
await page.close();
await browser.disconnect();
console.log("puppeteer files: ok");
