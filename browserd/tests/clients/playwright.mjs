// Tests Playwright over browserd's raw endpoint: connectOverCDP, the API's tab, a separate context, forms, dialogs,
// frames, popups, cookies, and a disconnect that leaves the browser running.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const [endpoint, site] = process.argv.slice(2);
const browser = await chromium.connectOverCDP(endpoint, { timeout: 0 });
const [shared] = browser.contexts();
assert.ok(shared.pages().length >= 1, "the API's tab is visible");

const context = await browser.newContext();
// The test's own limit ends it if it hangs; a busy machine may be arbitrarily slow.
context.setDefaultTimeout(0);
const page = await context.newPage();
await page.goto(site + "/form");
assert.equal(await page.title(), "form");
await page.fill("#name", "from playwright");
await page.check("#agree");
await page.click("#send");
assert.match(await page.textContent("#got"), /name=from\+playwright.*agree=on/);

await page.goto(site + "/dialogs");
page.once("dialog", (dialog) => dialog.accept("playwright's answer"));
await page.click("#prompt");
assert.equal(await page.title(), "prompt playwright's answer");

await page.goto(site + "/frames");
await page.frameLocator("#other").locator("#inner").click();
assert.equal(await page.frameLocator("#other").locator("#inner").textContent(), "pressed");

const picture = await page.screenshot();
assert.equal(picture.subarray(1, 4).toString(), "PNG");
const [popup] = await Promise.all([
  page.waitForEvent("popup"),
  page.evaluate(() => { window.open("/title?popup"); }),
]);
await popup.waitForLoadState();
assert.equal(await popup.title(), "popup");
await context.addCookies([{ name: "p", value: "w", domain: "127.0.0.1", path: "/" }]);
assert.equal((await context.cookies()).length, 1);
await context.close();
await browser.close();
console.log("playwright: ok");
