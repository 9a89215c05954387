//! Tells a service manager how we are (`NOTIFY_SOCKET`, `WATCHDOG_USEC`); silent without one.

use sd_notify::NotifyState;
use std::time::Duration;

/// Serving from now on.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Stopping from now on.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("waiting for running operations")]);
}

/// Reloading until the next [`ready`].
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "no clock for the reload notification"),
    }
}

/// Tells the watchdog that the runtime still turns, twice as often as asked for. Never ends; ends at once
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
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
