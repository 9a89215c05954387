//! Faults that a test injects: by call, by slot, for a number of times.

use crate::host::{HostError, HostErrorKind};
use crate::slot::Slot;
use std::fmt;
use std::time::Duration;

macro_rules! host_calls {
    ($($name:ident $method:literal $effect:literal;)*) => {
        /// The calls of the host trait, one for each method that can fail or take time.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum HostCall { $($name,)* }

        impl HostCall {
            /// Every call.
            pub const ALL: &'static [HostCall] = &[$(HostCall::$name,)*];

            /// The method's name.
            pub fn name(self) -> &'static str {
                match self { $(HostCall::$name => $method,)* }
            }

            /// Whether it changes the host.
            pub fn is_effect(self) -> bool {
                match self { $(HostCall::$name => $effect,)* }
            }
        }
    };
}

host_calls! {
    Checks "checks" false;
    CheckTemplate "check_template" false;
    TemplateVersion "template_version" false;
    Inventory "inventory" false;
    Look "look" false;
    EgressHealth "egress_health" false;
    ServiceAnswers "service_answers" false;
    RepairEgress "repair_egress" true;
    EnsureStorage "ensure_storage" true;
    EnsureLimits "ensure_limits" true;
    EnsureNetwork "ensure_network" true;
    EnsureEgress "ensure_egress" true;
    EnsureJail "ensure_jail" true;
    EnsureService "ensure_service" true;
    SetDeadline "set_deadline" true;
    CutEgress "cut_egress" true;
    EndProcesses "end_processes" true;
    Freeze "freeze" true;
    Thaw "thaw" true;
    Unmount "unmount" true;
    StopJail "stop_jail" true;
    RemoveNetwork "remove_network" true;
    RemoveLimits "remove_limits" true;
    DestroyStorage "destroy_storage" true;
    MoveStorageAside "move_storage_aside" true;
    DestroyAside "destroy_aside" true;
}

impl fmt::Display for HostCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Before or after the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The effect has not happened.
    Before,
    /// The effect has happened.
    After,
}

/// How a call fails.
///
/// `Lie`, `Half`, `Twice` and `Late` apply to effects only. Inspections are always correct, because no program can manage a host
/// whose inspections are wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Not done; returns an error.
    FailBefore(HostErrorKind),
    /// Done; returns an error.
    FailAfter(HostErrorKind),
    /// Not done; returns success.
    Lie,
    /// Not done; never returns.
    Hang,
    /// Done; never returns.
    HangAfter,
    /// The first of the effect's two transactions is done, then it fails.
    Half,
    /// The effect is run twice in a row; both must succeed.
    Twice,
    /// Done after this delay.
    Delay(Duration),
    /// Done at once; returns after this delay. What it returns may be outdated by then.
    AnswerLate(Duration),
    /// Done after this delay by a task of its own, also if the caller gives up before.
    Late(Duration),
    /// The process dies.
    Crash(When),
    /// On [`HostCall::StopJail`]: the jail stays dying for this many inspections.
    DyingPolls(u32),
}

/// An injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The call that fails.
    pub call: HostCall,
    /// Only for this slot; `None` is any.
    pub slot: Option<Slot>,
    /// The number of calls that fail.
    pub times: u32,
    /// What happens.
    pub kind: FaultKind,
}

impl Fault {
    /// Fail the next such call, for any slot.
    pub fn once(call: HostCall, kind: FaultKind) -> Fault {
        Fault { call, slot: None, times: 1, kind }
    }
}

/// The payload of a panic that simulates the death of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedCrash;

/// Suppress the output of simulated crashes. Other panics are reported as usual.
pub fn quiet_crashes() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<SimulatedCrash>() {
                usual(info);
            }
        }));
    });
}

/// The injected faults, the number of calls so far, and the call at which a crash is due.
#[derive(Debug, Default)]
pub(super) struct FaultBook {
    faults: Vec<Fault>,
    calls: u64,
    crash: Option<(u64, When)>,
}

/// What happens to one call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PlannedFault {
    pub(super) fault: Option<FaultKind>,
    pub(super) crash: Option<When>,
}

impl FaultBook {
    pub(super) fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.faults.clear();
        self.crash = None;
    }

    pub(super) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    pub(super) fn crash_at_call(&mut self, n: u64, when: When) {
        self.crash = Some((self.calls + n, when));
    }

    /// Count a call and take its fault. Faults apply in the order of their injection.
    pub(super) fn strike(&mut self, call: HostCall, slot: Option<Slot>) -> PlannedFault {
        self.calls += 1;
        let crash = self.crash.take_if(|(at, _)| *at == self.calls).map(|(_, when)| when);
        let strikes = |fault: &Fault| {
            fault.call == call && fault.times > 0 && (fault.slot.is_none() || fault.slot == slot)
        };
        let fault = self.faults.iter_mut().find(|fault| strikes(fault)).map(|fault| {
            fault.times -= 1;
            fault.kind
        });
        self.faults.retain(|fault| fault.times > 0);
        PlannedFault { fault, crash }
    }
}

/// The error of an injected fault.
pub(super) fn injected(call: HostCall, slot: Option<Slot>, kind: HostErrorKind) -> HostError {
    let object = match slot {
        Some(slot) => format!("{call} of slot {slot}"),
        None => call.to_string(),
    };
    HostError::new(kind, object, "an injected fault", "none: a test injected this fault")
}
