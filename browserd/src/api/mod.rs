//! The API: requests, responses, errors, and the table of operations with its OpenAPI document.

pub mod error;
pub mod openapi;
pub mod operations;
pub mod types;

pub use error::{ApiError, ErrorBody, ErrorCode, ErrorDetail};

/// Validates a request without executing it, for the fuzz target and the replay of its corpus. The first line of the
/// input is the operation's id, the rest is the body.
pub fn check_any(input: &[u8]) -> Result<(), ApiError> {
    let (name, body) = match input.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &[][..]),
    };
    let operations = operations::operations();
    let operation = operations.iter().find(|operation| operation.id.as_bytes() == name);
    match operation {
        Some(operation) => operation.check(body),
        None => Err(ApiError::new(ErrorCode::NotFound, "no such operation")),
    }
}
