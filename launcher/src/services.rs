//! The services of a running browser: the egress proxy and the port relay, on one thread.
//!
//! ```text
//!            outside                          │ the browser's network namespace
//!  network ◀── egress proxy (this thread) ◀───┼── 127.0.0.1:3128 ◀── browser
//!  client ──▶ 127.0.0.1:P ──▶ relay ──────────┼─▶ 127.0.0.1:P (debugging port)
//! ```
//!
//! A socket stays in the network namespace in which it was created. So the sandbox passes out the proxy's listening
//! socket and creates connecting sockets inside, and no relay process has to run inside.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use sandbox::Sandbox;
use tokio::sync::oneshot;

use crate::egress::{self, EgressRules, HostNetwork, Proxy};

/// The listening socket outside and its target port inside.
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
        let thread = std::thread::Builder::new().name("services".into()).stack_size(256 * 1024);
        thread.spawn(move || {
            runtime.block_on(async {
                if let Some((listener, rules)) = egress {
                    match into_tokio(listener) {
                        Ok(listener) => drop(tokio::spawn(egress::serve(
                            listener,
                            Arc::new(Proxy { rules, network: HostNetwork }),
                        ))),
                        Err(error) => crate::say(&format!("the egress proxy cannot start: {error}")),
                    }
                }
                if let Some(relay) = relay {
                    match into_tokio(relay.listener) {
                        Ok(listener) => drop(tokio::spawn(relay_connections(listener, relay.port, sandbox))),
                        Err(error) => crate::say(&format!("the port relay cannot start: {error}")),
                    }
                }
                // Dropping the sender stops the services; the receiver then returns an error.
                let _ = stopped.await;
            });
            // Does not wait for name lookups that are still running.
            runtime.shutdown_background();
        })?;
        Ok(Services { _stop: stop })
    }
}

fn into_tokio(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

async fn relay_connections(listener: tokio::net::TcpListener, port: u16, sandbox: Arc<Mutex<Sandbox>>) {
    loop {
        let Ok((mut client, peer)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            continue;
        };
        if !is_permitted(&client, peer) {
            continue;
        }
        let sandbox = Arc::clone(&sandbox);
        tokio::spawn(async move {
            let inside = tokio::task::spawn_blocking(move || {
                let inside = sandbox.lock().map_err(|_| io::ErrorKind::Other)?.connect_inside(port)?;
                inside.set_nonblocking(true)?;
                Ok::<_, io::Error>(inside)
            });
            let Ok(Ok(inside)) = inside.await else { return };
            let Ok(mut browser) = tokio::net::TcpStream::from_std(inside) else {
                return;
            };
            let _ = client.set_nodelay(true);
            let _ = browser.set_nodelay(true);
            // An error ends the connection, and both peers see that.
            let _ = tokio::io::copy_bidirectional(&mut client, &mut browser).await;
        });
    }
}

/// Only root and the user who started the browser may connect.
fn is_permitted(client: &tokio::net::TcpStream, peer: std::net::SocketAddr) -> bool {
    let owner = client.local_addr().ok().and_then(|own| crate::peer::uid(peer, own));
    owner.is_some_and(|uid| uid == 0 || uid == nix::unistd::geteuid().as_raw())
}
