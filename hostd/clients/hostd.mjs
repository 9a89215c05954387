// A client for hostd without dependencies: JSON-RPC 2.0, one message a line, over hostd's Unix socket.
//
//   import { connect, retry } from "./hostd.mjs";
//   const hostd = await connect();
//   const { clone } = await retry(() => hostd.create({ request_id: "task-4711" }));
//   await hostd.destroy({ name: clone.name, clone_id: clone.clone_id });
//
// Parameters and results are exactly those of docs/openrpc.json; hostd.d.mts has their types.

import net from "node:net";

/** The socket that is used when neither `path` nor the variable HOSTD_SOCKET names one. */
export const defaultSocket =
  process.platform === "freebsd" ? "/var/run/hostd/hostd.sock" : "/run/hostd/hostd.sock";

/** An answer longer than this is not from hostd. */
const LONGEST_LINE = 16 * 1024 * 1024;

/**
 * A refusal or failure. `code` is one of hostd's stable words (docs/errors.md) or one of the client's own:
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

/** A client whose connection is up. */
export async function connect(options = {}) {
  const client = new Hostd(options);
  await client.open(options);
  return client;
}

/**
 * A client. It connects on the first call, and anew on the first call after the connection was lost. Calls on one
 * client run at the same time. It keeps the process alive only while calls are under way.
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

  /** Make a clone, or renew the lease of the clone that this request_id made. */
  create(params, options) {
    return this.call("browser-clone-create", params, options);
  }

  /** Take a clone away. A clone that is already gone is a success. */
  destroy(params, options) {
    return this.call("browser-clone-destroy", params, options);
  }

  /** Take away what is over: unfinished work, passed deadlines, orphans. */
  reap(params = {}, options) {
    return this.call("browser-clone-reap", params, options);
  }

  /** Force the mounts of a clone that is being destroyed. Operators only. */
  forceUnmount(params, options) {
    return this.call("browser-clone-force-unmount", params, options);
  }

  /** List all clones this host knows of. */
  list(params = {}, options) {
    return this.call("browser-clone-list", params, options);
  }

  /** Tell how the daemon and its host are. */
  status(params = {}, options) {
    return this.call("host-status", params, options);
  }

  /** The contract as an OpenRPC document. */
  discover(options) {
    return this.call("rpc.discover", {}, options);
  }

  /**
   * Call any method. `onProgress` is called for every step; `signal` and `timeoutMs` end the waiting, never the
   * work: hostd finishes what it began, and the same request_id joins it.
   */
  async call(method, params = {}, { onProgress, signal, timeoutMs = this.#timeoutMs } = {}) {
    return within({ signal, timeoutMs, what: method }, async (ended) => {
      const connection = await this.#connected();
      // Ended while the connection was made: nothing is sent.
      if (ended.aborted) throw ended.reason;
      return connection.call(method, params, { onProgress, ended });
    });
  }

  /** Connect now, to find out early that nobody answers. */
  async open({ signal, timeoutMs = this.#timeoutMs } = {}) {
    await within({ signal, timeoutMs, what: `connecting to ${this.#path}` }, () => this.#connected());
  }

  /** Close the connection. Calls under way fail with the code `closed`. */
  close() {
    this.#closed = true;
    this.#connection?.end(new HostdError("closed", "the client was closed"));
    this.#connection = null;
  }

  async #connected() {
    if (this.#closed) throw new HostdError("closed", "the client was closed");
    if (this.#connection?.alive) return this.#connection;
    // Calls that come while the connection is made share it.
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
      // Whoever no longer waits leaves no trace; a late answer has no one to go to.
      ended.addEventListener("abort", () => this.#calls.get(id)?.reject(ended.reason), { once: true });
      this.#socket.ref();
      this.#socket.write(`${JSON.stringify({ jsonrpc: "2.0", id, method, params })}\n`);
    });
  }

  /** Close; calls under way get this error. */
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
    // A long line comes in many pieces: it is only taken apart once its end is here.
    if (text.includes("\n")) {
      const lines = this.#rest.split("\n");
      this.#rest = lines.pop();
      for (const line of lines) {
        if (this.alive && line.trim() !== "") this.#message(line);
      }
    }
    if (this.#rest.length > LONGEST_LINE) this.#broken("the answer is too long");
  }

  #tell(progress) {
    const listener = this.#progress.get(progress.progress_token);
    try {
      listener?.onProgress(progress);
    } catch (error) {
      // The listener's own mistake belongs to its call, not to the process.
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
      this.#tell(message.params ?? {});
    } else if (message.error && (message.id === null || message.id === undefined)) {
      // A refusal of the connection itself, such as too_many_connections.
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

/** The longest time that setTimeout understands. */
const LONGEST_TIMER = 2 ** 31 - 1;

/**
 * Run an operation again while it fails with a retryable HostdError, waiting as long as hostd said or a little longer
 * each time. `attempts` counts the first one. Only for calls that may be repeated; all of hostd's may.
 */
export async function retry(operation, { attempts = 5, firstDelayMs = 200, longestDelayMs = 10_000, signal } = {}) {
  for (let attempt = 1; ; attempt++) {
    signal?.throwIfAborted();
    try {
      return await operation(attempt);
    } catch (error) {
      if (!(error instanceof HostdError) || !error.retryable || attempt >= attempts) throw error;
      const growing = Math.min(longestDelayMs, firstDelayMs * 2 ** (attempt - 1));
      // Half fixed, half random: many callers that were refused at once do not come back at once.
      const delay = error.retryAfterMs ?? growing / 2 + (Math.random() * growing) / 2;
      await sleep(delay, signal);
    }
  }
}

/** Run work until it ends, the signal fires or the time is over; `ended` fires for the latter two. */
async function within({ signal, timeoutMs, what }, work) {
  signal?.throwIfAborted();
  const ended = new AbortController();
  const abort = () => ended.abort(signal.reason);
  signal?.addEventListener("abort", abort, { once: true });
  let timer;
  if (Number.isFinite(timeoutMs)) {
    const hint = "hostd goes on with it; ask again, the same request_id joins it";
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
