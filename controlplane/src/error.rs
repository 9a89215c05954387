//! Errors of every surface: a code for programs, a message that names the object, a hint that says what to do.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $word:literal, $status:ident, retry $retry:literal, exit $exit:literal, $hint:literal;)*) => {
        /// The control plane's own error codes. Errors of actions in a browser have browserd's codes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum ErrorCode { $($(#[$doc])* #[serde(rename = $word)] $name,)* }

        impl ErrorCode {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The code in JSON.
            pub fn word(self) -> &'static str { match self { $(ErrorCode::$name => $word,)* } }
            /// The HTTP status.
            pub fn status(self) -> StatusCode { match self { $(ErrorCode::$name => StatusCode::$status,)* } }
            /// Whether the same call may succeed later without any change.
            pub fn retryable(self) -> bool { match self { $(ErrorCode::$name => $retry,)* } }
            /// The exit code of browserctl; the same meanings as hostctl's.
            pub fn exit_code(self) -> u8 { match self { $(ErrorCode::$name => $exit,)* } }
            /// What the caller can do.
            pub fn hint(self) -> &'static str { match self { $(ErrorCode::$name => $hint,)* } }
        }
    };
}

codes! {
    /// The request is not valid.
    BadRequest "bad_request", BAD_REQUEST, retry false, exit 2, "Correct the request; /openapi.json describes every call.";
    /// No valid credential was presented.
    Unauthorized "unauthorized", UNAUTHORIZED, retry false, exit 4, "Send Authorization: Bearer KEY with a key from `browserctl key issue`, or connect to the Unix socket.";
    /// The caller's scopes do not include the call.
    Forbidden "forbidden", FORBIDDEN, retry false, exit 4, "Ask an operator for a key with the scope that the message names.";
    /// The path does not exist.
    NotFound "not_found", NOT_FOUND, retry false, exit 3, "/openapi.json lists every path.";
    /// The path does not support this method.
    MethodNotAllowed "method_not_allowed", METHOD_NOT_ALLOWED, retry false, exit 2, "/openapi.json lists the methods of every path.";
    /// The body is too long.
    RequestTooLarge "request_too_large", PAYLOAD_TOO_LARGE, retry false, exit 2, "Send less; the message names the limit.";
    /// The body did not arrive in time.
    RequestTimeout "request_timeout", REQUEST_TIMEOUT, retry true, exit 6, "Send the whole request at once.";
    /// The body is not JSON.
    UnsupportedMediaType "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, retry false, exit 2, "Send Content-Type: application/json.";
    /// The request came from a web page.
    ForbiddenOrigin "forbidden_origin", FORBIDDEN, retry false, exit 4, "Web pages may not call the control plane: send no Origin header, and a Host that the configuration allows.";
    /// The session does not exist, or belongs to somebody else. The two cases have the same answer.
    NoSuchSession "no_such_session", NOT_FOUND, retry false, exit 3, "Open a session first, and use its session_id; GET /v1/sessions lists your sessions.";
    /// The session has ended.
    SessionClosed "session_closed", GONE, retry false, exit 3, "Open a new session; the message says why this one ended.";
    /// The session is being closed.
    SessionClosing "session_closing", CONFLICT, retry false, exit 3, "Open a new session.";
    /// The mode `operator` needs a grant.
    GrantRequired "grant_required", FORBIDDEN, retry false, exit 4, "Use credential_mode clean, or present an operator_grant_token.";
    /// This session does not allow the call.
    NotAllowedInSession "not_allowed_in_session", FORBIDDEN, retry false, exit 4, "The message says which property of the session refuses the call.";
    /// Too many sessions of this tenant are open.
    TenantSessions "tenant_sessions", TOO_MANY_REQUESTS, retry true, exit 5, "Close a session of this tenant, or raise limits.sessions_per_tenant.";
    /// Too many sessions are open.
    HostSessions "host_sessions", TOO_MANY_REQUESTS, retry true, exit 5, "Wait until a session ends, or raise limits.sessions.";
    /// The queue for a free clone is full.
    QueueFull "queue_full", TOO_MANY_REQUESTS, retry true, exit 5, "Retry later, or raise limits.queue.";
    /// No clone became free in time.
    QueueTimeout "queue_timeout", SERVICE_UNAVAILABLE, retry true, exit 5, "Retry later, or raise limits.queue_wait_seconds.";
    /// Sessions are opened too often.
    OpenRate "open_rate", TOO_MANY_REQUESTS, retry true, exit 5, "Open sessions more slowly; see limits.opens_per_minute.";
    /// Calls arrive too often.
    CallRate "call_rate", TOO_MANY_REQUESTS, retry true, exit 5, "Call more slowly; see limits.calls_per_second.";
    /// The idempotency key was used with other parameters.
    IdempotencyConflict "idempotency_conflict", CONFLICT, retry false, exit 1, "Use a new Idempotency-Key for a new request.";
    /// The database does not answer.
    StoreUnavailable "store_unavailable", SERVICE_UNAVAILABLE, retry true, exit 7, "Retry; if it persists, check the database with `browserctl doctor`.";
    /// The audit log cannot be written, so nothing was done.
    AuditUnavailable "audit_unavailable", SERVICE_UNAVAILABLE, retry true, exit 7, "Retry; if it persists, check the database and its disk with `browserctl doctor`.";
    /// Recordings fill their quota.
    RecordingQuota "recording_quota", INSUFFICIENT_STORAGE, retry true, exit 5, "Remove old recordings, or raise recording.quota_bytes.";
    /// The recording could not be written, so the picture is withheld.
    RecordingFailed "recording_failed", INSUFFICIENT_STORAGE, retry true, exit 7, "Check the disk of recording.folder.";
    /// hostd does not answer.
    HostUnavailable "host_unavailable", SERVICE_UNAVAILABLE, retry true, exit 7, "Check that hostd runs with `hostctl doctor`.";
    /// hostd refused or failed to create the clone.
    CloneFailed "clone_failed", BAD_GATEWAY, retry true, exit 1, "The message has hostd's reason; `hostctl doctor` checks the host.";
    /// The session's clone does not answer.
    BrowserUnavailable "browser_unavailable", BAD_GATEWAY, retry true, exit 1, "Retry; if it persists, close the session and open a new one.";
    /// The call did not end in time.
    Timeout "timeout", GATEWAY_TIMEOUT, retry true, exit 6, "Raise timeout_ms, or check the page.";
    /// The caller cancelled the call.
    Cancelled "cancelled", CONFLICT, retry true, exit 1, "Repeat the call if its result is still wanted.";
    /// The service is stopping.
    ShuttingDown "shutting_down", SERVICE_UNAVAILABLE, retry true, exit 7, "Retry when the service has restarted.";
    /// A defect of the control plane.
    Internal "internal", INTERNAL_SERVER_ERROR, retry true, exit 1, "Report this with the service's log.";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// An error of the API. Its code is one of [`ErrorCode`] or, for an action in a browser, one of browserd's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", .0.code, .0.message)]
pub struct ApiError(Box<ErrorParts>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct ErrorParts {
    code: &'static str,
    status: StatusCode,
    message: String,
    hint: String,
    retryable: bool,
    retry_after: Option<Duration>,
    exit_code: u8,
}

impl ApiError {
    /// An error of the control plane.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorParts {
            code: code.word(),
            status: code.status(),
            message: message.into(),
            hint: code.hint().to_owned(),
            retryable: code.retryable(),
            retry_after: None,
            exit_code: code.exit_code(),
        }))
    }

    /// An error of browserd, with its code, message and hint.
    pub fn of_browserd(error: browserd::api::error::ErrorDetail) -> Self {
        Self(Box::new(ErrorParts {
            code: error.code.as_str(),
            status: error.code.status(),
            message: error.message,
            hint: error.hint,
            retryable: error.retryable,
            retry_after: None,
            exit_code: if error.code.status() == StatusCode::GATEWAY_TIMEOUT { 6 } else { 1 },
        }))
    }

    /// The same error with the time to wait before a retry.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    /// The same error with another hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = hint.into();
        self
    }

    /// The code.
    pub fn code(&self) -> &'static str {
        self.0.code
    }

    /// Whether it has this code.
    pub fn is(&self, code: ErrorCode) -> bool {
        self.0.code == code.word()
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// What happened.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The exit code of browserctl.
    pub fn exit_code(&self) -> u8 {
        self.0.exit_code
    }

    /// The time to wait before a retry, rounded up to whole seconds, for the header Retry-After.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.0.retry_after.map(|wait| wait.as_millis().div_ceil(1000).max(1) as u64)
    }

    /// The body of the answer.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            success: false,
            error: ErrorDetail {
                code: self.0.code.to_owned(),
                message: self.0.message.clone(),
                hint: self.0.hint.clone(),
                retryable: self.0.retryable,
                retry_after_seconds: self.retry_after_seconds(),
            },
        }
    }
}

/// The body of an error.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// Always false.
    pub success: bool,
    /// The error.
    pub error: ErrorDetail,
}

/// An error.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// The code, for programs.
    pub code: String,
    /// What happened, for people.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// How long to wait before a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
}
