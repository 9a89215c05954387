//! Whether the loaded rules are known to be the rendered ones.
//!
//! Every change of the rules starts a new generation. A proof counts only if the generation is still the one in which the
//! proof began, and only while a thread watches for changes: without a watch, nobody would notice that it became wrong.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is known about the rules.
#[derive(Debug, Default)]
pub(super) struct ProofState(Mutex<ProofFields>);

#[derive(Debug, Default)]
struct ProofFields {
    generation: u64,
    /// The generation of the last proof that counted.
    proven: Option<u64>,
    watched: bool,
}

/// The generation in which a proof began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Generation(u64);

impl ProofState {
    /// Call this before the rules are read.
    pub(super) fn begin(&self) -> Generation {
        Generation(self.fields().generation)
    }

    /// The rules were read after `began` and are the rendered ones. It is recorded if nothing changed since and changes are
    /// watched for.
    pub(super) fn complete(&self, began: Generation) {
        let mut fields = self.fields();
        if fields.watched && fields.generation == began.0 {
            fields.proven = Some(began.0);
        }
    }

    /// The rules changed, or may have changed.
    pub(super) fn changed(&self) {
        self.fields().generation += 1;
    }

    /// Whether a proof of the present generation is recorded.
    pub(super) fn is_proven(&self) -> bool {
        let fields = self.fields();
        fields.watched && fields.proven == Some(fields.generation)
    }

    #[cfg(test)]
    pub(super) fn is_watched(&self) -> bool {
        self.fields().watched
    }

    /// A watch receives the kernel's events from now on. Nothing is proven yet; whatever was proven before is not proven
    /// any more. It ends when the result is dropped, also by a panic.
    pub(super) fn watch(self: &Arc<Self>) -> Watched {
        let mut fields = self.fields();
        fields.generation += 1;
        fields.watched = true;
        drop(fields);
        Watched(self.clone())
    }

    fn fields(&self) -> MutexGuard<'_, ProofFields> {
        // The fields are plain values that are valid in every combination.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A living watch.
#[derive(Debug)]
pub(super) struct Watched(Arc<ProofState>);

impl Drop for Watched {
    fn drop(&mut self) {
        let mut fields = self.0.fields();
        fields.generation += 1;
        fields.watched = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_counts_until_the_next_change() {
        let proof = Arc::new(ProofState::default());
        let _watch = proof.watch();
        assert!(!proof.is_proven());
        proof.complete(proof.begin());
        assert!(proof.is_proven());
        proof.changed();
        assert!(!proof.is_proven());
    }

    #[test]
    fn a_change_between_reading_and_recording_makes_the_proof_void() {
        let proof = Arc::new(ProofState::default());
        let _watch = proof.watch();
        let began = proof.begin();
        // The rules are read here, and flushed right after.
        proof.changed();
        proof.complete(began);
        assert!(!proof.is_proven());
    }

    #[test]
    fn no_proof_counts_without_a_living_watch() {
        let proof = Arc::new(ProofState::default());
        proof.complete(proof.begin());
        assert!(!proof.is_proven(), "there was never a watch");
        let watch = proof.watch();
        proof.complete(proof.begin());
        assert!(proof.is_proven());
        let began = proof.begin();
        drop(watch);
        assert!(!proof.is_proven(), "the watch is gone");
        let _next = proof.watch();
        assert!(!proof.is_proven(), "a new watch does not know what happened before it");
        proof.complete(began);
        assert!(!proof.is_proven(), "the proof began under the old watch");
    }

    #[test]
    fn a_watch_that_panics_is_gone() {
        let proof = Arc::new(ProofState::default());
        let watch = proof.watch();
        let thread = std::thread::spawn(move || {
            let _watch = watch;
            panic!("a defect in the watch");
        });
        assert!(thread.join().is_err());
        assert!(!proof.is_watched() && !proof.is_proven());
    }
}
