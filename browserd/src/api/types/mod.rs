//! Requests and responses of the API. The OpenAPI document is generated from these types.

mod checks;
mod cookie;
mod requests;
mod responses;

pub use checks::Check;
pub(crate) use checks::parse_ref;
pub use cookie::{Cookie, SameSite};
pub use requests::*;
pub use responses::*;
