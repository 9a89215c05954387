//! browserd in the clone: its readiness, tested by a request over the network. The clone is not trusted.

use super::errors::digits;
use super::{FreebsdState, conf};
use crate::api::CloneSecret;
use crate::host::{CloneSpec, HostError, HostErrorKind, HostResult, ServiceEndpoint, cdp_endpoint};
use crate::slot::SlotNames;
use serde::Deserialize;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The deadline of one HTTP request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The first pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The longest HTTP response that is read.
const ANSWER: usize = 4096;

impl FreebsdState {
    /// The longest time one verb may take: a little less than the lifecycle allows, so that the verb's own error is reported.
    pub(super) fn step_limit(&self) -> Duration {
        Duration::from_secs(self.config.lifecycle.step_timeout_seconds).mul_f64(0.9)
    }

    fn address(&self, names: &SlotNames) -> SocketAddr {
        (names.ip, self.style.port).into()
    }

    /// Whether browserd reports readiness now.
    pub(super) async fn is_ready(&self, names: &SlotNames) -> bool {
        matches!(ask(self.address(names), "/readyz", REQUEST_TIMEOUT).await, Ok(200))
    }

    /// Wait until browserd is ready, and read its raw CDP endpoint.
    pub(super) async fn wait_ready(&self, spec: &CloneSpec) -> HostResult<ServiceEndpoint> {
        let names = &spec.names;
        let address = self.address(names);
        let mut pause = FIRST_PAUSE;
        let wait = async {
            while !self.is_ready(names).await {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            raw_cdp(address, spec.secret.as_ref(), REQUEST_TIMEOUT).await
        };
        match tokio::time::timeout(self.step_limit(), wait).await {
            Ok(cdp_endpoint) => Ok(ServiceEndpoint { endpoint: format!("http://{address}"), cdp_endpoint }),
            Err(_) => Err(HostError::new(
                HostErrorKind::Timeout,
                format!("http://{address}/readyz"),
                "the browser service is not ready",
                format!("read {}/var/log/browserd.log", conf::root(names).display()),
            )),
        }
    }
}

/// One HTTP request; returns the status code.
async fn ask(address: SocketAddr, path: &str, timeout: Duration) -> std::io::Result<u16> {
    let answer = converse(address, path, timeout, |answer| answer.contains(&b'\n')).await?;
    status(&answer).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData))
}

/// The raw CDP endpoint that browserd reports, if any, without the secret.
async fn raw_cdp(address: SocketAddr, secret: Option<&CloneSecret>, timeout: Duration) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        web_socket_debugger_url: String,
    }
    let prefix = format!("/{}", secret?.as_str());
    let answer = converse(address, &format!("{prefix}/json/version"), timeout, is_whole).await.ok()?;
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|end| &answer[end + 4..])?;
    let said: Version = serde_json::from_slice(body).ok().filter(|_| status(&answer) == Some(200))?;
    cdp_endpoint(address, &said.web_socket_debugger_url.replacen(&prefix, "", 1))
}

/// Whether a response has its whole body, as its header says.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let header = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = header.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    length.is_some_and(|length: usize| answer.len() >= (end + 4).saturating_add(length))
}

/// One HTTP request; reads the response until `enough`. The clone is not trusted, so size and time are bounded.
///
/// hostd resets the connection (a linger time of zero) and does not let browserd close it first. A connection that the jail
/// closed first would stay in TIME_WAIT there and keep a stopped jail dying, and its dataset busy, for a minute.
async fn converse(
    address: SocketAddr,
    path: &str,
    timeout: Duration,
    enough: impl Fn(&[u8]) -> bool,
) -> std::io::Result<Vec<u8>> {
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_zero_linger()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = vec![0; ANSWER];
        let mut length = 0;
        while length < ANSWER && !enough(&answer[..length]) {
            match stream.read(&mut answer[length..]).await? {
                0 => break,
                count => length += count,
            }
        }
        answer.truncate(length);
        Ok(answer)
    };
    match tokio::time::timeout(timeout, talk).await {
        Ok(result) => result,
        Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
    }
}

/// `HTTP/1.1 200 OK` → 200.
fn status(answer: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(answer).ok()?.lines().next()?;
    let rest = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "))?;
    let code = rest.split(' ').next()?;
    (code.len() == 3).then(|| digits(code)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_status_line_is_refused() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\nServer: x"), Some(200));
        assert_eq!(status(b"HTTP/1.0 503 Service Unavailable\r\n"), Some(503));
        assert_eq!(status(b"HTTP/1.1 200"), Some(200));
        for other in [
            &b""[..],
            b"HTTP/1.1",
            b"HTTP/1.1 2",
            b"HTTP/1.1 2000 OK",
            b"HTTP/1.1 20x OK",
            b"SSH-2.0",
            b"\xff\xfe",
        ] {
            assert_eq!(status(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_response_is_whole_when_its_body_is() {
        for (answer, whole) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", true),
            ("HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\n{}x", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0", false),
        ] {
            assert_eq!(is_whole(answer.as_bytes()), whole, "{answer:?}");
        }
    }

    /// The server sees a reset: its side of the connection is gone at once, without TIME_WAIT.
    #[tokio::test]
    async fn a_connection_to_the_clone_is_reset_by_hostd() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = tokio::spawn(async move { ask(address, "/readyz", REQUEST_TIMEOUT).await });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 512];
        let length = stream.read(&mut request).await.unwrap();
        assert!(!String::from_utf8_lossy(&request[..length]).contains("close"), "browserd keeps it open");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        assert_eq!(asked.await.unwrap().unwrap(), 200);
        let error = stream.read(&mut request).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_cdp_endpoint_at_another_address_is_ignored() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let own = format!("ws://{address}/devtools/browser/5e6d-1");
        let secret = CloneSecret::random();
        let with_secret = format!("ws://{address}/{}/devtools/browser/5e6d-1", secret.as_str());
        let named =
            |url: &str| format!("HTTP/1.1 200 OK\r\nX: y\r\n\r\n{{\"webSocketDebuggerUrl\":\"{url}\"}}");
        let cases = [
            (named(&with_secret), Some(own.clone())),
            (named(&own), Some(own.clone())),
            (named("ws://192.0.2.1:8080/devtools/browser/5e6d-1"), None),
            (named(&format!("{own}/../x")), None),
            (named(&format!("ws://{address}/devtools/browser/")), None),
            (named(&own).replace("200 OK", "403 No"), None),
            ("HTTP/1.1 200 OK\r\n\r\nhello".to_owned(), None),
            (String::new(), None),
        ];
        for (answer, expected) in cases {
            let answering = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 512];
                let length = stream.read(&mut request).await.unwrap();
                let asked = format!("GET /{}/json/version HTTP/1.1\r\n", secret.as_str());
                assert!(request[..length].starts_with(asked.as_bytes()));
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let (said, ()) = tokio::join!(raw_cdp(address, Some(&secret), REQUEST_TIMEOUT), answering);
            assert_eq!(said, expected, "{answer}");
        }
    }

    #[tokio::test]
    async fn a_service_without_a_response_is_not_ready() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            for answer in ["HTTP/1.1 503 Wait\r\n\r\n", "", "HTTP/1.1 200 OK\r\n\r\n"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 512];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"GET /readyz HTTP/1.1\r\n"));
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        assert_eq!(ask(address, "/readyz", REQUEST_TIMEOUT).await.unwrap(), 503);
        assert!(ask(address, "/readyz", REQUEST_TIMEOUT).await.is_err());
        assert_eq!(ask(address, "/readyz", REQUEST_TIMEOUT).await.unwrap(), 200);
        answering.await.unwrap();
        assert!(ask(address, "/readyz", REQUEST_TIMEOUT).await.is_err(), "nobody listens");
    }
}
