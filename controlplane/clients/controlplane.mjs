// A client of the control plane's HTTP API, over the Unix socket or over the HTTP listener with a key.
import http from "node:http";
import https from "node:https";
import { operations } from "./operations.mjs";

/** An error of the API. */
export class ApiError extends Error {
  constructor(status, { code, message, hint, retryable, retry_after_seconds: retryAfterSeconds }) {
    super(message);
    Object.assign(this, { name: "ApiError", status, code, hint, retryable, retryAfterSeconds });
  }
}

/** The control plane. */
export class ControlPlane {
  #target;
  #key;

  constructor({ url = process.env.CONTROLPLANE_URL, socket = process.env.CONTROLPLANE_SOCKET, key = process.env.CONTROLPLANE_KEY } = {}) {
    if (!url && !socket) {
      throw new TypeError("name the service: url and key, or socket");
    }
    const { protocol, hostname, port } = new URL(url ?? "http://localhost");
    const address = hostname.replace(/^\[(.*)\]$/, "$1");
    this.#target = url ? { protocol, hostname: address, port } : { protocol: "http:", socketPath: socket, host: "localhost" };
    this.#key = key;
  }

  /** Carry out an operation. Its parameters are those of the path, and of the body or the query. */
  async call(name, params = {}, { signal, idempotencyKey } = {}) {
    const operation = operations[name];
    if (!operation) {
      throw new TypeError(`unknown operation ${name}`);
    }
    const [method, pattern, parts, answer] = operation;
    const rest = { ...params };
    let path = pattern;
    for (const part of parts) {
      if (rest[part] === undefined) {
        throw new TypeError(`${name} needs ${part}`);
      }
      path = path.replace(`{${part}}`, encodeURIComponent(rest[part]));
      delete rest[part];
    }
    const headers = {};
    let body;
    if (method === "POST") {
      body = JSON.stringify(rest);
      headers["content-type"] = "application/json";
      headers["content-length"] = Buffer.byteLength(body);
    } else if (Object.keys(rest).length > 0) {
      const given = Object.entries(rest).filter(([, value]) => value !== undefined);
      path += `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
    }
    if (this.#key) {
      headers.authorization = `Bearer ${this.#key}`;
    }
    if (idempotencyKey) {
      headers["idempotency-key"] = idempotencyKey;
    }
    const { status, bytes } = await this.#exchange({ method, path, headers, signal }, body);
    if (status < 200 || status > 299) {
      throw new ApiError(status, errorOf(status, bytes));
    }
    return answer === "json" ? JSON.parse(bytes.toString("utf8")) : bytes;
  }

  /** Open a session. Close it with `close()`, or leave that to `await using`. */
  async open(params = {}, options) {
    return new Session(this, await this.call("open_session", params, options));
  }

  #exchange(options, body) {
    const { request } = this.#target.protocol === "https:" ? https : http;
    return new Promise((resolve, reject) => {
      const sent = request({ ...this.#target, ...options }, (response) => {
        const parts = [];
        response.on("data", (part) => parts.push(part));
        response.on("error", reject);
        response.on("end", () => resolve({ status: response.statusCode, bytes: Buffer.concat(parts) }));
      });
      sent.on("error", reject);
      sent.end(body);
    });
  }
}

/** A session. */
export class Session {
  #service;

  constructor(service, view) {
    this.#service = service;
    this.view = view;
    this.id = view.session_id;
  }

  /** Carry out an operation of this session. */
  call(name, params = {}, options) {
    return this.#service.call(name, { ...params, session_id: this.id }, options);
  }

  /** The address for CDP clients. */
  async cdpAddress(params) {
    return this.call("cdp_address", params);
  }

  async close() {
    return this.call("close_session");
  }

  async [Symbol.asyncDispose ?? Symbol.for("asyncDispose")]() {
    await this.close();
  }
}

function errorOf(status, bytes) {
  try {
    return JSON.parse(bytes.toString("utf8")).error;
  } catch {
    return { code: "protocol", message: `the answer has status ${status} and is not JSON`, hint: "", retryable: false };
  }
}
