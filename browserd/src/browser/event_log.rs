//! What happened in the browser, for readers that come later. It outlives the browser: the numbers continue after a crash.

use super::page_log::{Numbered, Ring, now_ms};
use crate::api::types::{BrowserEvent, EventKind, EventList, Events};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;
use tokio::time::Instant;

/// Events kept.
const MAX_EVENTS: usize = 1000;
/// Events returned by one call.
const DEFAULT_MAX: u32 = 100;

/// What outlives a browser.
#[derive(Debug)]
pub(crate) struct Continuity {
    /// The number of the browser's profile; see `Health`.
    pub(crate) generation: AtomicU64,
    pub(crate) renderer_crashes: AtomicU64,
    /// Tabs opened so far. Their ids are not used again.
    pub(crate) tabs_opened: AtomicU64,
    events: Mutex<Ring<BrowserEvent>>,
    changed: watch::Sender<u64>,
}

impl Numbered for BrowserEvent {
    fn seq(&self) -> u64 {
        self.seq
    }
}

impl Default for Continuity {
    fn default() -> Self {
        Self {
            generation: AtomicU64::new(0),
            renderer_crashes: AtomicU64::new(0),
            tabs_opened: AtomicU64::new(0),
            events: Mutex::new(Ring::new(MAX_EVENTS)),
            changed: watch::Sender::new(0),
        }
    }
}

/// An event of this kind without a number.
pub(crate) fn event(kind: EventKind) -> BrowserEvent {
    BrowserEvent {
        seq: 0,
        at: now_ms(),
        kind,
        tab: None,
        opener: None,
        url: None,
        guid: None,
        suggested_filename: None,
        bytes: None,
        dialog: None,
        reason: None,
    }
}

impl Continuity {
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, mut event: BrowserEvent) {
        let mut events = self.events.lock().expect("no panic while held");
        // A page may move within its document any number of times. Only the last of its moves is kept.
        if event.kind == EventKind::TabNavigated {
            events.pop_if(|last| last.kind == event.kind && last.tab == event.tab);
        }
        event.seq = events.next();
        let seq = event.seq;
        events.push(event);
        drop(events);
        self.changed.send_replace(seq);
    }

    /// The events that the request asks for. Waits for one until `until` if the request says so.
    pub(crate) async fn read(&self, request: &Events, until: Instant) -> EventList {
        let since = request.since.unwrap_or(0);
        if let Some(wait_ms) = request.wait_ms {
            let until = until.min(Instant::now() + std::time::Duration::from_millis(wait_ms));
            let mut changed = self.changed.subscribe();
            let _ = tokio::time::timeout_at(until, changed.wait_for(|last| *last > since)).await;
        }
        let events = self.events.lock().expect("no panic while held");
        let max = request.max.unwrap_or(DEFAULT_MAX) as usize;
        let found: Vec<BrowserEvent> = events.after(since).take(max).cloned().collect();
        let last = found.last().map_or(since.min(events.last()), |event| event.seq);
        EventList { missed: events.missed(since), events: found, last, browser_generation: self.generation() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn events_are_numbered_read_once_and_waited_for() {
        let log = Continuity::default();
        let tab = |kind, tab: &str| BrowserEvent { tab: Some(tab.into()), ..event(kind) };
        log.add(tab(EventKind::TabOpened, "t1"));
        for _ in 0..2000 {
            log.add(tab(EventKind::TabNavigated, "t1"));
        }
        log.add(tab(EventKind::DownloadStarted, "t1"));
        let until = Instant::now() + Duration::from_secs(100);
        let all = log.read(&Events::default(), until).await;
        let kinds: Vec<_> = all.events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::TabOpened, EventKind::TabNavigated, EventKind::DownloadStarted]);
        assert_eq!((all.last, all.missed), (2002, 0));

        let began = Instant::now();
        let wait = Events { since: Some(all.last), wait_ms: Some(500), ..Events::default() };
        assert_eq!(log.read(&wait, until).await.events, []);
        assert_eq!(began.elapsed().as_millis() / 10, 50);
        let (waited, ()) = tokio::join!(log.read(&wait, until), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            log.add(tab(EventKind::TabClosed, "t1"));
        });
        assert_eq!(waited.events[0].kind, EventKind::TabClosed);

        for _ in 0..MAX_EVENTS {
            log.add(event(EventKind::Dialog));
        }
        let late = log.read(&Events { since: Some(all.last), ..Events::default() }, until).await;
        assert_eq!((late.missed, late.events.len()), (1, DEFAULT_MAX as usize));
    }
}
