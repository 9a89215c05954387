//! Requests and answers of the API. The OpenAPI document is made from these types.

mod answers;
mod checks;
mod cookie;
mod requests;

pub use answers::*;
pub use checks::Check;
pub(crate) use checks::parse_ref;
pub use cookie::{Cookie, SameSite};
pub use requests::*;
