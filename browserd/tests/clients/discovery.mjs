// Tests discovery by HTTP: chrome-remote-interface with its defaults, and ChromeDriver's debuggerAddress.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import http from "node:http";
import net from "node:net";
import CDP from "chrome-remote-interface";

const [endpoint, site] = process.argv.slice(2);
const { hostname, port, pathname } = new URL(endpoint);

// chrome-remote-interface takes a host and a port, and a function that changes its paths: there the secret is put. The path
// of the WebSocket has it already.
const alterPath = (path) => (path.startsWith(pathname) ? path : pathname + path);
const options = { host: hostname, port, alterPath };
const version = await CDP.Version(options);
assert.match(version["WebKit-Version"], /^537\.36 \(@[0-9a-f]+\)$/);
assert.equal(version.browserGeneration, 1);
const opened = await CDP.New({ ...options, url: site + "/title?opened" });
assert.equal(opened.type, "page");
assert.ok((await CDP.List(options)).some((target) => target.id === opened.id));
// Its methods are built from /json/protocol, and its WebSocket is that of a page.
const client = await CDP({ ...options, target: opened.id });
const { Page, Runtime, Input } = client;
assert.equal(typeof Input.setInterceptDrags, "function", "the protocol of this Chromium");
await Page.enable();
const loaded = Page.loadEventFired();
await Page.navigate({ url: site + "/title?remote" });
await loaded;
assert.equal((await Runtime.evaluate({ expression: "document.title" })).result.value, "remote");
await CDP.Activate({ ...options, id: opened.id });
const gone = new Promise((resolve) => client.on("disconnect", resolve));
await CDP.Close({ ...options, id: opened.id });
await gone;
assert.ok(!(await CDP.List(options)).some((target) => target.id === opened.id));

// ChromeDriver's debuggerAddress has only a host and a port. A forwarder of one's own adds the header.
const forwarder = http.createServer((request, response) => {
  const headers = { ...request.headers, authorization: "Bearer " + pathname.slice(1) };
  const out = http.request({ host: hostname, port, method: request.method, path: request.url, headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  request.pipe(out);
});
forwarder.on("upgrade", (request, socket) => {
  const lines = [`GET ${request.url} HTTP/1.1`, `Authorization: Bearer ${pathname.slice(1)}`];
  for (const [name, value] of Object.entries(request.headers)) lines.push(`${name}: ${value}`);
  const out = net.connect(port, hostname, () => out.write(lines.join("\r\n") + "\r\n\r\n"));
  for (const end of [socket, out]) end.on("error", () => { socket.destroy(); out.destroy(); });
  socket.pipe(out).pipe(socket);
});
await new Promise((done) => forwarder.listen(0, "127.0.0.1", done));
const debuggerAddress = "127.0.0.1:" + forwarder.address().port;
const driver = spawn("chromedriver", ["--port=0"], { stdio: ["ignore", "pipe", "inherit"] });
try {
  const driverPort = await new Promise((resolve) => {
    let text = "";
    driver.stdout.on("data", (part) => {
      text += part;
      const found = text.match(/started successfully on port (\d+)/);
      if (found) resolve(found[1]);
    });
  });
  const call = async (method, path, body) => {
    const answer = await fetch(`http://127.0.0.1:${driverPort}${path}`, { method, body: body && JSON.stringify(body) });
    const { value } = await answer.json();
    assert.ok(answer.ok, JSON.stringify(value).slice(0, 500));
    return value;
  };
  const capabilities = { alwaysMatch: { browserName: "chrome", "goog:chromeOptions": { debuggerAddress } } };
  const { sessionId } = await call("POST", "/session", { capabilities });
  await call("POST", `/session/${sessionId}/url`, { url: site + "/form" });
  assert.equal(await call("GET", `/session/${sessionId}/title`), "form");
  const element = Object.values(await call("POST", `/session/${sessionId}/element`, { using: "css selector", value: "#name" }))[0];
  await call("POST", `/session/${sessionId}/element/${element}/value`, { text: " by driver" });
  const text = await call("GET", `/session/${sessionId}/element/${element}/property/value`);
  assert.equal(text, "old by driver");
  // The end of a session that was attached to a browser does not end the browser.
  await call("DELETE", `/session/${sessionId}`);
} finally {
  driver.kill();
  forwarder.closeAllConnections();
  forwarder.close();
}
console.log("discovery: ok");
