// CDP without a library: wait until a page runs script, as a clone's create does.

/** Connect to the browser, find its page and evaluate an expression in it. */
export async function pageAnswers(endpoint) {
  const socket = new WebSocket(endpoint);
  await new Promise((good, bad) => {
    socket.onopen = good;
    socket.onerror = () => bad(new Error(`${endpoint} cannot be reached`));
  });
  const waiting = new Map();
  let calls = 0;
  let pageThere;
  const page = new Promise((good) => { pageThere = good; });
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    if (message.method === "Target.attachedToTarget" && message.params.targetInfo.type === "page") pageThere(message.params.sessionId);
    waiting.get(message.id)?.(message);
  };
  const call = (method, params, sessionId) => new Promise((good) => {
    waiting.set(++calls, good);
    socket.send(JSON.stringify({ id: calls, method, params, sessionId }));
  });
  await call("Target.setAutoAttach", { autoAttach: true, waitForDebuggerOnStart: false, flatten: true });
  const answer = await call("Runtime.evaluate", { expression: "1 + 1" }, await page);
  socket.close();
  if (answer.result?.result?.value !== 2) throw new Error(`unexpected reply of the page: ${JSON.stringify(answer)}`);
}
