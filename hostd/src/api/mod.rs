//! The contract: every type that crosses the socket, the methods and the error codes.
//!
//! The OpenRPC document, hostctl, the JavaScript client and the server are generated from or checked against these
//! types, so every change of the contract begins here.

pub mod clone;
pub mod error;
pub mod ids;
pub mod limits;
pub mod method;
pub mod openrpc;
pub mod params;
pub mod results;
pub mod secret;
pub mod status;

pub use clone::{CloneInfo, CloneState, Launch, StageTiming};
pub use error::{ErrorCode, ErrorData, RpcError};
pub use ids::{CloneId, CloneName, ProgressToken, RequestId, SnapshotName, Tenant};
pub use limits::{LimitRange, Limits};
pub use method::Method;
pub use params::{
    CreateParams, DestroyParams, DiscoverParams, ForceUnmountParams, LONGEST_SECONDS, ListParams, ReapParams,
    StatusParams,
};
pub use results::{
    Callers, CreateResult, DestroyResult, ForceUnmountResult, ListResult, Progress, ProgressState, ReapLine,
    ReapReason, ReapResult,
};
pub use secret::{CloneSecret, InvalidSecret, SecretUrl};
pub use status::{EgressHealth, Finding, Flavor, PoolMember, PoolStatus, Severity, StatusResult};
