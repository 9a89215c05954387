//! Reports the daemon's state to a service manager (`NOTIFY_SOCKET`, `WATCHDOG_USEC`), if there is one.

use sd_notify::NotifyState;
use std::time::Duration;

/// The daemon serves requests.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The daemon is stopping.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("waiting for running operations")]);
}

/// The daemon reloads until the next [`ready`].
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot read the clock for the reload notification"),
    }
}

/// Send a heartbeat to the watchdog at half its period, for as long as the runtime makes progress. Returns at once
/// without a watchdog.
pub async fn watchdog() {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    let mut tick = tokio::time::interval((period / 2).max(Duration::from_millis(10)));
    loop {
        tick.tick().await;
        send(&[NotifyState::Watchdog]);
    }
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
