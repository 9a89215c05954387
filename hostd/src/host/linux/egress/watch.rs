//! The thread that follows the kernel's events about the rules, and restarts after an error.

use super::proof::{ProofState, Watched};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

/// The first and the longest pause before another subscription is tried.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What the thread does after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for the next event.
    Continue,
    /// Nobody needs the watch any more.
    Stop,
}

/// One subscription to the kernel's events.
pub(super) trait Events {
    /// Why it failed.
    type Error: Display;

    /// Wait for the next event and handle it.
    fn next(&mut self) -> Result<Next, Self::Error>;
}

/// Follow events until nobody needs them. After an error the subscription is made again, with growing pauses. Until then
/// nothing counts as proven. `resubscribed` is called after each new subscription, because events before it were missed.
pub(super) fn follow<E: Events>(
    proof: &Arc<ProofState>,
    first: (Watched, E),
    mut subscribe: impl FnMut() -> Option<Result<E, E::Error>>,
    mut resubscribed: impl FnMut(),
    mut sleep: impl FnMut(Duration),
) {
    let mut subscription = Some(first);
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some((_watched, mut events)) = subscription.take() {
            loop {
                match events.next() {
                    Ok(Next::Continue) => pause = FIRST_PAUSE,
                    Ok(Next::Stop) => return,
                    Err(error) => {
                        tracing::error!(%error, "the kernel's events about the firewall cannot be read; subscribing again");
                        break;
                    }
                }
            }
        }
        sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        match subscribe() {
            None => return,
            Some(Ok(events)) => {
                subscription = Some((proof.watch(), events));
                resubscribed();
            }
            Some(Err(error)) => {
                tracing::error!(%error, "no subscription to the kernel's events about the firewall")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    struct Scripted(VecDeque<Result<Next, &'static str>>);

    impl Events for Scripted {
        type Error = &'static str;

        fn next(&mut self) -> Result<Next, &'static str> {
            self.0.pop_front().unwrap_or(Ok(Next::Stop))
        }
    }

    #[test]
    fn the_watch_restarts_with_growing_pauses_and_nothing_is_proven_meanwhile() {
        let proof = Arc::new(ProofState::default());
        let first = Scripted([Ok(Next::Continue), Err("lost")].into());
        let mut attempts = VecDeque::from([
            Err("no memory"),
            Err("no memory"),
            Ok(Scripted([Err("lost again")].into())),
            Ok(Scripted([].into())),
        ]);
        let (mut pauses, mut resubscriptions) = (Vec::new(), 0);
        let watched = proof.watch();
        proof.complete(proof.begin());
        assert!(proof.is_proven());
        follow(
            &proof,
            (watched, first),
            || attempts.pop_front(),
            || {
                resubscriptions += 1;
                proof.complete(proof.begin());
                assert!(proof.is_proven());
            },
            |pause| {
                assert!(!proof.is_proven(), "nobody watches during a pause");
                pauses.push(pause);
            },
        );
        assert_eq!(resubscriptions, 2);
        assert_eq!(pauses, [1, 2, 4, 8].map(|factor| FIRST_PAUSE * factor));
        assert!(!proof.is_watched());
    }
}
