//! The errors of one removal, each reason once.

use crate::host::{HostError, chain};
use std::error::Error;

/// What went wrong during a removal. Steps that failed for the same reason share an entry.
#[derive(Debug, Default)]
pub(super) struct RemovalErrors(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    steps: Vec<String>,
    text: String,
    /// What the system said: the innermost source.
    reason: String,
}

impl RemovalErrors {
    /// A step failed.
    pub(super) fn add(&mut self, step: &str, error: &HostError) {
        let reason = reason(error);
        match self.0.iter_mut().find(|entry| entry.reason == reason) {
            Some(entry) if entry.steps.iter().any(|known| known == step) => {}
            Some(entry) => entry.steps.push(step.to_owned()),
            None => self.0.push(Entry { steps: vec![step.to_owned()], text: chain(error), reason }),
        }
    }

    /// Something is wrong that no step reported.
    pub(super) fn note(&mut self, text: String) {
        if self.0.iter().all(|entry| entry.text != text) {
            self.0.push(Entry { steps: Vec::new(), reason: text.clone(), text });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One text for each reason: the steps that failed for it, and the first one's error.
    pub(super) fn texts(&self) -> Vec<String> {
        let text = |Entry { steps, text, .. }: &Entry| match steps.is_empty() {
            true => text.clone(),
            false => format!("{}: {text}", steps.join(", ")),
        };
        self.0.iter().map(text).collect()
    }
}

fn reason(error: &HostError) -> String {
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostErrorKind;

    fn busy(object: &str, reason: &str) -> HostError {
        HostError::new(HostErrorKind::Busy, object, "the zfs command failed", "wait")
            .caused_by(std::io::Error::other(reason.to_owned()))
    }

    #[test]
    fn a_reason_is_told_once() {
        let mut errors = RemovalErrors::default();
        assert!(errors.is_empty());
        for step in ["storage", "storage", "force-unmount", "storage"] {
            errors.add(step, &busy("jails/a/root", "it is busy"));
        }
        errors.add("move-aside", &busy("jails/a", "it is busy"));
        errors.add("limits", &busy("rctl", "not root"));
        for _ in 0..2 {
            errors.note("the host still shows: storage".to_owned());
        }
        assert_eq!(
            errors.texts(),
            [
                "storage, force-unmount, move-aside: jails/a/root: the zfs command failed: it is busy",
                "limits: rctl: the zfs command failed: not root",
                "the host still shows: storage",
            ]
        );
    }
}
