//! The host trait on the model, with latency, faults and crashes.

use super::effects::service;
use super::faults::{FaultKind, HostCall, PlannedFault, SimulatedCrash, When, injected};
use super::world::World;
use super::{FakeHost, lock};
use crate::api::{CloneId, EgressHealth, Finding, Limits, Severity, SnapshotName};
use crate::clock::Moment;
use crate::host::{
    CloneSpec, Host, HostError, HostErrorKind, HostResult, Inventory, ObservedClone, Part, ServiceEndpoint,
    Unmount, chain,
};
use crate::slot::{Slot, SlotNames};
use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::panic::panic_any;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// One of the two transactions of an effect.
type Transaction<S, T> = fn(&mut World, &S) -> HostResult<T>;

/// A call in progress with its planned fault.
struct Call {
    call: HostCall,
    slot: Option<Slot>,
    planned: PlannedFault,
}

impl FakeHost {
    fn now(&self) -> Moment {
        lock(&self.state.clock).now()
    }

    /// Wait for half of the latency. The call of a dead process never continues.
    async fn wait(&self) {
        let half = *lock(&self.state.latency) / 2;
        if !half.is_zero() {
            tokio::time::sleep(half).await;
        }
        if self.process != self.state.process.load(Ordering::SeqCst) {
            pending::<()>().await;
        }
    }

    async fn enter(&self, call: HostCall, slot: Option<Slot>) -> HostResult<Call> {
        self.wait().await;
        let planned = lock(&self.state.faults).strike(call, slot);
        if planned.crash == Some(When::Before) {
            panic_any(SimulatedCrash);
        }
        match planned.fault {
            Some(FaultKind::FailBefore(kind)) => return Err(injected(call, slot, kind)),
            Some(FaultKind::Hang) => pending().await,
            Some(FaultKind::Delay(time)) => tokio::time::sleep(time).await,
            Some(FaultKind::Crash(When::Before)) => panic_any(SimulatedCrash),
            _ => {}
        }
        Ok(Call { call, slot, planned })
    }

    async fn leave<T>(&self, entered: Call, result: HostResult<T>) -> HostResult<T> {
        let Call { call, slot, planned } = entered;
        if planned.crash == Some(When::After) {
            panic_any(SimulatedCrash);
        }
        match planned.fault {
            Some(FaultKind::FailAfter(kind)) => result.and(Err(injected(call, slot, kind))),
            Some(FaultKind::HangAfter) => pending().await,
            Some(FaultKind::AnswerLate(time)) => {
                tokio::time::sleep(time).await;
                result
            }
            Some(FaultKind::Crash(When::After)) => panic_any(SimulatedCrash),
            _ => result,
        }
    }

    /// An effect of two transactions on a subject. `lie` is the result of a tool that reports success and does nothing.
    async fn effect<S, T>(
        &self,
        call: HostCall,
        slot: Option<Slot>,
        subject: S,
        begin: Transaction<S, ()>,
        complete: Transaction<S, T>,
        lie: T,
    ) -> HostResult<T>
    where
        S: Send + Sync + 'static,
        T: Send + 'static,
    {
        let entered = self.enter(call, slot).await?;
        if let (Some(FaultKind::DyingPolls(polls)), HostCall::StopJail, Some(slot)) =
            (entered.planned.fault, call, slot)
        {
            self.make_dying(slot, polls);
        }
        let result = match entered.planned.fault {
            Some(FaultKind::Lie) => Ok(lie),
            Some(FaultKind::Half) => self.transact(|world| begin(world, &subject)).and(Err(injected(
                call,
                slot,
                HostErrorKind::Failed,
            ))),
            Some(FaultKind::Twice) => match self.transactions(&subject, begin, complete).await {
                Ok(_) => self.transactions(&subject, begin, complete).await,
                Err(error) => Err(error),
            },
            Some(FaultKind::Late(time)) => {
                let host = self.clone();
                let work = async move {
                    host.wait().await;
                    host.transactions(&subject, begin, complete).await
                };
                self.finish_late(time, work).await
            }
            _ => self.transactions(&subject, begin, complete).await,
        };
        self.leave(entered, result).await
    }

    /// Do something later, in a task of its own that outlives this future.
    async fn finish_late<T: Send + 'static>(
        &self,
        time: Duration,
        work: impl Future<Output = HostResult<T>> + Send + 'static,
    ) -> HostResult<T> {
        self.late.send_modify(|late| *late += 1);
        let late = self.late.clone();
        let task = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let result = work.await;
            late.send_modify(|late| *late -= 1);
            result
        });
        task.await.expect("the late call does not panic")
    }

    async fn transactions<S, T>(
        &self,
        subject: &S,
        begin: Transaction<S, ()>,
        complete: Transaction<S, T>,
    ) -> HostResult<T> {
        self.transact(|world| begin(world, subject))?;
        self.wait().await;
        self.transact(|world| complete(world, subject))
    }

    fn transact<T>(&self, change: impl FnOnce(&mut World) -> HostResult<T>) -> HostResult<T> {
        lock(&self.state.store).change(change).map_err(store_failed)?
    }

    /// An inspection. It changes nothing but the polls of a dying jail.
    async fn observe<T>(
        &self,
        call: HostCall,
        slot: Option<Slot>,
        look: impl FnOnce(&mut World) -> HostResult<T>,
    ) -> HostResult<T> {
        let entered = self.enter(call, slot).await?;
        self.wait().await;
        let result = lock(&self.state.store).look_at(look).map_err(store_failed).flatten();
        self.leave(entered, result).await
    }
}

fn store_failed(error: io::Error) -> HostError {
    let hint = "check the folder of the fake world";
    HostError::new(HostErrorKind::Failed, "fake world", "cannot be read or written", hint).caused_by(error)
}

fn nothing<S>(_: &mut World, _: &S) -> HostResult<()> {
    Ok(())
}

impl Host for FakeHost {
    fn drivers(&self) -> BTreeMap<String, String> {
        ["storage", "jail", "network", "egress", "limits"].map(|part| (part.into(), "fake".into())).into()
    }

    async fn checks(&self) -> Vec<Finding> {
        let looked = self.observe(HostCall::Checks, None, |world| Ok(findings(world))).await;
        looked.unwrap_or_else(|error| {
            vec![Finding {
                check: "host".into(),
                severity: Severity::Error,
                message: chain(&error),
                fix: error.hint,
            }]
        })
    }

    async fn check_template(&self, snapshot: &SnapshotName) -> HostResult<()> {
        self.observe(HostCall::CheckTemplate, None, |world| world.check_template(snapshot)).await
    }

    async fn template_version(&self, snapshot: &SnapshotName) -> HostResult<String> {
        let look = |world: &mut World| {
            world.check_template(snapshot)?;
            Ok(format!("{snapshot} {}", world.templates[snapshot]))
        };
        self.observe(HostCall::TemplateVersion, None, look).await
    }

    async fn inventory(&self) -> HostResult<Inventory> {
        let now = self.now();
        self.observe(HostCall::Inventory, None, |world| Ok(world.inventory(&self.state.slots, &now))).await
    }

    async fn inspect(&self, names: &SlotNames, parts: &[Part]) -> HostResult<ObservedClone> {
        let now = self.now();
        let look = |world: &mut World| Ok(world.observe(&self.state.slots, names.slot, parts, &now));
        self.observe(HostCall::Look, Some(names.slot), look).await
    }

    /// The jail needs storage, limits and network; it does not need egress.
    fn waits_for(&self, part: Part, earlier: Part) -> bool {
        let needed = match part {
            Part::Jail | Part::Service => earlier != Part::Egress,
            Part::Egress => earlier == Part::Network,
            _ => false,
        };
        needed || !self.state.at_once.load(Ordering::SeqCst)
    }

    async fn egress_health(&self) -> HostResult<EgressHealth> {
        self.observe(HostCall::EgressHealth, None, |world| Ok(world.firewall.health())).await
    }

    async fn repair_egress(&self) -> HostResult<EgressHealth> {
        let begin = |world: &mut World, _: &()| world.begin_repair_egress();
        let repair = |world: &mut World, _: &()| world.repair_egress();
        self.effect(HostCall::RepairEgress, None, (), begin, repair, EgressHealth::Ok).await
    }

    async fn ensure_storage(&self, spec: &CloneSpec) -> HostResult<()> {
        let (slot, subject) = (Some(spec.names.slot), (spec.clone(), self.now()));
        let clone = |world: &mut World, (spec, now): &(CloneSpec, Moment)| world.begin_storage(spec, now);
        let mark = |world: &mut World, (spec, _): &(CloneSpec, Moment)| world.mark_storage(spec);
        self.effect(HostCall::EnsureStorage, slot, subject, clone, mark, ()).await
    }

    async fn ensure_limits(&self, spec: &CloneSpec) -> HostResult<()> {
        self.ensure(HostCall::EnsureLimits, spec, World::begin_limits, World::set_limits, ()).await
    }

    /// As with cgroups: shared limits can change, limits of each process cannot.
    fn can_change_limits(&self, from: &Limits, to: &Limits) -> bool {
        let fixed =
            |limits: &Limits| Limits { memory_bytes: None, processes: None, cpu_percent: None, ..*limits };
        fixed(from) == fixed(to)
    }

    async fn ensure_network(&self, spec: &CloneSpec) -> HostResult<()> {
        self.ensure(HostCall::EnsureNetwork, spec, World::begin_network, World::complete_network, ()).await
    }

    async fn ensure_egress(&self, spec: &CloneSpec) -> HostResult<()> {
        let add = |world: &mut World, spec: &CloneSpec| world.add_member(spec.names.ip);
        self.ensure(HostCall::EnsureEgress, spec, add, nothing, ()).await
    }

    async fn ensure_jail(&self, spec: &CloneSpec) -> HostResult<()> {
        self.ensure(HostCall::EnsureJail, spec, World::begin_jail, World::start_jail, ()).await
    }

    async fn ensure_service(&self, spec: &CloneSpec) -> HostResult<ServiceEndpoint> {
        let lie = service(&spec.names);
        self.ensure(HostCall::EnsureService, spec, World::begin_service, World::service_ready, lie).await
    }

    async fn cut_egress(&self, names: &SlotNames) -> HostResult<()> {
        let remove = |world: &mut World, names: &SlotNames| world.remove_member(names.ip);
        let kill = |world: &mut World, names: &SlotNames| world.kill_states(names.ip);
        self.change(HostCall::CutEgress, names, remove, kill).await
    }

    async fn end_processes(&self, names: &SlotNames) -> HostResult<()> {
        self.change(HostCall::EndProcesses, names, World::begin_end_processes, World::end_processes).await
    }

    async fn freeze(&self, names: &SlotNames) -> HostResult<()> {
        let all = |world: &mut World, names: &SlotNames| world.set_frozen(names, true);
        self.change(HostCall::Freeze, names, nothing, all).await
    }

    async fn thaw(&self, names: &SlotNames, deadline: Duration) -> HostResult<()> {
        let tell = |world: &mut World, (names, deadline): &(SlotNames, Duration)| {
            world.set_deadline(names, *deadline)
        };
        let all = |world: &mut World, (names, _): &(SlotNames, Duration)| world.set_frozen(names, false);
        self.effect(HostCall::Thaw, Some(names.slot), (names.clone(), deadline), tell, all, ()).await
    }

    async fn set_deadline(&self, names: &SlotNames, deadline: Duration) -> HostResult<()> {
        let set = |world: &mut World, (names, deadline): &(SlotNames, Duration)| {
            world.set_deadline(names, *deadline)
        };
        let subject = (names.clone(), deadline);
        self.effect(HostCall::SetDeadline, Some(names.slot), subject, nothing, set, ()).await
    }

    async fn service_answers(&self, names: &SlotNames) -> HostResult<bool> {
        let look = |world: &mut World| {
            Ok(world.slot_mut(names.slot).jail.as_ref().is_some_and(|jail| jail.answers()))
        };
        self.observe(HostCall::ServiceAnswers, Some(names.slot), look).await
    }

    async fn unmount(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let (slot, subject) = (Some(names.slot), (names.clone(), how));
        let deepest =
            |world: &mut World, (names, how): &(SlotNames, Unmount)| world.begin_unmount(names, *how);
        let all = |world: &mut World, (names, how): &(SlotNames, Unmount)| world.unmount(names, *how);
        self.effect(HostCall::Unmount, slot, subject, deepest, all, ()).await
    }

    async fn stop_jail(&self, names: &SlotNames) -> HostResult<()> {
        self.change(HostCall::StopJail, names, World::begin_stop_jail, World::stop_jail).await
    }

    async fn remove_network(&self, names: &SlotNames) -> HostResult<()> {
        self.change(HostCall::RemoveNetwork, names, World::begin_remove_network, World::remove_network).await
    }

    async fn remove_limits(&self, names: &SlotNames) -> HostResult<()> {
        self.change(HostCall::RemoveLimits, names, World::begin_remove_limits, World::remove_limits).await
    }

    async fn destroy_storage(&self, names: &SlotNames) -> HostResult<()> {
        self.change(HostCall::DestroyStorage, names, World::begin_destroy_storage, World::destroy_storage)
            .await
    }

    async fn move_storage_aside(&self, names: &SlotNames, clone_id: &CloneId) -> HostResult<()> {
        let (slot, subject) = (Some(names.slot), (names.clone(), clone_id.clone()));
        let mark = |world: &mut World, (names, id): &(SlotNames, CloneId)| world.begin_move_aside(names, id);
        let rename = |world: &mut World, (names, id): &(SlotNames, CloneId)| world.move_aside(names, id);
        self.effect(HostCall::MoveStorageAside, slot, subject, mark, rename, ()).await
    }

    async fn settle(&self) {
        // The sender is in this host, so the channel does not end.
        let _ = self.late.subscribe().wait_for(|late| *late == 0).await;
    }

    async fn destroy_aside(&self, clone_id: &CloneId) -> HostResult<()> {
        let (begin, destroy) = (World::begin_destroy_aside, World::destroy_aside);
        self.effect(HostCall::DestroyAside, None, clone_id.clone(), begin, destroy, ()).await
    }
}

impl FakeHost {
    /// An effect that makes a part of a clone.
    async fn ensure<T: Send + 'static>(
        &self,
        call: HostCall,
        spec: &CloneSpec,
        begin: Transaction<CloneSpec, ()>,
        complete: Transaction<CloneSpec, T>,
        lie: T,
    ) -> HostResult<T> {
        self.effect(call, Some(spec.names.slot), spec.clone(), begin, complete, lie).await
    }

    /// An effect on what is in a slot.
    async fn change(
        &self,
        call: HostCall,
        names: &SlotNames,
        begin: Transaction<SlotNames, ()>,
        complete: Transaction<SlotNames, ()>,
    ) -> HostResult<()> {
        self.effect(call, Some(names.slot), names.clone(), begin, complete, ()).await
    }
}

fn findings(world: &World) -> Vec<Finding> {
    let finding = |check: &str, good: bool, message: String, fix: &str| Finding {
        check: check.into(),
        severity: if good { Severity::Ok } else { Severity::Error },
        message,
        fix: if good { String::new() } else { fix.into() },
    };
    let (templates, health) = (world.templates.len(), world.firewall.health());
    vec![
        finding(
            "template",
            templates > 0,
            format!("{templates} snapshots of the template"),
            "take a snapshot of the template",
        ),
        finding("egress", health == EgressHealth::Ok, format!("{health:?}"), "load the firewall's rules"),
    ]
}
