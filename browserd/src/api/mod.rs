//! The API as data: requests, answers, errors, and the table of operations with its OpenAPI document.

pub mod error;
pub mod openapi;
pub mod operations;
pub mod types;

pub use error::{ApiError, ErrorBody, ErrorCode, ErrorDetail};

/// What a request goes through before anything is done with it: the first line names the operation,
/// the rest is the body. For the fuzz target and its replay.
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
