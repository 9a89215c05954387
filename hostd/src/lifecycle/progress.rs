//! Progress: who hears about the steps of an operation, and how long each step took.

use crate::api::{CloneName, ProgressState, StageTiming};
use crate::timing;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::Instrument;

/// Where progress goes: clone, step, state, time since the step began.
pub type ProgressSink = Arc<dyn Fn(&CloneName, &str, ProgressState, Duration) + Send + Sync>;

/// Everybody who listens to one operation; callers that join later are added.
#[derive(Clone, Default)]
pub(super) struct Listeners(Arc<Mutex<Vec<ProgressSink>>>);

impl Listeners {
    pub(super) fn add(&self, sink: Option<ProgressSink>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(sink);
    }

    fn tell(&self, name: &CloneName, step: &str, state: ProgressState, since: Duration) {
        for sink in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            sink(name, step, state, since);
        }
    }
}

/// The steps of one operation on one clone.
pub(super) struct Progress {
    name: CloneName,
    listeners: Listeners,
    began: Instant,
    /// In the order in which they began; some are under way at the same time.
    stages: Mutex<Vec<StageTiming>>,
}

impl Progress {
    pub(super) fn new(name: &CloneName, listeners: &Listeners) -> Progress {
        Progress {
            name: name.clone(),
            listeners: listeners.clone(),
            began: Instant::now(),
            stages: Mutex::default(),
        }
    }

    /// Run one step, report it to all listeners and measure it.
    pub(super) async fn step<T, E>(
        &self,
        step: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let place = {
            let mut all = self.all();
            all.push(StageTiming { stage: step.to_owned(), seconds: 0.0 });
            all.len() - 1
        };
        self.listeners.tell(&self.name, step, ProgressState::Started, Duration::ZERO);
        let result = work.instrument(timing::part(step)).await;
        let took = began.elapsed();
        let state = if result.is_ok() { ProgressState::Done } else { ProgressState::Failed };
        self.listeners.tell(&self.name, step, state, took);
        self.all()[place].seconds = took.as_secs_f64();
        result
    }

    fn all(&self) -> MutexGuard<'_, Vec<StageTiming>> {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All stages so far and their total.
    pub(super) fn stages(&self) -> Vec<StageTiming> {
        let total = StageTiming { stage: "total".into(), seconds: self.began.elapsed().as_secs_f64() };
        self.all().iter().cloned().chain([total]).collect()
    }
}
