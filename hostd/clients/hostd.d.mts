// Types of hostd.mjs. Parameters, results and error codes come from contract.d.mts, which is generated.

import type {
  CreateParams,
  CreateResult,
  DestroyParams,
  DestroyResult,
  ErrorCode,
  ForceUnmountParams,
  ForceUnmountResult,
  ListParams,
  ListResult,
  Methods,
  Progress,
  ReapParams,
  ReapResult,
  StatusParams,
  StatusResult,
} from "./contract.mjs";

export type * from "./contract.mjs";

/** The default socket, if neither `path` nor the variable HOSTD_SOCKET is set. */
export declare const defaultSocket: string;

/** Codes of the client, in addition to those of hostd. */
export type ClientErrorCode = "unreachable" | "disconnected" | "timeout" | "protocol" | "closed";

/** An error. */
export declare class HostdError extends Error {
  constructor(
    code: ErrorCode | ClientErrorCode,
    message: string,
    details?: Partial<
      Pick<HostdError, "hint" | "retryable" | "number" | "retryAfterMs" | "step" | "clone" | "cleanup" | "cause">
    >,
  );
  readonly name: "HostdError";
  /** The stable code. */
  readonly code: ErrorCode | ClientErrorCode;
  /** What the caller can do about it. */
  readonly hint: string;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  /** The JSON-RPC number, if hostd sent the error. */
  readonly number?: number;
  /** How long to wait before a retry, if known. */
  readonly retryAfterMs?: number;
  /** The step that failed. */
  readonly step?: string;
  /** The clone it is about. */
  readonly clone?: string;
  /** Errors of the rollback. */
  readonly cleanup: string[];
}

export interface ConnectOptions {
  /** The socket; default: the variable HOSTD_SOCKET, else `defaultSocket`. */
  path?: string;
  /** The default timeout of a call; 5 minutes. Infinity: none. */
  timeoutMs?: number;
}

export interface WaitOptions {
  /** Ends the waiting, not the operation. */
  signal?: AbortSignal;
  /** The timeout. */
  timeoutMs?: number;
}

export interface CallOptions extends WaitOptions {
  /** Called for every step that begins, ends or fails. */
  onProgress?: (progress: Progress) => void;
}

/** Connect and return a client. */
export declare function connect(options?: ConnectOptions & WaitOptions): Promise<Hostd>;

/** A client. It connects on the first call, and again on the first call after the connection was lost. */
export declare class Hostd {
  constructor(options?: ConnectOptions);
  /** Create a clone, or renew the lease of the clone with this request_id. */
  create(params: CreateParams, options?: CallOptions): Promise<CreateResult>;
  /** Destroy a clone. Destroying an absent clone succeeds. */
  destroy(params: DestroyParams, options?: CallOptions): Promise<DestroyResult>;
  /** Destroy what is due: unfinished operations, expired clones, orphans. */
  reap(params?: ReapParams, options?: CallOptions): Promise<ReapResult>;
  /** Force-unmount a clone that is being destroyed. Operators only. */
  forceUnmount(params: ForceUnmountParams, options?: CallOptions): Promise<ForceUnmountResult>;
  /** List the clones of this host. */
  list(params?: ListParams, options?: WaitOptions): Promise<ListResult>;
  /** Return the state of the daemon and its host. */
  status(params?: StatusParams, options?: WaitOptions): Promise<StatusResult>;
  /** The contract as an OpenRPC document. */
  discover(options?: WaitOptions): Promise<Methods["rpc.discover"]["result"]>;
  /** Call any method. */
  call<M extends keyof Methods>(
    method: M,
    params?: Methods[M]["params"],
    options?: CallOptions,
  ): Promise<Methods[M]["result"]>;
  /** Connect now, so that an unreachable daemon is reported early. */
  open(options?: WaitOptions): Promise<void>;
  /** Close the connection. Running calls fail with the code `closed`. */
  close(): void;
}

export interface RetryOptions {
  /** The number of attempts, including the first one; 5. */
  attempts?: number;
  /** The first delay if hostd returned none; it doubles each time. */
  firstDelayMs?: number;
  /** The longest such delay. */
  longestDelayMs?: number;
  /** Ends the delay between attempts. */
  signal?: AbortSignal;
}

/** Repeat an operation while it fails with a retryable HostdError, after the delay that hostd returned. */
export declare function retry<T>(
  operation: (attempt: number) => T | Promise<T>,
  options?: RetryOptions,
): Promise<T>;
