//! Typed errors, so that programs need not parse messages.

use super::ids::CloneName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $word:literal, retry $retry:literal, exit $exit:literal;)*) => {
        /// The stable code of a refusal or failure (`error.data.code`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $word)] $name,)*
        }

        impl ErrorCode {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The JSON-RPC number (`error.code`).
            pub fn number(self) -> i32 {
                match self { $(ErrorCode::$name => $number,)* }
            }

            /// The name (`error.data.code`).
            pub fn word(self) -> &'static str {
                match self { $(ErrorCode::$name => $word,)* }
            }

            /// Whether the same call may succeed later without any change.
            pub fn retryable(self) -> bool {
                match self { $(ErrorCode::$name => $retry,)* }
            }

            /// The exit code of `hostctl` for this error.
            pub fn exit_code(self) -> u8 {
                match self { $(ErrorCode::$name => $exit,)* }
            }
        }
    };
}

error_codes! {
    /// The line is not JSON.
    ParseError = -32700, "parse_error", retry false, exit 2;
    /// The line is JSON but not a JSON-RPC 2.0 request.
    InvalidRequest = -32600, "invalid_request", retry false, exit 2;
    /// hostd has no such method.
    MethodNotFound = -32601, "method_not_found", retry false, exit 2;
    /// The parameters do not fit the method.
    InvalidParams = -32602, "invalid_params", retry false, exit 2;
    /// A defect of hostd; its log says more.
    Internal = -32603, "internal", retry false, exit 1;
    /// The caller's user or groups may not do this.
    Denied = -32001, "denied", retry false, exit 4;
    /// This user calls the method more often than configured.
    RateLimited = -32002, "rate_limited", retry true, exit 5;
    /// Too many connections; the refused one is closed.
    TooManyConnections = -32003, "too_many_connections", retry true, exit 5;
    /// Too many requests are running.
    TooManyRequests = -32004, "too_many_requests", retry true, exit 5;
    /// The line is longer than allowed; the connection is closed.
    LineTooLong = -32005, "line_too_long", retry false, exit 2;
    /// The line did not end in time; the connection is closed.
    SlowLine = -32006, "slow_line", retry false, exit 2;
    /// All of the host's clones are in use.
    HostFull = -32007, "host_full", retry true, exit 5;
    /// All of this tenant's clones are in use.
    TenantFull = -32008, "tenant_full", retry true, exit 5;
    /// hostd is stopping.
    ShuttingDown = -32009, "shutting_down", retry true, exit 5;
    /// The clone does not exist.
    NotFound = -32010, "not_found", retry false, exit 3;
    /// The name belongs to another clone now; nothing was changed.
    WrongClone = -32011, "wrong_clone", retry false, exit 3;
    /// Only a clone that is being destroyed may be force-unmounted.
    NotDestroying = -32012, "not_destroying", retry false, exit 1;
    /// The request_id belongs to another request of this user, with other parameters.
    RequestConflict = -32013, "request_conflict", retry false, exit 1;
    /// The clone of this request_id is destroyed; use a new request_id.
    RequestFinished = -32014, "request_finished", retry false, exit 3;
    /// The requested name is in use, quarantined or belongs to a foreign object.
    NameTaken = -32015, "name_taken", retry true, exit 5;
    /// The template or its snapshot is missing or not quiescent.
    TemplateUnusable = -32016, "template_unusable", retry false, exit 7;
    /// The host lacks something every create needs, such as the firewall's rules.
    HostNotReady = -32017, "host_not_ready", retry true, exit 7;
    /// The audit log could not be written, so nothing was created. Removals go on without it.
    AuditUnavailable = -32018, "audit_unavailable", retry true, exit 7;
    /// The state folder could not be written, so nothing was created or renewed. Removals go on without it.
    StateUnavailable = -32019, "state_unavailable", retry true, exit 7;
    /// A step of a create failed and was rolled back.
    StepFailed = -32020, "step_failed", retry true, exit 1;
    /// A step did not end in time.
    Timeout = -32021, "timeout", retry true, exit 6;
    /// The host's disk is full.
    DiskFull = -32022, "disk_full", retry true, exit 7;
    /// The destroy is recorded but not finished; the reaper continues it.
    Incomplete = -32023, "incomplete", retry true, exit 1;
    /// Clones use the template, so it is not removed; only from `hostctl template`.
    TemplateInUse = -32024, "template_in_use", retry true, exit 5;
    /// The request asks for more than this host allows one clone.
    LimitExceeded = -32025, "limit_exceeded", retry false, exit 5;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Details of an error (`error.data`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorData {
    /// The stable code.
    pub code: ErrorCode,
    /// What the caller can do about it.
    pub hint: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// How long to wait before a retry, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The step that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The clone it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<CloneName>,
    /// Errors of the rollback.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cleanup: Vec<String>,
}

/// An error: message and data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    /// One sentence that names the object.
    pub message: String,
    /// The details for programs.
    pub data: Box<ErrorData>,
}

impl RpcError {
    /// An error of this code.
    pub fn new(code: ErrorCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        let data = ErrorData {
            code,
            hint: hint.into(),
            retryable: code.retryable(),
            retry_after_ms: None,
            step: None,
            name: None,
            cleanup: Vec::new(),
        };
        Self { message: message.into(), data: Box::new(data) }
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        self.data.code
    }

    /// With the time to wait before a retry.
    pub fn retry_after(mut self, after: std::time::Duration) -> Self {
        self.data.retry_after_ms = Some(u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1));
        self
    }

    /// With the step that failed.
    pub fn step(mut self, step: impl fmt::Display) -> Self {
        self.data.step = Some(step.to_string());
        self
    }

    /// With the clone it is about.
    pub fn about(mut self, name: &CloneName) -> Self {
        self.data.name = Some(name.clone());
        self
    }

    /// With the errors of the rollback.
    pub fn cleanup(mut self, errors: Vec<String>) -> Self {
        self.data.cleanup = errors;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_distinct_and_names_round_trip() {
        let numbers: BTreeSet<i32> = ErrorCode::ALL.iter().map(|code| code.number()).collect();
        assert_eq!(numbers.len(), ErrorCode::ALL.len());
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.word());
            assert!((1..=7).contains(&code.exit_code()), "{code}");
        }
    }
}
