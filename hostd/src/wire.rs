//! JSON-RPC 2.0, one message per line in both directions.
//!
//! Parsing is strict: unknown fields, duplicate fields, batches and positional parameters are refused, because a
//! privileged daemon must not guess what a caller meant. Ids are echoed byte for byte.

use crate::api::{ErrorCode, ErrorData, Method, Progress, RpcError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The method of progress notifications.
pub const PROGRESS: &str = "progress";

/// Errors quote at most this many characters of the caller's text.
const LONGEST_QUOTE: usize = 300;

/// A line that is a valid message.
#[derive(Debug)]
pub enum Message<'a> {
    /// A request that wants an answer.
    Call {
        /// Echoed in the answer.
        id: &'a RawValue,
        /// The called method.
        method: Method,
        /// A JSON object; not yet checked against the method.
        params: &'a str,
    },
    /// A request without an id. JSON-RPC allows no answer to it, not even an error.
    Notification {
        /// The method it names, known or not.
        method: Cow<'a, str>,
    },
}

/// A line that is refused.
#[derive(Debug)]
pub struct Refusal<'a> {
    /// The request's id, or null if it could not be read.
    pub id: &'a RawValue,
    /// Why.
    pub error: RpcError,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
}

/// Distinguishes `null` from a missing field, which a plain `Option` does not.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Parse one line.
pub fn parse(line: &[u8]) -> Result<Message<'_>, Refusal<'_>> {
    if line.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        let hint = "send one request per line; one connection may have many requests running";
        return Err(Refusal {
            id: RawValue::NULL,
            error: RpcError::new(ErrorCode::InvalidRequest, "batches are not supported", hint),
        });
    }
    let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(|error| refusal(line, &error))?;
    let id = match envelope.id {
        Some(id) if !is_id(id) => {
            return Err(invalid(RawValue::NULL, "an id is a string, a number or null"));
        }
        id => id,
    };
    let echo = id.unwrap_or(RawValue::NULL);
    if envelope.jsonrpc != "2.0" {
        return Err(invalid(echo, "jsonrpc must be \"2.0\""));
    }
    let params = envelope.params.map_or("{}", RawValue::get);
    if !params.starts_with('{') {
        return Err(invalid(echo, "params must be an object: parameters are named"));
    }
    let Some(id) = id else {
        return Ok(Message::Notification { method: envelope.method });
    };
    match Method::from_name(&envelope.method) {
        Some(method) => Ok(Message::Call { id, method, params }),
        None => Err(Refusal { id, error: unknown_method(&envelope.method) }),
    }
}

/// Parse the parameters of a call.
pub fn params<T: DeserializeOwned>(method: Method, params: &str) -> Result<T, RpcError> {
    serde_json::from_str(params).map_err(|error| {
        let message = format!("{method}: {}", shortened(&error.to_string()));
        RpcError::new(ErrorCode::InvalidParams, message, "rpc.discover lists the parameters of every method")
    })
}

fn is_id(id: &RawValue) -> bool {
    let text = id.get();
    text == "null" || text.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())
}

fn refusal<'a>(line: &'a [u8], error: &serde_json::Error) -> Refusal<'a> {
    if !error.is_data() {
        let message = format!("not JSON: {}", shortened(&error.to_string()));
        let hint = "send one JSON object on one line, ended by a newline";
        return Refusal { id: RawValue::NULL, error: RpcError::new(ErrorCode::ParseError, message, hint) };
    }
    // The caller waits for an answer with its id, so the id is echoed if it can be read.
    #[derive(Deserialize)]
    struct OnlyId<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        id: Option<&'a RawValue>,
    }
    let id = serde_json::from_slice::<OnlyId<'_>>(line).ok().and_then(|only| only.id).filter(|id| is_id(id));
    invalid(id.unwrap_or(RawValue::NULL), &shortened(&error.to_string()))
}

fn invalid<'a>(id: &'a RawValue, why: &str) -> Refusal<'a> {
    let message = format!("not a JSON-RPC 2.0 request: {why}");
    let hint = "a request has jsonrpc, id, method and params, each once, and nothing else";
    Refusal { id, error: RpcError::new(ErrorCode::InvalidRequest, message, hint) }
}

fn unknown_method(name: &str) -> RpcError {
    let name = shortened(name);
    let near = Method::ALL
        .into_iter()
        .map(|method| (strsim::levenshtein(method.name(), &name), method))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= 4);
    let hint = match near {
        Some((_, method)) => format!("did you mean {method}?"),
        None => "rpc.discover lists all methods".to_owned(),
    };
    RpcError::new(ErrorCode::MethodNotFound, format!("no method {name:?}"), hint)
}

/// At most [`LONGEST_QUOTE`] characters of a caller's text, for messages and logs.
pub fn shortened(text: &str) -> String {
    if text.chars().count() <= LONGEST_QUOTE {
        return text.to_owned();
    }
    text.chars().take(LONGEST_QUOTE).chain(" …".chars()).collect()
}

#[derive(Serialize)]
struct Success<'a, T> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    result: T,
}

#[derive(Serialize)]
struct Failure<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    error: WireError<'a>,
}

#[derive(Serialize, Deserialize)]
struct WireError<'a> {
    code: i32,
    message: Cow<'a, str>,
    data: Cow<'a, ErrorData>,
}

#[derive(Serialize)]
struct Request<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: P,
}

/// The line that answers a call.
pub fn success<T: Serialize>(id: &RawValue, result: &T) -> Vec<u8> {
    line(&Success { jsonrpc: "2.0", id, result })
}

/// The line with the error of a call, or with a null id of the whole connection.
pub fn failure(id: &RawValue, error: &RpcError) -> Vec<u8> {
    let code = error.code().number();
    let error =
        WireError { code, message: Cow::Borrowed(&error.message), data: Cow::Borrowed(error.data.as_ref()) };
    line(&Failure { jsonrpc: "2.0", id, error })
}

/// A progress notification.
pub fn progress(progress: &Progress) -> Vec<u8> {
    line(&Request { jsonrpc: "2.0", id: None, method: PROGRESS, params: progress })
}

/// The line that calls a method.
pub fn request<P: Serialize>(id: u64, method: &str, params: &P) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Request { jsonrpc: "2.0", id: Some(id), method, params })?;
    line.push(b'\n');
    Ok(line)
}

fn line<T: Serialize>(message: &T) -> Vec<u8> {
    // Most lines fit without reallocation.
    let mut line = Vec::with_capacity(1024);
    serde_json::to_writer(&mut line, message).expect("our own types have string keys and finite numbers");
    line.push(b'\n');
    line
}

/// A line from the daemon, as a client reads it.
#[derive(Debug)]
pub enum Reply {
    /// The answer to a call, or without an id an error of the connection.
    Answer {
        /// The call's id.
        id: Option<u64>,
        /// Its outcome.
        outcome: Result<Box<RawValue>, RpcError>,
    },
    /// A progress notification.
    Progress(Progress),
}

/// Parse a line from the daemon. Fields that a newer daemon may add are ignored.
pub fn parse_reply(line: &[u8]) -> serde_json::Result<Reply> {
    #[derive(Deserialize)]
    struct Any<'a> {
        #[serde(default)]
        id: Option<u64>,
        #[serde(borrow, default)]
        method: Option<Cow<'a, str>>,
        #[serde(borrow, default, deserialize_with = "present")]
        params: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        result: Option<&'a RawValue>,
        #[serde(borrow, default)]
        error: Option<WireError<'a>>,
    }
    use serde::de::Error;
    let any: Any<'_> = serde_json::from_slice(line)?;
    match any {
        Any { method: Some(method), params: Some(params), .. } if method == PROGRESS => {
            Ok(Reply::Progress(serde_json::from_str(params.get())?))
        }
        Any { error: Some(error), id, .. } => {
            let error =
                RpcError { message: error.message.into_owned(), data: Box::new(error.data.into_owned()) };
            Ok(Reply::Answer { id, outcome: Err(error) })
        }
        Any { result: Some(result), id, .. } => Ok(Reply::Answer { id, outcome: Ok(result.to_owned()) }),
        _ => Err(serde_json::Error::custom("neither an answer nor a progress notification")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{CreateParams, StatusParams};

    fn refused(line: &str) -> (String, ErrorCode, String) {
        let refusal = parse(line.as_bytes()).expect_err(line);
        (refusal.id.get().to_owned(), refusal.error.code(), refusal.error.message.clone())
    }

    #[test]
    fn ids_are_echoed_exactly() {
        for id in ["1", "-7", "1.50", "1e3", "9007199254740993", "\"a\\u0041 \"", "null", "\"\""] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"host-status"}}"#);
            let Message::Call { id: seen, method, params } = parse(line.as_bytes()).unwrap() else {
                panic!("{id} is a call")
            };
            assert_eq!((seen.get(), method, params), (id, Method::Status, "{}"));
            assert_eq!(
                success(seen, &1),
                format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":1}}\n").into_bytes()
            );
        }
        for id in ["true", "[1]", "{}"] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"host-status"}}"#);
            assert_eq!(refused(&line).1, ErrorCode::InvalidRequest, "{id}");
        }
    }

    #[test]
    fn a_message_without_an_id_is_a_notification() {
        for method in ["browser-clone-reap", "nonsense"] {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
            match parse(line.as_bytes()).unwrap() {
                Message::Notification { method: seen } => assert_eq!(seen, method),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_envelope_is_strict() {
        let cases = [
            ("", ErrorCode::ParseError, "null"),
            ("{", ErrorCode::ParseError, "null"),
            ("\u{1}", ErrorCode::ParseError, "null"),
            ("17", ErrorCode::InvalidRequest, "null"),
            ("\"x\"", ErrorCode::InvalidRequest, "null"),
            ("null", ErrorCode::InvalidRequest, "null"),
            ("  [1]", ErrorCode::InvalidRequest, "null"),
            (r#"["2.0","host-status"]"#, ErrorCode::InvalidRequest, "null"),
            (r#"{"id":4,"method":"host-status"}"#, ErrorCode::InvalidRequest, "4"),
            (r#"{"jsonrpc":"2.0","id":4}"#, ErrorCode::InvalidRequest, "4"),
            (r#"{"jsonrpc":"1.0","id":4,"method":"host-status"}"#, ErrorCode::InvalidRequest, "4"),
            (r#"{"jsonrpc":"2.0","id":4,"method":"host-status","x":1}"#, ErrorCode::InvalidRequest, "4"),
            (
                r#"{"jsonrpc":"2.0","id":4,"method":"host-status","method":"rpc.discover"}"#,
                ErrorCode::InvalidRequest,
                "4",
            ),
            (r#"{"jsonrpc":"2.0","id":4,"id":5,"method":"host-status"}"#, ErrorCode::InvalidRequest, "null"),
            (
                r#"{"jsonrpc":"2.0","id":4,"method":"host-status","params":[]}"#,
                ErrorCode::InvalidRequest,
                "4",
            ),
            (
                r#"{"jsonrpc":"2.0","id":4,"method":"host-status","params":null}"#,
                ErrorCode::InvalidRequest,
                "4",
            ),
            (r#"{"jsonrpc":"2.0","id":4,"method":"host-status"} x"#, ErrorCode::ParseError, "null"),
            (r#"{"jsonrpc":"2.0","id":4,"method":"host-statu"}"#, ErrorCode::MethodNotFound, "4"),
            (r#"{"jsonrpc":"2.0","id":4,"method":"Host-Status"}"#, ErrorCode::MethodNotFound, "4"),
        ];
        for (line, code, id) in cases {
            let (seen_id, seen_code, message) = refused(line);
            assert_eq!((seen_code, seen_id.as_str()), (code, id), "{line}: {message}");
        }
        assert!(parse(b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"host-status\"}").is_err());
        assert!(parse(b" {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"host-status\"} \r").is_ok());
    }

    #[test]
    fn deep_nesting_is_refused_without_a_deep_stack() {
        let deep = "[".repeat(30_000);
        assert_eq!(refused(&deep).1, ErrorCode::InvalidRequest);
        let deep = r#"{"a":"#.repeat(12_000);
        assert_eq!(refused(&deep).1, ErrorCode::InvalidRequest);
        let deep = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"browser-clone-create","params":{{"request_id":{}1{}}}}}"#,
            "[".repeat(20_000),
            "]".repeat(20_000)
        );
        let Message::Call { params: text, method, .. } = parse(deep.as_bytes()).unwrap() else { panic!() };
        assert_eq!(params::<CreateParams>(method, text).unwrap_err().code(), ErrorCode::InvalidParams);
    }

    #[test]
    fn parameters_are_strict_and_errors_short() {
        let bad = [
            r#"{"request_id":"a","request_id":"a"}"#,
            r#"{"request_id":"a","path":"/etc"}"#,
            r#"{"request_id":7}"#,
            r#"{"request_id":"a","limits":{"processes":1,"processes":2}}"#,
            r#"{"request_id":"a","limits":{"sudo":1}}"#,
            r#"{"request_id":"a","deadline_seconds":-1}"#,
            r#"{"request_id":"a","deadline_seconds":1e400}"#,
            r#"{}"#,
        ];
        for text in bad {
            let error = params::<CreateParams>(Method::Create, text).expect_err(text);
            assert_eq!(error.code(), ErrorCode::InvalidParams, "{text}");
            assert!(error.message.starts_with("browser-clone-create: "), "{error}");
        }
        let long = format!(r#"{{"{}":1}}"#, "x".repeat(60_000));
        let error = params::<StatusParams>(Method::Status, &long).unwrap_err();
        assert!(error.message.len() < 400, "{}", error.message.len());
        let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "é".repeat(20_000));
        assert!(refused(&long).2.len() < 2 * LONGEST_QUOTE + 50);
    }

    #[test]
    fn an_unknown_method_suggests_the_nearest() {
        let near = unknown_method("browser-clone-creat").data.hint;
        assert_eq!(near, "did you mean browser-clone-create?");
        assert_eq!(unknown_method("ls").data.hint, "rpc.discover lists all methods");
    }

    #[test]
    fn a_client_parses_what_the_server_writes() {
        let error = RpcError::new(ErrorCode::HostFull, "full", "wait")
            .retry_after(std::time::Duration::from_millis(20))
            .step("jail")
            .cleanup(vec!["x".into()]);
        let id = serde_json::value::to_raw_value(&7).unwrap();
        match parse_reply(&failure(&id, &error)).unwrap() {
            Reply::Answer { id: Some(7), outcome: Err(seen) } => assert_eq!(seen, error),
            other => panic!("{other:?}"),
        }
        match parse_reply(&failure(RawValue::NULL, &error)).unwrap() {
            Reply::Answer { id: None, outcome: Err(seen) } => assert_eq!(seen, error),
            other => panic!("{other:?}"),
        }
        let sent = Progress {
            progress_token: "t".parse().unwrap(),
            name: "browsertask001".parse().unwrap(),
            step: "jail".into(),
            state: crate::api::ProgressState::Done,
            seconds: 0.5,
        };
        match parse_reply(&progress(&sent)).unwrap() {
            Reply::Progress(seen) => assert_eq!(seen, sent),
            other => panic!("{other:?}"),
        }
        assert!(parse_reply(b"{}").is_err());
        let call = request(3, "host-status", &StatusParams::default()).unwrap();
        assert!(matches!(parse(&call).unwrap(), Message::Call { method: Method::Status, .. }));
    }
}
