//! What the launcher does for a running browser: the way out (egress proxy) and the way in (port relay), both on one
//! small thread.
//!
//! ```text
//!            outside                          │ the browser's network namespace
//!  network ◀── egress proxy (this thread) ◀───┼── 127.0.0.1:3128 ◀── browser
//!  client ──▶ 127.0.0.1:P ──▶ relay ──────────┼─▶ 127.0.0.1:P (debugging port)
//! ```
//!
//! A socket belongs to the namespace in which it was made, whoever holds it. So the sandbox hands the proxy's listening
//! socket out and makes connecting sockets inside, and nothing has to run in there to carry bytes.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use sandbox::Sandbox;
use tokio::sync::oneshot;

use crate::egress::{self, EgressRules, HostNetwork, Proxy};

/// The listening socket outside, and the port inside that it leads to.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) listener: TcpListener,
    pub(crate) port: u16,
}

/// Running services; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct Services {
    _stop: oneshot::Sender<()>,
}

impl Services {
    pub(crate) fn start(
        egress: Option<(TcpListener, EgressRules)>,
        relay: Option<Relay>,
        sandbox: Arc<Mutex<Sandbox>>,
    ) -> io::Result<Services> {
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(16)
            .build()?;
        let thread = std::thread::Builder::new()
            .name("services".into())
            .stack_size(256 * 1024);
        thread.spawn(move || {
            runtime.block_on(async {
                if let Some((listener, rules)) = egress {
                    match into_tokio(listener) {
                        Ok(listener) => drop(tokio::spawn(egress::serve(
                            listener,
                            Arc::new(Proxy {
                                rules,
                                network: HostNetwork,
                            }),
                        ))),
                        Err(error) => {
                            eprintln!("browser-launcher: the egress proxy cannot start: {error}")
                        }
                    }
                }
                if let Some(relay) = relay {
                    match into_tokio(relay.listener) {
                        Ok(listener) => drop(tokio::spawn(carry(listener, relay.port, sandbox))),
                        Err(error) => {
                            eprintln!("browser-launcher: the port relay cannot start: {error}")
                        }
                    }
                }
                // Ends with an error when the sender is dropped, which is how it is meant to end.
                let _ = stopped.await;
            });
            // A name that is still being resolved must not hold up the end.
            runtime.shutdown_background();
        })?;
        Ok(Services { _stop: stop })
    }
}

fn into_tokio(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

async fn carry(listener: tokio::net::TcpListener, port: u16, sandbox: Arc<Mutex<Sandbox>>) {
    loop {
        let Ok((mut client, peer)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            continue;
        };
        if !is_ours(&client, peer) {
            continue;
        }
        let sandbox = Arc::clone(&sandbox);
        tokio::spawn(async move {
            let inside = tokio::task::spawn_blocking(move || {
                let inside = sandbox
                    .lock()
                    .map_err(|_| io::ErrorKind::Other)?
                    .connect_inside(port)?;
                inside.set_nonblocking(true)?;
                Ok::<_, io::Error>(inside)
            });
            let Ok(Ok(inside)) = inside.await else { return };
            let Ok(mut browser) = tokio::net::TcpStream::from_std(inside) else {
                return;
            };
            let _ = client.set_nodelay(true);
            let _ = browser.set_nodelay(true);
            // The end of either side is the end of the connection; both see it themselves.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut browser).await;
        });
    }
}

/// Only the user who started the browser, and root, may talk to it.
fn is_ours(client: &tokio::net::TcpStream, peer: std::net::SocketAddr) -> bool {
    let owner = client
        .local_addr()
        .ok()
        .and_then(|own| crate::peer::uid(peer, own));
    owner.is_some_and(|uid| uid == 0 || uid == nix::unistd::geteuid().as_raw())
}
