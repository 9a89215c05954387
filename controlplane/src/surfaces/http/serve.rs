//! Accepts connections and serves HTTP/1.1 on them, with limits on how many there are and how slow they may be.

use crate::access::Caller;
use crate::surfaces::Surface;
use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

/// Size of hyper's buffer for one connection: the limit of a request's head.
const BUFFER: usize = 64 * 1024;
/// Headers of a request.
const MAX_HEADERS: usize = 64;

/// A connection's socket.
pub type Socket = Either<UnixStream, TcpStream>;

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub struct Connection(Peer);

#[derive(Debug, Clone)]
enum Peer {
    Local(Arc<Caller>),
    Remote(SocketAddr),
}

impl Connection {
    /// A peer of the Unix socket.
    pub fn local(caller: Caller) -> Self {
        Self(Peer::Local(Arc::new(caller)))
    }

    /// A peer of the TCP listener.
    pub fn remote(address: SocketAddr) -> Self {
        Self(Peer::Remote(address))
    }

    /// The caller that the Unix socket's credentials name.
    pub(crate) fn caller(&self) -> Option<&Caller> {
        match &self.0 {
            Peer::Local(caller) => Some(caller),
            Peer::Remote(_) => None,
        }
    }

    /// Whether it came through the Unix socket.
    pub(crate) fn is_local_socket(&self) -> bool {
        matches!(self.0, Peer::Local(_))
    }

    /// Whether the peer is on this host.
    pub(crate) fn is_local(&self) -> bool {
        match self.0 {
            Peer::Local(_) => true,
            Peer::Remote(address) => address.ip().to_canonical().is_loopback(),
        }
    }
}

/// A listener.
#[derive(Debug)]
pub enum Door {
    /// For local users: the peer's credentials are the login.
    Unix(hostd::server::listener::Listener),
    /// For holders of keys.
    Tcp(TcpListener),
}

impl Door {
    async fn accept(&self) -> io::Result<(Socket, Option<SocketAddr>)> {
        match self {
            Door::Unix(listener) => Ok((Either::Left(listener.accept().await?), None)),
            Door::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Without Nagle's algorithm, small answers are sent at once.
                let _ = stream.set_nodelay(true);
                Ok((Either::Right(stream), Some(address)))
            }
        }
    }
}

/// What the connections of all listeners share.
#[derive(Debug, Clone)]
pub struct Server {
    /// The surfaces.
    pub surface: Arc<Surface>,
    /// The routes.
    pub router: Router,
    /// Cancelled to stop accepting: running requests end.
    pub stop: CancellationToken,
    /// The open connections.
    pub tasks: TaskTracker,
}

impl Server {
    /// Accept connections until the service stops. Each listener has its own limit of connections.
    pub async fn serve(self, door: Door) {
        let most = self.surface.app.config.http.max_connections;
        let free = Arc::new(Semaphore::new(most));
        // One user cannot take every connection.
        let users = Arc::new(Users { most: most.div_ceil(2), open: Mutex::default() });
        loop {
            let accepted = async {
                let permit = free.clone().acquire_owned().await.expect("never closed");
                door.accept().await.map(|accepted| (permit, accepted))
            };
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((permit, (socket, address))) => self.admit(socket, address, permit, &users),
                Err(error) => {
                    // For example, no free descriptor: retry after a pause.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn admit(
        &self,
        socket: Socket,
        address: Option<SocketAddr>,
        permit: OwnedSemaphorePermit,
        users: &Arc<Users>,
    ) {
        let stream = match (&socket, address) {
            (_, Some(address)) => return self.spawn(socket, Connection::remote(address), (permit, None)),
            (Either::Left(stream), None) => stream,
            (Either::Right(_), None) => return,
        };
        let peer = match hostd::platform::peer(stream.as_fd()) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "the credentials of a connection cannot be read");
                return;
            }
        };
        let Some(place) = users.clone().enter(peer.uid) else {
            tracing::debug!(uid = peer.uid, "a user has too many connections");
            return;
        };
        let connection = Connection::local(self.surface.access.peer(&peer));
        self.spawn(socket, connection, (permit, Some(place)));
    }

    fn spawn(&self, socket: Socket, connection: Connection, place: (OwnedSemaphorePermit, Option<Place>)) {
        let (router, stop) = (self.router.clone(), self.stop.clone());
        let slowest = Duration::from_secs(self.surface.app.config.http.client_timeout_seconds);
        let place = Arc::new(place);
        self.tasks.spawn(async move {
            let held = place.clone();
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let router = router.clone();
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(connection.clone());
                // A connection that became a WebSocket keeps its place until that ends.
                request.extensions_mut().insert(Held(held.clone()));
                async move { router.oneshot(request).await }
            });
            let serving = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(slowest)
                .max_buf_size(BUFFER)
                .max_headers(MAX_HEADERS)
                .serve_connection(TokioIo::new(Unhurried::new(socket, slowest)), service)
                .with_upgrades();
            let mut serving = std::pin::pin!(serving);
            let ended = tokio::select! {
                ended = serving.as_mut() => ended,
                () = stop.cancelled() => {
                    // The running request ends, another one is not begun.
                    serving.as_mut().graceful_shutdown();
                    serving.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
}

/// A place among the connections; the relay keeps it.
#[derive(Debug, Clone)]
pub(crate) struct Held(
    #[allow(dead_code, reason = "it is only held")] Arc<(OwnedSemaphorePermit, Option<Place>)>,
);

#[derive(Debug)]
struct Users {
    most: usize,
    open: Mutex<HashMap<u32, usize>>,
}

#[derive(Debug)]
struct Place {
    users: Arc<Users>,
    uid: u32,
}

impl Users {
    fn enter(self: Arc<Self>, uid: u32) -> Option<Place> {
        {
            let mut open = self.open.lock().expect("no panic while held");
            let count = open.entry(uid).or_default();
            if *count >= self.most {
                return None;
            }
            *count += 1;
        }
        Some(Place { users: self, uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.users.open.lock().expect("no panic while held");
        if let Some(count) = open.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

/// A socket whose peer must read what is written within a time. hyper limits how long a request's head takes, handlers how
/// long its body takes; this limits how long an answer takes.
#[derive(Debug)]
pub(crate) struct Unhurried {
    socket: Socket,
    slowest: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Unhurried {
    fn new(socket: Socket, slowest: Duration) -> Self {
        Self { socket, slowest, waiting: None }
    }

    /// The socket, for a connection that is no longer HTTP.
    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    fn progress<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let slowest = self.slowest;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + slowest)));
        if waiting.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                "the client reads too slowly",
            )));
        }
        Poll::Pending
    }
}

impl AsyncRead for Unhurried {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Unhurried {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, buffer);
        self.progress(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, buffers);
        self.progress(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(context);
        self.progress(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
