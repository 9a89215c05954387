//! Connects port clients to the browser's debugging port inside the sandbox.
//!
//! The port refuses connections until the browser is verified, like Chromium's own before it is ready: clients try again
//! until it answers. Messages that name files of the host are rewritten (`messages`), so the relay reads HTTP and
//! WebSocket instead of copying bytes.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, setsockopt, socket,
    sockopt,
};
use sandbox::Sandbox;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::cdp::MAX_MESSAGE;
use crate::messages::{Action, Rewriter, without_blocking};

/// The longest head of a request or response.
const MAX_HEAD: usize = 64 * 1024;
const MAX_HEADERS: usize = 64;

/// A port that is reserved outside, and the same port inside.
#[derive(Debug)]
pub(crate) struct Relay {
    socket: OwnedFd,
    pub(crate) port: u16,
}

impl Relay {
    /// Reserves a port. Nobody can connect to it before `listen`.
    pub(crate) fn reserve(wanted: u16) -> io::Result<Relay> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
        // The connections of an earlier browser on the same port may not have ended completely.
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        bind(
            socket.as_raw_fd(),
            &SockaddrIn::from(std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, wanted)),
        )?;
        let port = getsockname::<SockaddrIn>(socket.as_raw_fd())?.port();
        Ok(Relay { socket, port })
    }

    /// From now on clients can connect.
    pub(crate) fn listen(self) -> io::Result<Listening> {
        listen(&self.socket, Backlog::new(128)?)?;
        Ok(Listening { listener: self.socket.into(), port: self.port })
    }
}

/// A port to which clients can connect.
#[derive(Debug)]
pub(crate) struct Listening {
    listener: std::net::TcpListener,
    port: u16,
}

impl Listening {
    /// Accepts connections forever.
    pub(crate) async fn accept(
        self,
        sandbox: Arc<Mutex<Sandbox>>,
        rewriter: Option<Arc<Rewriter>>,
    ) -> io::Result<()> {
        let listener = TcpListener::from_std(self.listener)?;
        loop {
            let Ok((client, peer)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            if !is_permitted(&client, peer) {
                continue;
            }
            let (sandbox, rewriter, port) = (Arc::clone(&sandbox), rewriter.clone(), self.port);
            tokio::spawn(async move {
                let inside = tokio::task::spawn_blocking(move || {
                    let inside = sandbox.lock().map_err(|_| io::ErrorKind::Other)?.connect_inside(port)?;
                    inside.set_nonblocking(true)?;
                    Ok::<_, io::Error>(inside)
                });
                let Ok(Ok(inside)) = inside.await else { return };
                let Ok(browser) = TcpStream::from_std(inside) else {
                    return;
                };
                // An error ends the connection, and both peers see that.
                let _ = serve(client, browser, rewriter).await;
            });
        }
    }
}

/// Only root and the user who started the browser may connect.
fn is_permitted(client: &TcpStream, peer: std::net::SocketAddr) -> bool {
    let owner = client.local_addr().ok().and_then(|own| crate::peer::uid(peer, own));
    owner.is_some_and(|uid| uid == 0 || uid == nix::unistd::geteuid().as_raw())
}

async fn serve(
    mut client: TcpStream,
    mut browser: TcpStream,
    rewriter: Option<Arc<Rewriter>>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    browser.set_nodelay(true)?;
    let Some(rewriter) = rewriter else {
        tokio::io::copy_bidirectional(&mut client, &mut browser).await?;
        return Ok(());
    };
    let (mut client, mut browser) = (Peer::new(client), Peer::new(browser));
    loop {
        let Some(head) = client.head().await? else {
            return Ok(());
        };
        let (head, body) = request(&head)?;
        browser.stream.write_all(&head).await?;
        client.pass_on(body, &mut browser.stream).await?;
        let Some(head) = browser.head().await? else {
            return Ok(());
        };
        client.stream.write_all(&head).await?;
        match response(&head)? {
            ResponseBody::Upgraded => return messages(client, browser, rewriter).await,
            ResponseBody::Body(length) => browser.pass_on(length, &mut client.stream).await?,
            ResponseBody::UntilTheEnd => {
                client.stream.write_all(&browser.unread).await?;
                tokio::io::copy(&mut browser.stream, &mut client.stream).await?;
                return Ok(());
            }
        }
    }
}

/// One end of a connection and the bytes of it that were read but not used.
struct Peer {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Peer {
    fn new(stream: TcpStream) -> Peer {
        Peer { stream, unread: Vec::new() }
    }

    /// The next head, with the empty line at its end; `None` if the peer closed the connection before it.
    async fn head(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut searched = 0;
        loop {
            let found = self.unread[searched..].windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(position) = found {
                let rest = self.unread.split_off(searched + position + 4);
                return Ok(Some(std::mem::replace(&mut self.unread, rest)));
            }
            if self.unread.len() > MAX_HEAD {
                return Err(io::ErrorKind::InvalidData.into());
            }
            searched = self.unread.len().saturating_sub(3);
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Passes `length` bytes on.
    async fn pass_on(&mut self, length: u64, to: &mut TcpStream) -> io::Result<()> {
        let known = usize::try_from(length).unwrap_or(usize::MAX).min(self.unread.len());
        to.write_all(&self.unread[..known]).await?;
        self.unread.drain(..known);
        let rest = length - known as u64;
        tokio::io::copy(&mut (&mut self.stream).take(rest), to).await?;
        Ok(())
    }
}

/// The head of a request for the browser, and the length of its body. Compression of messages is not offered, because the
/// relay reads them.
fn request(head: &[u8]) -> io::Result<(Vec<u8>, u64)> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(head).map_err(io::Error::other)?;
    let (Some(method), Some(path)) = (parsed.method, parsed.path) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let mut out = format!("{method} {path} HTTP/1.1\r\n").into_bytes();
    for header in parsed.headers.iter() {
        if !header.name.eq_ignore_ascii_case("sec-websocket-extensions") {
            out.extend_from_slice(header.name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(header.value);
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok((out, content_length(parsed.headers)?.unwrap_or(0)))
}

/// What follows the head of a response.
#[derive(Debug, PartialEq, Eq)]
enum ResponseBody {
    /// Messages follow.
    Upgraded,
    /// A body of this length follows, then the next response.
    Body(u64),
    /// The connection ends with the body.
    UntilTheEnd,
}

fn response(head: &[u8]) -> io::Result<ResponseBody> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut headers);
    parsed.parse(head).map_err(io::Error::other)?;
    Ok(match (parsed.code, content_length(parsed.headers)?) {
        (Some(101), _) => ResponseBody::Upgraded,
        (_, Some(length)) => ResponseBody::Body(length),
        (_, None) => ResponseBody::UntilTheEnd,
    })
}

fn content_length(headers: &[httparse::Header<'_>]) -> io::Result<Option<u64>> {
    let header = headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    header
        .map(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok())
        .map(|length| length.ok_or_else(invalid))
        .transpose()
}

/// Forwards messages in both directions until one end closes.
async fn messages(client: Peer, browser: Peer, rewriter: Arc<Rewriter>) -> io::Result<()> {
    let config = || {
        Some(WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE)))
    };
    let open = WebSocketStream::from_partially_read;
    let (mut to_client, mut from_client) =
        open(client.stream, client.unread, Role::Server, config()).await.split();
    let (mut to_browser, mut from_browser) =
        open(browser.stream, browser.unread, Role::Client, config()).await.split();
    let (answer, mut answers) = tokio::sync::mpsc::channel::<String>(16);
    let outbound = async {
        while let Some(Ok(message)) = from_client.next().await {
            let message = match message {
                Message::Text(text) if Rewriter::concerns(text.as_bytes()) => {
                    let handle = Rewriter::of_client;
                    match without_blocking(&rewriter, text.as_bytes().to_vec(), handle).await {
                        Some(Action::Pass) => Message::Text(text),
                        Some(Action::Replace(new)) => Message::text(new),
                        Some(Action::Answer(error)) => {
                            let _ = answer.send(error).await;
                            continue;
                        }
                        None => return,
                    }
                }
                // The relay answers these itself.
                Message::Ping(_) | Message::Pong(_) => continue,
                other => other,
            };
            if to_browser.send(message).await.is_err() {
                return;
            }
        }
        let _ = to_browser.close().await;
    };
    let inbound = async {
        loop {
            let message = tokio::select! {
                Some(error) = answers.recv() => Message::text(error),
                message = from_browser.next() => match message {
                    Some(Ok(Message::Text(text))) if Rewriter::concerns(text.as_bytes()) => {
                        let handle = Rewriter::of_browser;
                        match without_blocking(&rewriter, text.as_bytes().to_vec(), handle).await {
                            Some(Some(new)) => Message::text(new),
                            Some(None) => Message::Text(text),
                            None => return,
                        }
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Ok(other)) => other,
                    Some(Err(_)) | None => {
                        let _ = to_client.close().await;
                        return;
                    }
                },
            };
            if to_client.send(message).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = outbound => {}
        () = inbound => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream as Blocking;

    #[test]
    fn a_reserved_port_refuses_until_it_listens() {
        let relay = Relay::reserve(0).expect("a port");
        let address = (Ipv4Addr::LOCALHOST, relay.port);
        let error = Blocking::connect(address).expect_err("not yet");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let _listening = relay.listen().expect("listening");
        assert!(Blocking::connect(address).is_ok());
        assert!(Relay::reserve(address.1).is_err(), "it is taken");
    }

    #[test]
    fn compression_is_not_offered_to_the_browser() {
        let head = b"GET /devtools/browser/x HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Extensions: permessage-deflate\r\nUpgrade: websocket\r\n\r\n";
        let (head, body) = request(head).expect("valid");
        let text = "GET /devtools/browser/x HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n";
        assert_eq!((String::from_utf8(head).expect("text").as_str(), body), (text, 0));
        assert!(request(b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n").is_err());
    }

    #[test]
    fn the_kind_of_a_response_is_known() {
        let kind = |text: &str| response(text.as_bytes()).expect("valid");
        assert_eq!(kind("HTTP/1.1 101 Switching Protocols\r\n\r\n"), ResponseBody::Upgraded);
        assert_eq!(kind("HTTP/1.1 200 OK\r\nContent-Length:5\r\n\r\n"), ResponseBody::Body(5));
        assert_eq!(kind("HTTP/1.1 500 No\r\n\r\n"), ResponseBody::UntilTheEnd);
    }
}
