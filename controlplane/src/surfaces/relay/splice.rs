//! Copies the bytes of an upgraded connection both ways.

use super::super::Surface;
use super::super::http::serve::Unhurried;
use super::{Life, addresses::Revocations};
use crate::access::{Caller, Identity};
use crate::error::ErrorCode;
use crate::time::{Millis, now};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use prometheus_client::metrics::counter::Counter;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::broadcast::error::RecvError;

/// Size of the buffer of each direction.
const BUFFER: usize = 32 * 1024;
/// How often the database is asked whether the key was revoked by another process.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How long a client may take to end its handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Relay until one side, the session, the key, the address or the service ends.
pub(super) async fn run(surface: Arc<Surface>, client: OnUpgrade, browser: Upgraded, life: Life) {
    let client = match tokio::time::timeout(HANDSHAKE_TIME, client).await {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => return tracing::debug!(%error, "a CDP client ended during the handshake"),
        Err(_) => return tracing::debug!("a CDP client did not end the handshake"),
    };
    let (Ok(client), Ok(browser)) =
        (client.downcast::<TokioIo<Unhurried>>(), browser.downcast::<TokioIo<TcpStream>>())
    else {
        return tracing::error!("a CDP connection has an unknown socket");
    };
    let _counted = surface.relays.count();
    let (mut client_reads, mut client_writes) = tokio::io::split(client.io.into_inner().into_socket());
    let (mut browser_reads, mut browser_writes) = browser.io.into_inner().into_split();
    let to_browser =
        pump(&client.read_buf, &mut client_reads, &mut browser_writes, surface.metrics.relayed("browser"));
    let to_client =
        pump(&browser.read_buf, &mut browser_reads, &mut client_writes, surface.metrics.relayed("client"));
    let Life { caller, session, ends, mut revocations, target } = life;
    let why = tokio::select! {
        // One side has ended: the other has nothing to say any more.
        ended = to_browser => why("client", ended),
        ended = to_client => why("browser", ended),
        ended = target.closed() => {
            surface.relays.session_ended(&session);
            ended.code()
        }
        () = until(ends) => "expired",
        () = revoked(&surface, &caller, &mut revocations) => "revoked",
        () = surface.stop.cancelled() => "stopping",
    };
    tracing::debug!(why, "a CDP connection ended");
}

fn why(side: &'static str, ended: io::Result<()>) -> &'static str {
    if let Err(error) = ended {
        tracing::debug!(side, %error, "a CDP connection failed");
    }
    side
}

async fn pump(
    first: &[u8],
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    count: Counter,
) -> io::Result<()> {
    if !first.is_empty() {
        to.write_all(first).await?;
    }
    count.inc_by(first.len() as u64);
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
        count.inc_by(length as u64);
    }
}

async fn until(at: Option<Millis>) {
    match at {
        None => std::future::pending().await,
        Some(at) => {
            // The clock may be set meanwhile.
            while let Ok(left @ 1..) = u64::try_from(at - now()) {
                tokio::time::sleep(Duration::from_millis(left).min(Duration::from_secs(1))).await;
            }
        }
    }
}

/// Waits until the caller's key is revoked.
async fn revoked(surface: &Surface, caller: &Caller, revocations: &mut Revocations) {
    let Identity::Key(own) = &caller.identity else { return std::future::pending().await };
    loop {
        match tokio::time::timeout(ASK_AGAIN, revocations.recv()).await {
            Ok(Ok(key)) if key == *own => return,
            Ok(Ok(_)) => continue,
            Ok(Err(RecvError::Closed)) => return,
            Ok(Err(RecvError::Lagged(_))) | Err(_) => {}
        }
        // An unreachable database does not end connections.
        if surface.access.standing(caller).await.is_err_and(|error| error.is(ErrorCode::Unauthorized)) {
            return;
        }
    }
}
