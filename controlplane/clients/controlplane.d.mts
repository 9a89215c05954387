import type { Operations, SessionView, OpenSession, CdpAddress, AskForAddress, ClosedSession } from "./contract.d.mts";
export type * from "./contract.d.mts";

/** An error of the API. */
export class ApiError extends Error {
  status: number;
  code: string;
  hint: string;
  retryable: boolean;
  retryAfterSeconds?: number;
}

export interface Options {
  /** Ends the call. */
  signal?: AbortSignal;
  /** Of `open_session`: a second open with the same key answers the same session. */
  idempotencyKey?: string;
}

type Name = keyof Operations;
/** Operations of a session. */
export type OfSession = { [N in Name]: Operations[N]["params"] extends { session_id: string } ? N : never }[Name];

/** The control plane. */
export class ControlPlane {
  constructor(where?: { url?: string; key?: string; socket?: string });
  call<N extends Name>(name: N, params?: Operations[N]["params"], options?: Options): Promise<Operations[N]["result"]>;
  open(params?: OpenSession, options?: Options): Promise<Session>;
}

/** A session. */
export class Session {
  readonly id: string;
  readonly view: SessionView;
  call<N extends OfSession>(
    name: N,
    params?: Omit<Operations[N]["params"], "session_id">,
    options?: Options,
  ): Promise<Operations[N]["result"]>;
  cdpAddress(params?: AskForAddress): Promise<CdpAddress>;
  close(): Promise<ClosedSession>;
}
