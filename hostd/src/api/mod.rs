//! The contract: every type that crosses the socket, the method table and the error codes.
//!
//! Nothing here acts. The OpenRPC document, the CLI, the JavaScript client and the server are all
//! derived from or checked against these types, so a change of the contract starts in this folder.

pub mod error;
pub mod ids;
pub mod method;
pub mod openrpc;
pub mod pool;
pub mod types;

pub use error::{ErrorCode, ErrorData, RpcError};
pub use ids::{CloneId, CloneName, ProgressToken, RequestId, SnapshotName, Tenant};
pub use method::Method;
pub use pool::{Flavor, PoolMember, PoolStatus};
pub use types::*;
