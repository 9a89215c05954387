// Generated from docs/openrpc.json; do not edit.
// HOSTD_UPDATE_DOCS=1 cargo test -p hostd --test docs

/** The caller's own name for one request. Repeating it renews the lease of the same clone. */
export type RequestId = string;

/** On whose behalf a clone is made; only counted against the tenant's cap and shown. */
export type Tenant = string;

/** A clone's name: the pool's prefix and the three digits of its slot. */
export type CloneName = string;

/** A template's snapshot, by its bare name. */
export type SnapshotName = string;

/** What a clone may use. In a request: wishes, each at most the configured limit. In an answer: what is on. */
export interface Limits {
  /** Memory of all its processes together, in bytes. */
  memory_bytes?: number;
  /** Number of processes (threads on Linux). */
  processes?: number;
  /** Open files of one process. */
  open_files?: number;
  /** Processor time: 100 is one core. */
  cpu_percent?: number;
  /** What the clone may add to its template on disk, in bytes. */
  disk_bytes?: number;
  /** Bytes read from disk in a second. */
  read_bytes_per_second?: number;
  /** Bytes written to disk in a second. */
  write_bytes_per_second?: number;
}

/** Chosen by the caller; comes back in every progress notification of this request. */
export type ProgressToken = string;

/** Answer of `browser-clone-create`. */
export interface CreateResult {
  /** The clone. */
  clone: CloneInfo;
  /** True when this call renewed the lease of a clone that was already there. */
  renewed: boolean;
}

/** One clone. */
export interface CloneInfo {
  /** Its name, which is its slot. */
  name: CloneName;
  /** Its identity; in a list only for the owner and for operators. */
  clone_id?: CloneId;
  /** The request that made it; in a list only for the owner and for operators. */
  request_id?: RequestId;
  /** On whose behalf it was made. */
  tenant?: Tenant;
  /** The user that made it. */
  owner_uid?: number;
  /** Where it is in its life. */
  state: CloneState;
  /** Its IPv4 address. */
  ip: string;
  /** Its IPv6 address, if the pool has any. */
  ip6?: string;
  /** Where its browser service answers, once it is ready. */
  endpoint?: string;
  /** Its raw CDP, of this clone alone: for Playwright's `connectOverCDP` or Puppeteer's `browserWSEndpoint`, which then need not ask the endpoint first. A later clone with the same address refuses it. */
  cdp_endpoint?: string;
  /** The template's snapshot it came from. */
  snapshot?: SnapshotName;
  /** The limits that are on, but for those named in `limits_not_kept`. */
  limits?: Limits;
  /** Which of them this host cannot keep, by their names. */
  limits_not_kept?: string[];
  /** When its create began (RFC 3339; for show only). */
  created_at?: string;
  /** How old it is. */
  age_seconds?: number;
  /** When its deadline passes (RFC 3339; for show only, the monotonic clock decides). */
  deadline_at?: string;
  /** How long until then; 0 when it has passed. */
  deadline_seconds_left?: number;
  /** Cold, or from the pool. */
  launch?: Launch;
  /** How long each stage of its create took. */
  stages?: StageTiming[];
  /** What is wrong with it, if anything. */
  problem?: string;
}

/** The identity of one clone, never used twice: a destroy must name it (fencing). */
export type CloneId = string;

/** Where a clone is in its life. */
export type CloneState = "creating" | "pooled" | "ready" | "broken" | "destroying" | "incomplete" | "quarantined" | "orphan" | "foreign";

/** How the clone came to be. */
export type Launch = "cold" | "warm" | "basic";

/** How long one stage of a create took. */
export interface StageTiming {
  /** The stage: a step's name, `thaw` for a clone of the warm pool, or `total`. */
  stage: string;
  /** Its duration. */
  seconds: number;
}

/** Answer of `browser-clone-destroy`. */
export interface DestroyResult {
  /** The clone's name. */
  name: CloneName;
  /** The identity that was asked for. */
  clone_id: CloneId;
  /** True when there was nothing left to do. */
  already_gone: boolean;
  /** True when nothing of the clone is left; false when the teardown continues in the background. */
  complete: boolean;
  /** How long each step took. */
  stages?: StageTiming[];
}

/** Answer of `browser-clone-reap`. */
export interface ReapResult {
  /** Whether nothing was done on purpose. */
  dry_run: boolean;
  /** Taken (or, in a dry run, would be). */
  reaped: ReapLine[];
  /** Left alone, each with its reason. */
  kept: ReapLine[];
  /** Tried and not finished; the next run goes on. */
  failed: ReapLine[];
  /** Set when the run stopped rather than emptying the host. */
  alarm?: string;
}

/** One clone the reaper looked at. */
export interface ReapLine {
  /** The clone, or `aside/<clone_id>` for storage that was moved aside. */
  name: string;
  /** Why it was (or would be) taken. */
  reason?: ReapReason;
  /** The reason in words: what was seen and what was decided. */
  why: string;
  /** What went wrong, for those in `failed`. */
  errors?: string[];
}

/** Why the reaper takes a clone. */
export type ReapReason = "destroy_unfinished" | "create_unfinished" | "pool_drained" | "deadline_passed" | "orphan";

/** Answer of `browser-clone-force-unmount`. */
export interface ForceUnmountResult {
  /** The clone's name. */
  name: CloneName;
  /** Mounts below the clone that are gone now. */
  unmounted: string[];
  /** Mounts that are still there. */
  left: string[];
}

/** Answer of `browser-clone-list`. */
export interface ListResult {
  /** The clones, by name. */
  clones: CloneInfo[];
}

/** Answer of `host-status`. */
export interface StatusResult {
  /** hostd's version. */
  version: string;
  /** The host's drivers, such as `storage` → `zfs`. */
  host: Record<string, string>;
  /** The pool's addresses. */
  pool: string;
  /** How many slots the pool has. */
  slots: number;
  /** How many clones there are, by state. */
  clones: Record<string, number>;
  /** How many clones this host may have. */
  max_clones: number;
  /** Operations under way. */
  operations: number;
  /** Open connections. */
  connections: number;
  /** How the firewall was when last looked at. */
  egress: EgressHealth;
  /** The clones made ahead of time; absent when pool.size is 0. */
  warm_pool?: PoolStatus;
  /** How long the daemon has been up. */
  uptime_seconds: number;
  /** Things an operator should know. */
  alarms?: string[];
  /** The doctor's findings, if asked for. */
  findings?: Finding[];
  /** The metrics as Prometheus text, if asked for. */
  metrics?: string;
}

/** Whether the clones' firewall does its work. */
export type EgressHealth = "ok" | "table_missing" | "rules_missing";

/** The warm pool, in the answer of `host-status`. */
export interface PoolStatus {
  /** How many members of each flavour are wanted. */
  size: number;
  /** The flavours that are kept. */
  flavors: Flavor[];
  /** The members that wait to be taken, by name. */
  members: PoolMember[];
  /** A member is being made now. */
  refilling: boolean;
  /** Creates that were answered from the pool since the daemon's start. */
  hits: number;
  /** Creates that found no member at all. */
  misses_empty: number;
  /** Creates that found members, but none of their snapshot, limits or name. */
  misses_unfit: number;
  /** Members that were taken away unused: too old, template changed, broken, in the way, or at the daemon's stop. */
  drained: number;
  /** How long making the last member took. */
  last_refill_seconds?: number;
  /** Why the pool cannot be filled, if it cannot. */
  problem?: string;
}

/** How far a clone is made ahead of time. Who creates gets the same clone either way, only sooner. */
export type Flavor = "ready" | "basic";

/** One member of the warm pool. */
export interface PoolMember {
  /** Its name, which it keeps when it is taken. */
  name: CloneName;
  /** How far it is made. */
  flavor: Flavor;
  /** How old it is. */
  age_seconds: number;
  /** How long until it is too old to be taken. */
  seconds_left: number;
}

/** One line of the doctor. */
export interface Finding {
  /** What was looked at, as a stable word. */
  check: string;
  /** How it is. */
  severity: Severity;
  /** What was seen. */
  message: string;
  /** The exact thing to do about it; empty when all is well. */
  fix?: string;
}

/** How urgent a finding is. */
export type Severity = "ok" | "warning" | "error";

/** What a step of a running operation is doing. */
export type ProgressState = "started" | "done" | "failed";

/** What an error carries besides its text (`error.data`). */
export interface ErrorData {
  /** The stable code. */
  code: ErrorCode;
  /** What the reader can do about it. */
  hint: string;
  /** Whether the same call may succeed later. */
  retryable: boolean;
  /** How long to wait before the next try, where that is known. */
  retry_after_ms?: number;
  /** The step that failed. */
  step?: string;
  /** The clone it is about. */
  name?: CloneName;
  /** What went wrong while cleaning up after the first error. */
  cleanup?: string[];
}

/** The stable code of a refusal or failure (`error.data.code`). */
export type ErrorCode = "parse_error" | "invalid_request" | "method_not_found" | "invalid_params" | "internal" | "denied" | "rate_limited" | "too_many_connections" | "too_many_requests" | "line_too_long" | "slow_line" | "host_full" | "tenant_full" | "shutting_down" | "not_found" | "wrong_clone" | "not_destroying" | "request_conflict" | "request_finished" | "name_taken" | "template_unusable" | "host_not_ready" | "audit_unavailable" | "state_unavailable" | "step_failed" | "timeout" | "disk_full" | "incomplete" | "template_in_use";

/** Parameters of `browser-clone-create`. */
export interface CreateParams {
  /** The caller's name for this request. The same id again answers the same clone and renews its lease. */
  request_id: RequestId;
  /** On whose behalf; counted against the tenant's cap. */
  tenant?: Tenant;
  /** A certain free slot by its clone name; without it hostd takes the slot freed longest ago. */
  name?: CloneName;
  /** The template's snapshot; without it the configured default. */
  snapshot?: SnapshotName;
  /** How long the clone may live from now on; capped by the configuration. */
  deadline_seconds?: number;
  /** Limits below the configured ones. */
  limits?: Limits;
  /** Ask for progress notifications that carry this token. */
  progress_token?: ProgressToken;
}

/** Parameters of `browser-clone-destroy`. */
export interface DestroyParams {
  /** The clone's name. */
  name: CloneName;
  /** Its identity, so that a late call cannot hit the next clone of this name. */
  clone_id: CloneId;
  /** false: answer as soon as egress is cut, nothing in the clone can run any more and the teardown is recorded; the rest continues by itself. */
  wait?: boolean;
  /** Ask for progress notifications that carry this token. */
  progress_token?: ProgressToken;
}

/** Parameters of `browser-clone-reap`. */
export interface ReapParams {
  /** Only tell what would be done, and why. */
  dry_run?: boolean;
  /** Look at this clone alone. */
  name?: CloneName;
  /** Ask for progress notifications that carry this token. */
  progress_token?: ProgressToken;
}

/** Parameters of `browser-clone-force-unmount`. */
export interface ForceUnmountParams {
  /** The clone's name. */
  name: CloneName;
  /** Its identity, so that a late call cannot hit the next clone of this name. */
  clone_id: CloneId;
  /** Ask for progress notifications that carry this token. */
  progress_token?: ProgressToken;
}

/** Parameters of `browser-clone-list`. */
export interface ListParams {
  /** Only this clone. */
  name?: CloneName;
  /** Only the clones of this tenant. */
  tenant?: Tenant;
}

/** Parameters of `host-status`. */
export interface StatusParams {
  /** Also run the host's checks (`hostctl doctor`); slower. */
  checks?: boolean;
  /** Also answer the metrics as Prometheus text (`hostctl metrics`). */
  metrics?: boolean;
}

/** Parameters of `rpc.discover`. */
export interface DiscoverParams {
}

/** Sent while a request that passed a progress_token runs: a step began, ended or failed. */
export interface Progress {
  /** The caller's token. */
  progress_token: ProgressToken;
  /** The clone. */
  name: CloneName;
  /** The step, as in `stages` and in errors. */
  step: string;
  /** What it is doing. */
  state: ProgressState;
  /** Time since the step began. */
  seconds: number;
}

/** Every method with its parameters and result. */
export interface Methods {
  /** Make a clone, or renew the lease of the clone that this request_id made. */
  "browser-clone-create": { params: CreateParams; result: CreateResult };
  /** Take a clone away. A clone that is already gone is a success. */
  "browser-clone-destroy": { params: DestroyParams; result: DestroyResult };
  /** Take away what is over: unfinished work, passed deadlines, orphans. */
  "browser-clone-reap": { params: ReapParams; result: ReapResult };
  /** Force the mounts of a clone that is being destroyed. Operators only. */
  "browser-clone-force-unmount": { params: ForceUnmountParams; result: ForceUnmountResult };
  /** List all clones this host knows of. */
  "browser-clone-list": { params: ListParams; result: ListResult };
  /** Tell how the daemon and its host are. */
  "host-status": { params: StatusParams; result: StatusResult };
  /** Answer this contract as an OpenRPC document. */
  "rpc.discover": { params: DiscoverParams; result: Record<string, unknown> };
}
