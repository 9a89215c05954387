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

/** The socket that is used when neither `path` nor the variable HOSTD_SOCKET names one. */
export declare const defaultSocket: string;

/** Codes of the client itself, beside hostd's own. */
export type ClientErrorCode = "unreachable" | "disconnected" | "timeout" | "protocol" | "closed";

/** A refusal or failure. */
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
  /** What the reader can do about it. */
  readonly hint: string;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  /** The JSON-RPC number, if hostd sent the error. */
  readonly number?: number;
  /** How long to wait before the next try, where that is known. */
  readonly retryAfterMs?: number;
  /** The step that failed. */
  readonly step?: string;
  /** The clone it is about. */
  readonly clone?: string;
  /** What went wrong while cleaning up after the first error. */
  readonly cleanup: string[];
}

export interface ConnectOptions {
  /** The socket; else the variable HOSTD_SOCKET, else the usual place. */
  path?: string;
  /** How long a call may take unless it says otherwise; 5 minutes. Infinity: for ever. */
  timeoutMs?: number;
}

export interface WaitOptions {
  /** Ends the waiting, never the work. */
  signal?: AbortSignal;
  /** How long to wait. */
  timeoutMs?: number;
}

export interface CallOptions extends WaitOptions {
  /** Called for every step that begins, ends or fails. */
  onProgress?: (progress: Progress) => void;
}

/** A client whose connection is up. */
export declare function connect(options?: ConnectOptions & WaitOptions): Promise<Hostd>;

/** A client. It connects on the first call, and anew on the first call after the connection was lost. */
export declare class Hostd {
  constructor(options?: ConnectOptions);
  /** Make a clone, or renew the lease of the clone that this request_id made. */
  create(params: CreateParams, options?: CallOptions): Promise<CreateResult>;
  /** Take a clone away. A clone that is already gone is a success. */
  destroy(params: DestroyParams, options?: CallOptions): Promise<DestroyResult>;
  /** Take away what is over: unfinished work, passed deadlines, orphans. */
  reap(params?: ReapParams, options?: CallOptions): Promise<ReapResult>;
  /** Force the mounts of a clone that is being destroyed. Operators only. */
  forceUnmount(params: ForceUnmountParams, options?: CallOptions): Promise<ForceUnmountResult>;
  /** List all clones this host knows of. */
  list(params?: ListParams, options?: WaitOptions): Promise<ListResult>;
  /** Tell how the daemon and its host are. */
  status(params?: StatusParams, options?: WaitOptions): Promise<StatusResult>;
  /** The contract as an OpenRPC document. */
  discover(options?: WaitOptions): Promise<Methods["rpc.discover"]["result"]>;
  /** Call any method. */
  call<M extends keyof Methods>(
    method: M,
    params?: Methods[M]["params"],
    options?: CallOptions,
  ): Promise<Methods[M]["result"]>;
  /** Connect now, to find out early that nobody answers. */
  open(options?: WaitOptions): Promise<void>;
  /** Close the connection. Calls under way fail with the code `closed`. */
  close(): void;
}

export interface RetryOptions {
  /** How often, the first time included; 5. */
  attempts?: number;
  /** The first wait when hostd does not say how long; doubles each time. */
  firstDelayMs?: number;
  /** The longest such wait. */
  longestDelayMs?: number;
  /** Ends the waiting between the tries. */
  signal?: AbortSignal;
}

/** Run an operation again while it fails with a retryable HostdError, waiting as long as hostd said. */
export declare function retry<T>(
  operation: (attempt: number) => T | Promise<T>,
  options?: RetryOptions,
): Promise<T>;
