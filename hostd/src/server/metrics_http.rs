//! The optional Prometheus listener: only `GET /metrics`, only on a loopback address.
//!
//! One request per connection, with limits on header size, time and number of connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

const LONGEST_HEAD: usize = 8 * 1024;
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_CONNECTIONS: usize = 8;

/// Why the listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum MetricsHttpError {
    /// The address can be reached from outside.
    #[error(
        "metrics.listen = {0} is not a loopback address: the metrics have no access control; use 127.0.0.1 or [::1]"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be used.
    #[error("metrics.listen = {address} cannot be used: {error}; choose another port")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of bind(2).
        error: io::Error,
    },
}

/// Whether the address may be used at all.
pub fn check(address: SocketAddr) -> Result<(), MetricsHttpError> {
    if address.ip().is_loopback() { Ok(()) } else { Err(MetricsHttpError::NotLoopback(address)) }
}

/// Open the listener.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, MetricsHttpError> {
    check(address)?;
    TcpListener::bind(address).await.map_err(|error| MetricsHttpError::Bind { address, error })
}

/// Answer scrapes until the task is dropped.
pub async fn serve(listener: TcpListener, text: impl Fn() -> String + Send + Sync + 'static) {
    let text = Arc::new(text);
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // Further connections wait in the kernel's backlog.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let text = text.clone();
                tokio::spawn(async move {
                    let _ = timeout(TIMEOUT, answer(stream, text.as_ref())).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "metrics: cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, text: &(dyn Fn() -> String + Send + Sync)) -> io::Result<()> {
    let (status, body) = match read_head(&mut stream).await? {
        Some(head) => respond(&head, text),
        None => ("431 Request Header Fields Too Large", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn respond(head: &[u8], text: &(dyn Fn() -> String + Send + Sync)) -> (&'static str, String) {
    let first = head.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    let words: Vec<&[u8]> = first.split(|byte| *byte == b' ').collect();
    match words[..] {
        [b"GET", b"/metrics", version] if version.starts_with(b"HTTP/1.") => ("200 OK", text()),
        [b"GET", _, version] if version.starts_with(b"HTTP/1.") => ("404 Not Found", String::new()),
        [_, _, version] if version.starts_with(b"HTTP/1.") => ("405 Method Not Allowed", String::new()),
        _ => ("400 Bad Request", String::new()),
    }
}

/// The request up to its empty line; `None` if it is too long.
async fn read_head(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::with_capacity(512);
    loop {
        if stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if head.windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(Some(head));
        }
        if head.len() > LONGEST_HEAD {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn only_get_metrics_is_answered() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, || "up 1\n".to_owned()));
        let good = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\nup 1\n"), "{good}");
        assert!(good.contains("Content-Length: 5\r\n"), "{good}");
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"nonsense\r\n\r\n", "400"),
        ] {
            let answer = ask(address, request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(!answer.contains("up 1"));
        }
        let long = [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; LONGEST_HEAD + 1]].concat();
        assert!(ask(address, &long).await.starts_with("HTTP/1.1 431 "));
        server.abort();
    }

    #[tokio::test]
    async fn idle_connections_time_out_and_do_not_block_scrapers() {
        let listener = bind("[::1]:0".parse().unwrap()).await;
        let listener = match listener {
            Ok(listener) => listener,
            Err(_) => bind("127.0.0.1:0".parse().unwrap()).await.unwrap(),
        };
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, || "up 1\n".to_owned()));
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").await;
        assert!(answer.ends_with("up 1\n"), "{answer}");
        server.abort();
    }

    #[test]
    fn other_addresses_are_refused() {
        for bad in ["0.0.0.0:1", "[::]:1", "192.0.2.1:9469"] {
            let error = check(bad.parse().unwrap()).unwrap_err();
            assert!(matches!(error, MetricsHttpError::NotLoopback(_)), "{error}");
        }
        assert!(check("127.0.0.1:1".parse().unwrap()).is_ok() && check("[::1]:1".parse().unwrap()).is_ok());
    }
}
