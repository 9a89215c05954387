//! Checks PF between inspections: whether it is enabled, whether the main ruleset uses the anchor, and whether the anchor's
//! rules are the rendered ones.
//!
//! PF has no events, and its ioctl interface differs between releases. So one `pfctl` runs at a time, in turn for each of
//! the three facts. A wrong fact takes the bridge down at once and then wakes the lifecycle, which inspects everything. While
//! the bridge is down, they are rarer and notice when the rules are back.

use super::FreebsdState;
use pf::pfctl::{self, Failure, Finding};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// What is known between inspections.
#[derive(Debug)]
pub(super) struct RuleWatch {
    /// How often each fact is checked; `None` if only inspections check.
    interval: Option<Duration>,
    started: AtomicBool,
    /// The bridge was taken down and is not up again.
    closed: AtomicBool,
    changed: Notify,
}

#[derive(Debug, Clone, Copy)]
enum Fact {
    Enabled,
    AnchorCalled,
    AnchorRules,
}

/// How often hostd checks whether the rules are back, while the bridge is down.
const RECHECK: Duration = Duration::from_secs(3);

const FACTS: [Fact; 3] = [Fact::Enabled, Fact::AnchorCalled, Fact::AnchorRules];

impl RuleWatch {
    pub(super) fn new(interval_ms: u64) -> RuleWatch {
        let interval = (interval_ms > 0).then(|| Duration::from_millis(interval_ms));
        RuleWatch {
            interval,
            started: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    pub(super) fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

impl FreebsdState {
    /// Ends when a check has found the rules wrong. The first call starts the checks.
    pub(super) async fn rules_changed(self: &Arc<Self>) {
        let watch = &self.egress.watch;
        if let Some(interval) = watch.interval
            && !watch.started.swap(true, Ordering::SeqCst)
        {
            tokio::spawn(check_in_turn(Arc::downgrade(self), interval));
        }
        watch.changed.notified().await;
    }

    async fn check(&self, fact: Fact) {
        let wrong = match self.find(fact).await {
            Ok(None) => return,
            Ok(Some(finding)) => finding,
            Err(error) => {
                tracing::warn!(
                    ?fact,
                    error = crate::host::chain(&error),
                    "PF could not be checked; the whole host is inspected"
                );
                self.egress.watch.changed.notify_one();
                return;
            }
        };
        // A repair that runs now has the bridge down already.
        if self.egress.watch.is_closed() {
            return;
        }
        let down = self.close_bridge().await;
        tracing::error!(finding = %wrong, ?down, "the clones' firewall was changed; their bridge is down until it is back");
        self.forget();
        self.egress.watch.changed.notify_one();
    }

    /// Whether all facts are as they should be. Only an inspection proves the rest.
    async fn is_restored(&self) -> bool {
        for fact in FACTS {
            if !matches!(self.find(fact).await, Ok(None)) {
                return false;
            }
        }
        true
    }

    async fn find(&self, fact: Fact) -> crate::host::HostResult<Option<Finding>> {
        let policy = &self.egress.policy;
        let arguments = match fact {
            Fact::Enabled => pfctl::info(),
            Fact::AnchorCalled => pfctl::main_rules(),
            Fact::AnchorRules => pfctl::anchor_rules(policy),
        };
        let outcome = self.pfctl(arguments).run().await?;
        let rules = match pfctl::read_rules(outcome.text()?, &outcome.stderr) {
            Ok(rules) if outcome.success() => rules,
            Err(Failure::NoDevice) => return Ok(Some(Finding::Disabled)),
            // A missing anchor has no rules.
            Err(Failure::NoAnchor) => Vec::new(),
            _ => return Err(self.pfctl_failed(&outcome)),
        };
        Ok(match fact {
            Fact::Enabled => {
                let enabled =
                    pfctl::read_enabled(outcome.text()?).map_err(|error| self.pf_unreadable(error))?;
                (!enabled).then_some(Finding::Disabled)
            }
            Fact::AnchorCalled => pfctl::prove_call(policy, &rules),
            Fact::AnchorRules => pfctl::prove_anchor(policy, &rules),
        })
    }
}

async fn check_in_turn(state: Weak<FreebsdState>, interval: Duration) {
    let pause = interval / FACTS.len() as u32;
    for fact in FACTS.into_iter().cycle() {
        tokio::time::sleep(pause).await;
        let Some(state) = state.upgrade() else { return };
        if !state.egress.watch.is_closed() {
            state.check(fact).await;
            continue;
        }
        if state.is_restored().await {
            state.egress.watch.changed.notify_one();
        }
        drop(state);
        tokio::time::sleep(RECHECK).await;
    }
}
