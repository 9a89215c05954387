// Generated from docs/openrpc.json; do not edit.
// HOSTD_UPDATE_DOCS=1 cargo test -p hostctl

/** The idempotency key of a create. Repeating it renews the lease of the same clone. */
export type RequestId = string;

/** The tenant that a clone is counted for; it grants no rights. */
export type Tenant = string;

/** A clone's name: the configured prefix and the three digits of its slot. */
export type CloneName = string;

/** A template's snapshot, by its bare name. */
export type SnapshotName = string;

/** Resource limits of a clone. In a request each must be at most the configured limit, and a limit that is left out is the configured one. In a result they are the limits in effect. */
export interface Limits {
  /** Memory of all its processes, in bytes. */
  memory_bytes?: number;
  /** Number of processes (threads on Linux). */
  processes?: number;
  /** Open files of one process. */
  open_files?: number;
  /** Processor time: 100 is one core. */
  cpu_percent?: number;
  /** Disk space beyond the template, in bytes. */
  disk_bytes?: number;
  /** Bytes read from disk per second. */
  read_bytes_per_second?: number;
  /** Bytes written to disk per second. */
  write_bytes_per_second?: number;
}

/** Chosen by the caller and repeated in every progress notification of the request. */
export type ProgressToken = string;

/** Result of `browser-clone-create`. */
export interface CreateResult {
  /** The clone. */
  clone: CloneInfo;
  /** True when this call renewed the lease of an existing clone. */
  renewed: boolean;
  /** The secret that the clone's browserd requires: `Authorization: Bearer SECRET`, or `/SECRET` before the path. The URL `cdp_endpoint` contains it; nothing else does. None for a clone without browserd. */
  secret?: CloneSecret;
  /** Who may connect to the endpoint. The packet filter refuses everybody else. */
  callers?: Callers;
}

/** One clone. */
export interface CloneInfo {
  /** Its name, which contains its slot number. */
  name: CloneName;
  /** Its unique id; in a list only for the owner and for operators. */
  clone_id?: CloneId;
  /** The request that created it; in a list only for the owner and for operators. */
  request_id?: RequestId;
  /** The tenant it is counted for. */
  tenant?: Tenant;
  /** The user that created it. */
  owner_uid?: number;
  /** Where it is in its life. */
  state: CloneState;
  /** Its IPv4 address. */
  ip: string;
  /** Its IPv6 address, if pool.subnet6 is set. */
  ip6?: string;
  /** The address of its browser service, once it is ready; in a list only for the owner and for operators. */
  endpoint?: string;
  /** Its raw CDP endpoint, for Playwright's `connectOverCDP` or Puppeteer's `browserWSEndpoint`. The URL contains the clone's secret, so only the owner gets it. It is valid for this clone only: a later clone with the same address refuses it. */
  cdp_endpoint?: string;
  /** The template's snapshot it was cloned from. */
  snapshot?: SnapshotName;
  /** The limits in effect, except those in `limits_not_kept`. */
  limits?: Limits;
  /** The limits that this host cannot enforce. */
  limits_not_kept?: string[];
  /** When its create began (RFC 3339, informational). */
  created_at?: string;
  /** How old it is. */
  age_seconds?: number;
  /** When its deadline passes (RFC 3339, informational: the monotonic clock decides). */
  deadline_at?: string;
  /** The time until the deadline; 0 when it has passed. */
  deadline_seconds_left?: number;
  /** Whether it was created for the request or taken from the warm pool. */
  launch?: Launch;
  /** How long each stage of its create took. */
  stages?: StageTiming[];
  /** What is wrong with it. */
  problem?: string;
}

/** The unique id of one clone. A destroy must name it (fencing). */
export type CloneId = string;

/** The state of a clone. */
export type CloneState = "creating" | "pooled" | "ready" | "broken" | "destroying" | "incomplete" | "quarantined" | "orphan" | "foreign";

/** How the clone was created. */
export type Launch = "cold" | "warm" | "basic";

/** How long one stage of a create took. */
export interface StageTiming {
  /** The step, `thaw` for a clone of the warm pool, or `total`. */
  stage: string;
  /** Its duration. */
  seconds: number;
}

/** What a clone's browserd requires of its callers. */
export type CloneSecret = string;

/** Who may connect to a clone's endpoint. */
export interface Callers {
  /** User ids on the host itself. */
  users: number[];
  /** Addresses and networks of other machines and of containers. */
  networks: string[];
}

/** Result of `browser-clone-destroy`. */
export interface DestroyResult {
  /** The clone's name. */
  name: CloneName;
  /** The clone's id. */
  clone_id: CloneId;
  /** True when the clone was already gone. */
  already_gone: boolean;
  /** True when nothing of the clone is left; false when the teardown continues in the background. */
  complete: boolean;
  /** How long each step took. */
  stages?: StageTiming[];
}

/** Result of `browser-clone-reap`. */
export interface ReapResult {
  /** Whether this was a dry run. */
  dry_run: boolean;
  /** Clones that were reaped (or would be, in a dry run). */
  reaped: ReapLine[];
  /** Clones that were kept. */
  kept: ReapLine[];
  /** Clones that could not be reaped completely; the next run continues. */
  failed: ReapLine[];
  /** Set when the run stopped at the reap cap or another safety limit. */
  alarm?: string;
}

/** The reaper's decision on one clone. */
export interface ReapLine {
  /** The clone, or `aside/<clone_id>` for storage that was moved aside. */
  name: string;
  /** Why it was (or would be) reaped. */
  reason?: ReapReason;
  /** The reason as a sentence. */
  why: string;
  /** The errors, for clones in `failed`. */
  errors?: string[];
}

/** Why a clone is reaped. */
export type ReapReason = "destroy_unfinished" | "create_unfinished" | "pool_drained" | "deadline_passed" | "orphan";

/** Result of `browser-clone-force-unmount`. */
export interface ForceUnmountResult {
  /** The clone's name. */
  name: CloneName;
  /** The mounts that were unmounted. */
  unmounted: string[];
  /** The mounts that are left. */
  left: string[];
}

/** Result of `browser-clone-list`. */
export interface ListResult {
  /** The clones, by name. */
  clones: CloneInfo[];
}

/** Result of `host-status`. */
export interface StatusResult {
  /** hostd's version. */
  version: string;
  /** The host's drivers, such as `storage` → `zfs`. */
  host: Record<string, string>;
  /** The subnet of the slots. */
  pool: string;
  /** The number of slots. */
  slots: number;
  /** The number of clones by state. */
  clones: Record<string, number>;
  /** The largest number of clones on this host. */
  max_clones: number;
  /** Running operations. */
  operations: number;
  /** Open connections. */
  connections: number;
  /** The firewall at the last inspection. */
  egress: EgressHealth;
  /** The warm pool; absent when pool.size is 0. */
  warm_pool?: PoolStatus;
  /** The daemon's uptime. */
  uptime_seconds: number;
  /** Conditions that an operator should know about. */
  alarms?: string[];
  /** The results of the host's checks, if requested. */
  findings?: Finding[];
  /** The metrics as Prometheus text, if requested. */
  metrics?: string;
}

/** The state of the clones' firewall. */
export type EgressHealth = "ok" | "table_missing" | "rules_missing";

/** The warm pool, in the result of `host-status`. */
export interface PoolStatus {
  /** The wanted number of members of each flavour. */
  size: number;
  /** The configured flavours. */
  flavors: Flavor[];
  /** The members, by name. */
  members: PoolMember[];
  /** Whether a member is being created. */
  refilling: boolean;
  /** Creates served from the warm pool since the daemon started. */
  hits: number;
  /** Creates that found no member. */
  misses_empty: number;
  /** Creates that found no member with their snapshot, limits or name. */
  misses_unfit: number;
  /** Members destroyed unused: too old, broken, evicted, template changed, or daemon stopped. */
  drained: number;
  /** How long the last refill took. */
  last_refill_seconds?: number;
  /** Why the warm pool cannot be refilled. */
  problem?: string;
}

/** How complete a member of the warm pool is. */
export type Flavor = "ready" | "basic";

/** One member of the warm pool. */
export interface PoolMember {
  /** Its name, which it keeps when it gets an owner. */
  name: CloneName;
  /** Its flavour. */
  flavor: Flavor;
  /** How old it is. */
  age_seconds: number;
  /** The time until it expires. */
  seconds_left: number;
}

/** The result of one check. */
export interface Finding {
  /** The stable name of the check. */
  check: string;
  /** Its severity. */
  severity: Severity;
  /** What was found. */
  message: string;
  /** How to fix it; empty if nothing is wrong. */
  fix?: string;
}

/** The severity of a finding. */
export type Severity = "ok" | "warning" | "error";

/** The state of a step. */
export type ProgressState = "started" | "done" | "failed";

/** Details of an error (`error.data`). */
export interface ErrorData {
  /** The stable code. */
  code: ErrorCode;
  /** What the caller can do about it. */
  hint: string;
  /** Whether the same call may succeed later. */
  retryable: boolean;
  /** How long to wait before a retry, if known. */
  retry_after_ms?: number;
  /** The step that failed. */
  step?: string;
  /** The clone it is about. */
  name?: CloneName;
  /** Errors of the rollback. */
  cleanup?: string[];
}

/** The stable code of a refusal or failure (`error.data.code`). */
export type ErrorCode = "parse_error" | "invalid_request" | "method_not_found" | "invalid_params" | "internal" | "denied" | "rate_limited" | "too_many_connections" | "too_many_requests" | "line_too_long" | "slow_line" | "host_full" | "tenant_full" | "shutting_down" | "not_found" | "wrong_clone" | "not_destroying" | "request_conflict" | "request_finished" | "name_taken" | "template_unusable" | "host_not_ready" | "audit_unavailable" | "state_unavailable" | "step_failed" | "timeout" | "disk_full" | "incomplete" | "template_in_use" | "limit_exceeded";

/** Parameters of `browser-clone-create`. */
export interface CreateParams {
  /** The idempotency key of the request. Repeating it returns the same clone and renews its lease. Every user has request ids of its own. */
  request_id: RequestId;
  /** The tenant that the clone is counted for. Every user has tenants of its own. */
  tenant?: Tenant;
  /** The free slot to use, by its clone name; default: the slot freed longest ago. */
  name?: CloneName;
  /** The template's snapshot; default: as configured. */
  snapshot?: SnapshotName;
  /** The clone's lifetime from now on; at most the configured one. */
  deadline_seconds?: number;
  /** Limits of the clone, each at most the configured one; default: as configured. */
  limits?: Limits;
  /** Request progress notifications with this token. */
  progress_token?: ProgressToken;
}

/** Parameters of `browser-clone-destroy`. */
export interface DestroyParams {
  /** The clone's name. */
  name: CloneName;
  /** The clone's id, so that a late call cannot affect the next clone of this name. */
  clone_id: CloneId;
  /** false: answer as soon as egress is cut, nothing in the clone can run any more and the teardown is recorded; the rest continues by itself. */
  wait?: boolean;
  /** Request progress notifications with this token. */
  progress_token?: ProgressToken;
}

/** Parameters of `browser-clone-reap`. */
export interface ReapParams {
  /** Change nothing; only return what would be done, and why. */
  dry_run?: boolean;
  /** Only this clone. */
  name?: CloneName;
  /** Request progress notifications with this token. */
  progress_token?: ProgressToken;
}

/** Parameters of `browser-clone-force-unmount`. */
export interface ForceUnmountParams {
  /** The clone's name. */
  name: CloneName;
  /** The clone's id, so that a late call cannot affect the next clone of this name. */
  clone_id: CloneId;
  /** Request progress notifications with this token. */
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
  /** Also return the metrics as Prometheus text (`hostctl metrics`). */
  metrics?: boolean;
}

/** Parameters of `rpc.discover`. */
export interface DiscoverParams {
}

/** Sent while a request with a progress_token runs: a step began, succeeded or failed. */
export interface Progress {
  /** The caller's token. */
  progress_token: ProgressToken;
  /** The clone. */
  name: CloneName;
  /** The step, as in `stages` and in errors. */
  step: string;
  /** The state of the step. */
  state: ProgressState;
  /** Time since the step began. */
  seconds: number;
}

/** Every method with its parameters and result. */
export interface Methods {
  /** Create a clone, or renew the lease of the clone with this request_id. */
  "browser-clone-create": { params: CreateParams; result: CreateResult };
  /** Destroy a clone. Destroying an absent clone succeeds. */
  "browser-clone-destroy": { params: DestroyParams; result: DestroyResult };
  /** Destroy what is due: unfinished operations, expired clones, orphans. */
  "browser-clone-reap": { params: ReapParams; result: ReapResult };
  /** Force-unmount a clone that is being destroyed. Operators only. */
  "browser-clone-force-unmount": { params: ForceUnmountParams; result: ForceUnmountResult };
  /** List the clones of this host. */
  "browser-clone-list": { params: ListParams; result: ListResult };
  /** Return the state of the daemon and its host. */
  "host-status": { params: StatusParams; result: StatusResult };
  /** Return this contract as an OpenRPC document. */
  "rpc.discover": { params: DiscoverParams; result: Record<string, unknown> };
}
