//! Errors of the API: a code for programs, a message that says what happened, a hint that says what to do.

use crate::cdp::CdpError;
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $text:literal $status:ident $retry:literal $hint:literal)*) => {
        /// The kind of error, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode { $($(#[$doc])* $name),* }

        impl ErrorCode {
            /// All codes, for documentation and tests.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The code in JSON.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $text),* } }
            /// The HTTP status of the response.
            pub fn status(self) -> StatusCode { match self { $(Self::$name => StatusCode::$status),* } }
            /// Whether the same call may succeed later.
            pub fn retryable(self) -> bool { match self { $(Self::$name => $retry),* } }
            /// What the caller can do.
            pub fn hint(self) -> &'static str { match self { $(Self::$name => $hint),* } }
        }
    };
}

codes! {
    /// The request is invalid.
    BadRequest "bad_request" BAD_REQUEST false "Correct the request; /openapi.json describes every call."
    /// The call does not present the secret.
    Unauthorized "unauthorized" UNAUTHORIZED false "Send Authorization: Bearer SECRET, or put /SECRET before the path; hostd returns the secret of a clone to its owner when it creates the clone."
    /// The path does not exist.
    NotFound "not_found" NOT_FOUND false "/openapi.json lists every path."
    /// The path does not support this method.
    MethodNotAllowed "method_not_allowed" METHOD_NOT_ALLOWED false "/openapi.json lists the methods of every path."
    /// The body is above the size limit.
    RequestTooLarge "request_too_large" PAYLOAD_TOO_LARGE false "Send less, or raise --max-request."
    /// The body did not arrive in time.
    RequestTimeout "request_timeout" REQUEST_TIMEOUT true "Send the whole body at once."
    /// The content type is not JSON.
    UnsupportedMediaType "unsupported_media_type" UNSUPPORTED_MEDIA_TYPE false "Send Content-Type: application/json."
    /// The call came from a web page, or names an unknown host.
    ForbiddenOrigin "forbidden_origin" FORBIDDEN false "Send no Origin or Sec-Fetch headers, and an IP address as Host; allow other host names with --allow-host."
    /// `evaluate` is disabled.
    EvaluateDisabled "evaluate_disabled" FORBIDDEN false "This browserd runs with --no-evaluate."
    /// Raw CDP is disabled.
    RawCdpDisabled "raw_cdp_disabled" FORBIDDEN false "This browserd runs with --no-raw-cdp."
    /// Too many concurrent calls.
    TooManyCalls "too_many_calls" TOO_MANY_REQUESTS true "Retry when other calls have finished."
    /// Too many open tabs.
    TooManyTabs "too_many_tabs" TOO_MANY_REQUESTS false "Close a tab first (DELETE /v1/tabs/{tab})."
    /// The tab is closed or never existed.
    NoSuchTab "no_such_tab" NOT_FOUND false "GET /v1/tabs lists the open tabs; POST /v1/tabs opens one."
    /// No element matches the selector.
    NoSuchElement "no_such_element" NOT_FOUND true "Inspect the page with snapshot or read_dom; it may still be loading."
    /// The ref is unknown in the tab's document, or its element was removed.
    StaleRef "stale_ref" CONFLICT false "Take a new snapshot and use its refs."
    /// The selector is not valid CSS.
    InvalidSelector "invalid_selector" BAD_REQUEST false "Correct the CSS selector, or use a ref from a snapshot."
    /// The element has no visible box.
    ElementNotVisible "element_not_visible" CONFLICT true "Scroll, open the part of the page that contains it, or choose another element."
    /// The element does not accept text.
    ElementNotEditable "element_not_editable" CONFLICT false "Choose an input, a textarea or an editable element."
    /// There is no such download, or its file was removed.
    NoSuchDownload "no_such_download" NOT_FOUND false "GET /v1/downloads lists the downloads; a restart of the browser removes them."
    /// The download is still running.
    DownloadNotComplete "download_not_complete" CONFLICT true "Wait for the event download_completed, or until GET /v1/downloads says completed."
    /// The download was cancelled or failed.
    DownloadFailed "download_failed" CONFLICT false "The site ended it, it was cancelled, or it is larger than --max-download; start it again."
    /// There is no such file of a caller.
    NoSuchFile "no_such_file" NOT_FOUND false "Put the file into the clone with POST /v1/files and use the path that it returns."
    /// The files of callers would exceed their limit.
    FilesFull "files_full" INSUFFICIENT_STORAGE false "Remove files with DELETE /v1/files/{file}, or raise --max-files."
    /// The clone's disk is full, or its file system refused the file.
    StorageFailed "storage_failed" INSUFFICIENT_STORAGE false "Remove downloads and files, or create the clone with a larger disk."
    /// The form control does not accept the value.
    InvalidValue "invalid_value" UNPROCESSABLE_ENTITY false "Give a value that the control accepts; the message says what it has."
    /// The conditions did not hold in time.
    WaitTimeout "wait_timeout" GATEWAY_TIMEOUT true "Take a snapshot: the page may show something else; wait for another condition or raise timeout_ms."
    /// The page could not be loaded.
    NavigationFailed "navigation_failed" BAD_GATEWAY true "Check the URL and whether the clone may reach its host."
    /// The network policy of the clone refuses the address.
    AddressRefused "address_refused" FORBIDDEN false "Clones reach public addresses only, and no private, local or cloud-internal ones."
    /// The page did not reach the requested state in time.
    NavigationTimeout "navigation_timeout" GATEWAY_TIMEOUT true "Raise timeout_ms, or wait for an earlier state (wait_until: commit or domcontentloaded)."
    /// The page did not respond in time.
    Timeout "timeout" GATEWAY_TIMEOUT true "The page may be busy: raise timeout_ms, navigate elsewhere or close the tab."
    /// The script threw an exception.
    ScriptError "script_error" UNPROCESSABLE_ENTITY false "Correct the expression; the message is the page's exception."
    /// The renderer process crashed.
    RendererCrashed "renderer_crashed" BAD_GATEWAY true "Navigate the tab again or close it; other tabs are not affected."
    /// The result is above the size limit.
    ResponseTooLarge "response_too_large" UNPROCESSABLE_ENTITY false "Request less: use a selector, a clip or a smaller max_chars."
    /// The screenshot would have too many pixels.
    ScreenshotTooLarge "screenshot_too_large" UNPROCESSABLE_ENTITY false "Use a clip or the viewport instead of full_page."
    /// The page has too many elements for an accessibility tree.
    PageTooLarge "page_too_large" UNPROCESSABLE_ENTITY false "Use text or read_dom with a selector."
    /// A cookie is invalid.
    InvalidCookie "invalid_cookie" BAD_REQUEST false "Correct the named cookie; its fields are those of Playwright's storageState."
    /// Chromium refused a command.
    BrowserError "browser_error" BAD_GATEWAY true "Retry; if the error persists, close the tab and open a new one."
    /// Chromium is starting or restarting, or failed to start.
    BrowserNotReady "browser_not_ready" SERVICE_UNAVAILABLE true "Wait until /readyz answers 200."
    /// Chromium ended during the call.
    BrowserGone "browser_gone" SERVICE_UNAVAILABLE true "Wait until /readyz answers 200; tabs and cookies of the old browser are lost."
    /// An internal error of browserd.
    Internal "internal" INTERNAL_SERVER_ERROR true "Report this with browserd's log."
}

/// An error of the API.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}: {message}", .code.as_str())]
pub struct ApiError {
    /// The error code, for programs.
    pub code: ErrorCode,
    /// What happened, for people.
    pub message: String,
}

impl ApiError {
    /// An error with its message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The response body.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            success: false,
            error: ErrorDetail {
                code: self.code,
                message: self.message.clone(),
                hint: self.code.hint().into(),
                retryable: self.code.retryable(),
            },
        }
    }
}

impl From<CdpError> for ApiError {
    fn from(error: CdpError) -> Self {
        let code = match &error {
            CdpError::Protocol { .. }
            | CdpError::Malformed { .. }
            | CdpError::EmptyReply { .. }
            | CdpError::Parameters { .. } => ErrorCode::BrowserError,
            CdpError::Timeout { .. } => ErrorCode::Timeout,
            CdpError::SessionGone { reason, .. } if reason == CRASHED => ErrorCode::RendererCrashed,
            CdpError::SessionGone { .. } => ErrorCode::NoSuchTab,
            CdpError::TooLarge { .. } => ErrorCode::ResponseTooLarge,
            CdpError::Closed { .. } => ErrorCode::BrowserGone,
        };
        Self::new(code, with_causes(&error))
    }
}

/// An error and its causes in one line, for responses and log lines.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The reason that calls of a crashed tab fail with.
pub(crate) const CRASHED: &str = "its renderer crashed";

/// The body of every error response.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// Always false.
    pub success: bool,
    /// The error.
    pub error: ErrorDetail,
}

/// What happened and what to do.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// The error code, for programs.
    pub code: ErrorCode,
    /// What happened, for people.
    pub message: String,
    /// What the caller can do.
    pub hint: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_serialize_to_their_names_and_have_a_status_and_a_hint() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert!(code.status().is_client_error() || code.status().is_server_error());
            assert!(code.hint().ends_with('.'), "{}", code.as_str());
        }
    }
}
