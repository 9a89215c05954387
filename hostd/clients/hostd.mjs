// A client for hostd without dependencies: JSON-RPC 2.0, one message per line, over hostd's Unix socket.
//
//   import { connect, retry } from "./hostd.mjs";
//   const hostd = await connect();
//   const { clone } = await retry(() => hostd.create({ request_id: "task-4711" }));
//   await hostd.destroy({ name: clone.name, clone_id: clone.clone_id });
//
// Parameters and results are exactly those of docs/openrpc.json; hostd.d.mts has their types.

import net from "node:net";

/** The default socket, if neither `path` nor the variable HOSTD_SOCKET is set. */
export const defaultSocket =
  process.platform === "freebsd" ? "/var/run/hostd/hostd.sock" : "/run/hostd/hostd.sock";

/** No answer of hostd is longer. */
const LONGEST_LINE = 16 * 1024 * 1024;

/**
 * An error. `code` is one of hostd's codes (docs/errors.md) or one of the client's own:
 * `unreachable`, `disconnected`, `timeout`, `protocol`, `closed`.
 */
export class HostdError extends Error {
  constructor(code, message, { hint = "", retryable = false, number, retryAfterMs, step, clone, cleanup, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "HostdError";
    this.code = code;
    this.hint = hint;
    this.retryable = retryable;
    this.number = number;
    this.retryAfterMs = retryAfterMs;
    this.step = step;
    this.clone = clone;
    this.cleanup = cleanup ?? [];
  }

  /** From the `error` member of an answer. */
  static fromAnswer(error) {
    const data = error.data ?? {};
    return new HostdError(data.code ?? "protocol", error.message ?? "an error without a message", {
      hint: data.hint,
      retryable: data.retryable,
      number: error.code,
      retryAfterMs: data.retry_after_ms,
      step: data.step,
      clone: data.name,
      cleanup: data.cleanup,
    });
  }
}

/** Connect and return a client. */
export async function connect(options = {}) {
  const client = new Hostd(options);
  await client.open(options);
  return client;
}

/**
 * A client. It connects on the first call, and again on the first call after the connection was lost. Calls run
 * concurrently. It keeps the process alive only while calls are running.
 */
export class Hostd {
  #path;
  #timeoutMs;
  #connecting = null;
  #connection = null;
  #closed = false;

  constructor({ path, timeoutMs = 300_000 } = {}) {
    this.#path = path ?? (process.env.HOSTD_SOCKET || defaultSocket);
    this.#timeoutMs = timeoutMs;
  }

  /** Create a clone, or renew the lease of the clone with this request_id. */
  create(params, options) {
    return this.call("browser-clone-create", params, options);
  }

  /** Destroy a clone. Destroying an absent clone succeeds. */
  destroy(params, options) {
    return this.call("browser-clone-destroy", params, options);
  }

  /** Destroy what is due: unfinished operations, expired clones, orphans. */
  reap(params = {}, options) {
    return this.call("browser-clone-reap", params, options);
  }

  /** Force-unmount a clone that is being destroyed. Operators only. */
  forceUnmount(params, options) {
    return this.call("browser-clone-force-unmount", params, options);
  }

  /** List the clones of this host. */
  list(params = {}, options) {
    return this.call("browser-clone-list", params, options);
  }

  /** Return the state of the daemon and its host. */
  status(params = {}, options) {
    return this.call("host-status", params, options);
  }

  /** The contract as an OpenRPC document. */
  discover(options) {
    return this.call("rpc.discover", {}, options);
  }

  /**
   * Call any method. `onProgress` is called for every step. `signal` and `timeoutMs` end the waiting, not the
   * operation: hostd finishes it, and a call with the same request_id joins it.
   */
  async call(method, params = {}, { onProgress, signal, timeoutMs = this.#timeoutMs } = {}) {
    return within({ signal, timeoutMs, what: method }, async (ended) => {
      const connection = await this.#connected();
      // Aborted while connecting: nothing is sent.
      if (ended.aborted) throw ended.reason;
      return connection.call(method, params, { onProgress, ended });
    });
  }

  /** Connect now, so that an unreachable daemon is reported early. */
  async open({ signal, timeoutMs = this.#timeoutMs } = {}) {
    await within({ signal, timeoutMs, what: `connecting to ${this.#path}` }, () => this.#connected());
  }

  /** Close the connection. Running calls fail with the code `closed`. */
  close() {
    this.#closed = true;
    this.#connection?.end(new HostdError("closed", "the client was closed"));
    this.#connection = null;
  }

  async #connected() {
    if (this.#closed) throw new HostdError("closed", "the client was closed");
    if (this.#connection?.alive) return this.#connection;
    // Concurrent calls share one connection attempt.
    this.#connecting ??= Connection.open(this.#path).finally(() => (this.#connecting = null));
    const connection = await this.#connecting;
    if (this.#closed) {
      connection.end();
      throw new HostdError("closed", "the client was closed");
    }
    this.#connection = connection;
    return connection;
  }
}

/** One connection: requests out, answers and progress in, matched by id and token. */
class Connection {
  alive = true;
  #socket;
  #calls = new Map();
  #progress = new Map();
  #last = 0;
  #rest = "";

  static open(path) {
    return new Promise((resolve, reject) => {
      const socket = net.createConnection(path);
      const refused = (cause) => {
        const denied = cause.code === "EACCES" || cause.code === "EPERM";
        const hint = denied ? "join the group that owns the socket, usually hostd" : "is hostd running?";
        const message = `cannot connect to ${path}: ${cause.message}`;
        reject(new HostdError(denied ? "denied" : "unreachable", message, { hint, retryable: !denied, cause }));
      };
      socket.once("error", refused);
      socket.once("connect", () => {
        socket.off("error", refused);
        resolve(new Connection(socket));
      });
    });
  }

  constructor(socket) {
    this.#socket = socket;
    socket.setEncoding("utf8");
    socket.on("data", (text) => this.#receive(text));
    socket.on("error", (cause) => this.#lost(cause));
    socket.on("close", () => this.#lost());
    socket.unref();
  }

  call(method, params, { onProgress, ended }) {
    return new Promise((resolve, reject) => {
      const id = ++this.#last;
      let token;
      if (onProgress) {
        token = params.progress_token ?? `p${id}`;
        params = { ...params, progress_token: token };
        this.#progress.set(token, { id, onProgress });
      }
      const settle = (answer) => {
        this.#calls.delete(id);
        if (token !== undefined) this.#progress.delete(token);
        if (this.#calls.size === 0) this.#socket.unref();
        answer();
      };
      this.#calls.set(id, {
        resolve: (value) => settle(() => resolve(value)),
        reject: (error) => settle(() => reject(error)),
      });
      // An aborted call is removed; its late answer is ignored.
      ended.addEventListener("abort", () => this.#calls.get(id)?.reject(ended.reason), { once: true });
      this.#socket.ref();
      this.#socket.write(`${JSON.stringify({ jsonrpc: "2.0", id, method, params })}\n`);
    });
  }

  /** Close; running calls fail with this error. */
  end(error = new HostdError("closed", "the connection was closed")) {
    if (!this.alive) return;
    this.alive = false;
    this.#socket.destroy();
    for (const call of [...this.#calls.values()]) call.reject(error);
  }

  #lost(cause) {
    const hint = "repeat the call: the same request_id answers the same clone";
    this.end(new HostdError("disconnected", "hostd closed the connection", { hint, retryable: true, cause }));
  }

  #broken(message) {
    this.end(new HostdError("protocol", message, { hint: "is this hostd's socket?" }));
  }

  #receive(text) {
    this.#rest += text;
    // A long line arrives in many chunks: split only when a newline has arrived.
    if (text.includes("\n")) {
      const lines = this.#rest.split("\n");
      this.#rest = lines.pop();
      for (const line of lines) {
        if (this.alive && line.trim() !== "") this.#message(line);
      }
    }
    if (this.#rest.length > LONGEST_LINE) this.#broken("the answer is too long");
  }

  #notify(progress) {
    const listener = this.#progress.get(progress.progress_token);
    try {
      listener?.onProgress(progress);
    } catch (error) {
      // An exception of the listener fails its call, not the process.
      this.#calls.get(listener.id)?.reject(error);
    }
  }

  #message(line) {
    let message;
    try {
      message = JSON.parse(line);
    } catch {
      return this.#broken("the answer is not JSON");
    }
    if (message === null || typeof message !== "object" || message.jsonrpc !== "2.0") {
      return this.#broken("the answer is not JSON-RPC 2.0");
    }
    if (message.method === "progress") {
      this.#notify(message.params ?? {});
    } else if (message.error && (message.id === null || message.id === undefined)) {
      // An error of the connection itself, such as too_many_connections.
      this.end(HostdError.fromAnswer(message.error));
    } else if (message.error) {
      this.#calls.get(message.id)?.reject(HostdError.fromAnswer(message.error));
    } else if ("result" in message) {
      this.#calls.get(message.id)?.resolve(message.result);
    } else if (message.method === undefined) {
      this.#broken("the answer has neither result nor error");
    }
  }
}

/** The longest delay of setTimeout. */
const LONGEST_TIMER = 2 ** 31 - 1;

/**
 * Repeat an operation while it fails with a retryable HostdError, after the delay that hostd returned or with exponential
 * backoff. `attempts` includes the first one. Only for idempotent calls, as all of hostd's are.
 */
export async function retry(operation, { attempts = 5, firstDelayMs = 200, longestDelayMs = 10_000, signal } = {}) {
  for (let attempt = 1; ; attempt++) {
    signal?.throwIfAborted();
    try {
      return await operation(attempt);
    } catch (error) {
      if (!(error instanceof HostdError) || !error.retryable || attempt >= attempts) throw error;
      const growing = Math.min(longestDelayMs, firstDelayMs * 2 ** (attempt - 1));
      // Half of the delay is random, so that callers refused together do not retry together.
      const delay = error.retryAfterMs ?? growing / 2 + (Math.random() * growing) / 2;
      await sleep(delay, signal);
    }
  }
}

/** Run work until it ends, the signal fires or the timeout passes; `ended` fires for the latter two. */
async function within({ signal, timeoutMs, what }, work) {
  signal?.throwIfAborted();
  const ended = new AbortController();
  const abort = () => ended.abort(signal.reason);
  signal?.addEventListener("abort", abort, { once: true });
  let timer;
  if (Number.isFinite(timeoutMs)) {
    const hint = "the operation continues; repeat the call, the same request_id joins it";
    const error = new HostdError("timeout", `${what}: no answer within ${timeoutMs} ms`, { hint, retryable: true });
    timer = setTimeout(() => ended.abort(error), Math.min(timeoutMs, LONGEST_TIMER));
  }
  const over = new Promise((_, reject) => {
    ended.signal.addEventListener("abort", () => reject(ended.signal.reason), { once: true });
  });
  try {
    return await Promise.race([work(ended.signal), over]);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}

function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, Math.min(ms, LONGEST_TIMER));
    signal?.addEventListener("abort", abort, { once: true });
  });
}
