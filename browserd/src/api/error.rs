//! Errors of the API: a code to act on, a sentence that says what happened, a hint that says what to do.

use crate::cdp::CdpError;
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $text:literal $status:ident $retry:literal $hint:literal)*) => {
        /// What went wrong, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode { $($(#[$doc])* $name),* }

        impl ErrorCode {
            /// Every code, for documents and tests.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// As it stands in JSON.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $text),* } }
            /// The HTTP status that goes with it.
            pub fn status(self) -> StatusCode { match self { $(Self::$name => StatusCode::$status),* } }
            /// Whether the same call may succeed later.
            pub fn retryable(self) -> bool { match self { $(Self::$name => $retry),* } }
            /// What the caller can do.
            pub fn hint(self) -> &'static str { match self { $(Self::$name => $hint),* } }
        }
    };
}

codes! {
    /// The request is not understood.
    BadRequest "bad_request" BAD_REQUEST false "Correct the request; /openapi.json describes every call."
    /// No such path.
    NotFound "not_found" NOT_FOUND false "/openapi.json lists every path."
    /// The path exists, the method does not.
    MethodNotAllowed "method_not_allowed" METHOD_NOT_ALLOWED false "/openapi.json lists the methods of every path."
    /// The body is larger than accepted.
    RequestTooLarge "request_too_large" PAYLOAD_TOO_LARGE false "Send less, or raise --max-request."
    /// The body did not arrive in time.
    RequestTimeout "request_timeout" REQUEST_TIMEOUT true "Send the whole body at once."
    /// A body that is not JSON by its content type.
    UnsupportedMediaType "unsupported_media_type" UNSUPPORTED_MEDIA_TYPE false "Send Content-Type: application/json."
    /// The call came from a web page, or under a foreign host name.
    ForbiddenOrigin "forbidden_origin" FORBIDDEN false "Only programs may call: send no Origin or Sec-Fetch headers and an IP address as Host; name other hosts with --allow-host."
    /// Switched off.
    EvaluateDisabled "evaluate_disabled" FORBIDDEN false "This browserd runs with --no-evaluate."
    /// Switched off.
    RawCdpDisabled "raw_cdp_disabled" FORBIDDEN false "This browserd runs with --no-raw-cdp."
    /// Too many calls at one time.
    TooManyCalls "too_many_calls" TOO_MANY_REQUESTS true "Wait for other calls to end, then repeat."
    /// Too many tabs.
    TooManyTabs "too_many_tabs" TOO_MANY_REQUESTS false "Close a tab first (DELETE /v1/tabs/{tab})."
    /// The tab is closed or never was.
    NoSuchTab "no_such_tab" NOT_FOUND false "GET /v1/tabs lists the open tabs; POST /v1/tabs opens one."
    /// Nothing matches the selector.
    NoSuchElement "no_such_element" NOT_FOUND true "Take a snapshot or read_dom to see what the page holds; it may still be loading."
    /// The ref is not of the tab's last snapshot, or its element is gone.
    StaleRef "stale_ref" CONFLICT false "Take a new snapshot and use its refs."
    /// The selector is not CSS.
    InvalidSelector "invalid_selector" BAD_REQUEST false "Correct the CSS selector, or use a ref from a snapshot."
    /// The element has no visible box.
    ElementNotVisible "element_not_visible" CONFLICT true "Scroll, open the part of the page it is in, or choose another element."
    /// Text cannot be typed there.
    ElementNotEditable "element_not_editable" CONFLICT false "Choose an input, a textarea or an editable element."
    /// The page could not be loaded.
    NavigationFailed "navigation_failed" BAD_GATEWAY true "Check the URL and that the clone may reach the host."
    /// The page did not reach the wanted state in time.
    NavigationTimeout "navigation_timeout" GATEWAY_TIMEOUT true "Raise timeout_ms or wait for less (wait_until: commit or domcontentloaded)."
    /// The page did not answer in time.
    Timeout "timeout" GATEWAY_TIMEOUT true "The page may be busy: raise timeout_ms, navigate elsewhere or close the tab."
    /// The script threw.
    ScriptError "script_error" UNPROCESSABLE_ENTITY false "Correct the expression; the message is the page's exception."
    /// The renderer process crashed.
    RendererCrashed "renderer_crashed" BAD_GATEWAY true "Navigate the tab again or close it; other tabs are not affected."
    /// The result is larger than accepted.
    ResponseTooLarge "response_too_large" UNPROCESSABLE_ENTITY false "Ask for less: a selector, a clip, a smaller max_chars."
    /// The picture would have too many pixels.
    ScreenshotTooLarge "screenshot_too_large" UNPROCESSABLE_ENTITY false "Use a clip or the viewport instead of full_page."
    /// The page has too many nodes for an accessibility tree.
    PageTooLarge "page_too_large" UNPROCESSABLE_ENTITY false "Use text or read_dom with a selector."
    /// A cookie cannot be set.
    InvalidCookie "invalid_cookie" BAD_REQUEST false "Correct the named cookie; storageState's cookie fields are expected."
    /// Chromium refused a command.
    BrowserError "browser_error" BAD_GATEWAY true "Repeat; if it stays, close the tab and open a new one."
    /// Chromium is not up (yet, or again).
    BrowserNotReady "browser_not_ready" SERVICE_UNAVAILABLE true "Wait until /readyz answers 200."
    /// Chromium died during the call.
    BrowserGone "browser_gone" SERVICE_UNAVAILABLE true "Wait until /readyz answers 200; tabs and cookies of the old browser are lost."
    /// A fault of browserd itself.
    Internal "internal" INTERNAL_SERVER_ERROR true "Report this with browserd's log."
}

/// One error of the API.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}: {message}", .code.as_str())]
pub struct ApiError {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
}

impl ApiError {
    /// An error with its sentence.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// As it goes over the wire.
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
            CdpError::Protocol { .. } | CdpError::Malformed { .. } => ErrorCode::BrowserError,
            CdpError::Timeout { .. } => ErrorCode::Timeout,
            CdpError::SessionGone { reason, .. } if reason == CRASHED => ErrorCode::RendererCrashed,
            CdpError::SessionGone { .. } => ErrorCode::NoSuchTab,
            CdpError::TooLarge { .. } => ErrorCode::ResponseTooLarge,
            CdpError::Closed { .. } => ErrorCode::BrowserGone,
        };
        Self::new(code, error.to_string())
    }
}

/// Why the calls of a crashed tab fail.
pub(crate) const CRASHED: &str = "its renderer crashed";

/// The body of every answer that is not a success.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// Always false.
    pub success: bool,
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong and what to do.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
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
    fn every_code_reads_in_json_as_it_says() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert!(code.status().is_client_error() || code.status().is_server_error());
            assert!(code.hint().ends_with('.'), "{}", code.as_str());
        }
    }
}
