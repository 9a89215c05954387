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

use crate::egress::{self, HostNetwork, Proxy};
use crate::messages::Rewriter;
use crate::relay::Relay;

/// Running services; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct Services {
    runtime: tokio::runtime::Handle,
    _stop: oneshot::Sender<()>,
}

impl Services {
    pub(crate) fn start(egress: Option<(TcpListener, Proxy<HostNetwork>)>) -> io::Result<Services> {
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(16)
            .build()?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("services".into()).stack_size(256 * 1024);
        thread.spawn(move || {
            runtime.block_on(async {
                if let Some((listener, proxy)) = egress {
                    match into_tokio(listener) {
                        Ok(listener) => drop(tokio::spawn(egress::serve(listener, Arc::new(proxy)))),
                        Err(error) => crate::say(&format!("the egress proxy cannot start: {error}")),
                    }
                }
                // Dropping the sender stops the services; the receiver then returns an error.
                let _ = stopped.await;
            });
            // Does not wait for name lookups that are still running.
            runtime.shutdown_background();
        })?;
        Ok(Services { runtime: handle, _stop: stop })
    }

    /// Lets port clients connect to the browser.
    pub(crate) fn relay(
        &self,
        relay: Relay,
        sandbox: Arc<Mutex<Sandbox>>,
        rewriter: Option<Arc<Rewriter>>,
    ) -> io::Result<()> {
        let listening = relay.listen()?;
        self.runtime.spawn(async move {
            if let Err(error) = listening.accept(sandbox, rewriter).await {
                crate::say(&format!("the port relay cannot start: {error}"));
            }
        });
        Ok(())
    }
}

fn into_tokio(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}
