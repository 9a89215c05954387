// Tests two concurrent Puppeteer clients over browserd's raw endpoint: neither can use the other's sessions, and
// disconnecting one (even with Browser.close) does not affect the other.
import assert from "node:assert/strict";
import puppeteer from "puppeteer-core";

const [endpoint, site] = process.argv.slice(2);
// Puppeteer's browserURL drops the path and so the secret; the URL of the WebSocket keeps it.
const { webSocketDebuggerUrl } = await (await fetch(endpoint + "/json/version")).json();
const connect = () => puppeteer.connect({ browserWSEndpoint: webSocketDebuggerUrl, defaultViewport: null, protocolTimeout: 0 });
const [first, second] = await Promise.all([connect(), connect()]);

const work = async (browser, name) => {
  const page = await browser.newPage();
  // The test's own limit ends it if it hangs; a busy machine may be arbitrarily slow.
  page.setDefaultTimeout(0);
  await page.goto(site + "/form");
  await page.type("#mail", name + "@example.org");
  await Promise.all([page.waitForNavigation(), page.click("#send")]);
  const got = await page.$eval("#got", (element) => element.textContent);
  assert.match(got, new RegExp("mail=" + name + "%40example.org"));
  const picture = await page.screenshot();
  assert.ok(picture.length > 1000);
  return page;
};
const [mine, other] = await Promise.all([work(first, "first"), work(second, "second")]);

// A client cannot use another client's session.
const session = await mine.createCDPSession();
assert.equal((await session.send("Runtime.evaluate", { expression: "6 * 7" })).result.value, 42);
const answer = await new Promise((resolve, reject) => {
  import("puppeteer-core/internal/node/NodeWebSocketTransport.js").then(async ({ NodeWebSocketTransport }) => {
    const transport = await NodeWebSocketTransport.create(webSocketDebuggerUrl);
    transport.onmessage = (message) => { transport.close(); resolve(JSON.parse(message)); };
    transport.send(JSON.stringify({ id: 7, method: "Runtime.evaluate", params: { expression: "1" }, sessionId: session.id() }));
  }).catch(reject);
});
assert.equal(answer.id, 7);
assert.equal(answer.error.code, -32001);

await first.close();
assert.equal(await other.title(), "submitted");
await other.goto(site + "/title?still");
assert.equal(await other.title(), "still");
await other.close();
await second.disconnect();
console.log("puppeteer: ok");
