//! What can be asked to go wrong: by call, by slot, for a number of times.

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

            /// Whether it changes the host; the others only look.
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

/// On which side of the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// It has not happened.
    Before,
    /// It has happened.
    After,
}

/// How a call goes wrong.
///
/// `Lie`, `Half` and `Twice` are about effects; a call that only looks stays honest under them,
/// because a host whose every look lies can be managed by nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Not done, and says so.
    FailBefore(HostErrorKind),
    /// Done, and says that it failed.
    FailAfter(HostErrorKind),
    /// Says that it is done and did nothing, as tools with exit status 0 do.
    Lie,
    /// Not done, never answers.
    Hang,
    /// Done, never answers.
    HangAfter,
    /// The first of the effect's two transactions is done, then it fails.
    Half,
    /// The effect is run twice in a row; both must succeed.
    Twice,
    /// Done, but so much later.
    Delay(Duration),
    /// Done so much later by a task of its own, also when the call was given up before.
    Late(Duration),
    /// The process dies.
    Crash(When),
    /// On [`HostCall::StopJail`]: the jail stays dying for so many looks.
    DyingPolls(u32),
}

/// A fault that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The call it strikes.
    pub call: HostCall,
    /// Only for this slot; `None` strikes any.
    pub slot: Option<Slot>,
    /// How often it strikes before it is used up.
    pub times: u32,
    /// What happens.
    pub kind: FaultKind,
}

impl Fault {
    /// Strike the next such call, whichever slot it is for.
    pub fn once(call: HostCall, kind: FaultKind) -> Fault {
        Fault { call, slot: None, times: 1, kind }
    }
}

/// What a panic carries when it stands for the death of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedCrash;

/// Keep simulated crashes out of the test's output; every other panic is reported as before.
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

/// The faults that wait, the number of calls so far, and the crash that is due at one of them.
#[derive(Debug, Default)]
pub(super) struct FaultBook {
    faults: Vec<Fault>,
    calls: u64,
    crash: Option<(u64, When)>,
}

/// What shall happen to one call.
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

    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    pub(super) fn crash_at_call(&mut self, n: u64, when: When) {
        self.crash = Some((self.calls + n, when));
    }

    /// Whether this call is to be done late, and by how much.
    pub(super) fn take_late(&mut self, call: HostCall, slot: Slot) -> Option<Duration> {
        let late = |fault: &Fault| match fault.kind {
            FaultKind::Late(time) if fault.call == call && fault.slot.is_none_or(|only| only == slot) => {
                Some(time)
            }
            _ => None,
        };
        let fault = self.faults.iter_mut().find(|fault| late(fault).is_some())?;
        fault.times -= 1;
        let time = late(fault);
        self.faults.retain(|fault| fault.times > 0);
        time
    }

    /// Count a call and say what shall happen to it. The fault asked for first strikes first.
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

/// The error of a fault that was asked for.
pub(super) fn injected(call: HostCall, slot: Option<Slot>, kind: HostErrorKind) -> HostError {
    let object = match slot {
        Some(slot) => format!("{call} of slot {slot}"),
        None => call.to_string(),
    };
    HostError::new(kind, object, "failed as the test asked for", "none: the fake host was asked to fail")
}
