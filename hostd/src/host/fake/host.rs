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
            Some(FaultKind::Crash(When::After)) => panic_any(SimulatedCrash),
            _ => result,
        }
    }

    /// An effect of two transactions. `lie` is the result of a tool that reports success and does nothing.
    async fn effect<T>(
        &self,
        call: HostCall,
        slot: Option<Slot>,
        begin: impl Fn(&mut World) -> HostResult<()> + Send + Sync,
        complete: impl Fn(&mut World) -> HostResult<T> + Send + Sync,
        lie: T,
    ) -> HostResult<T>
    where
        T: Send,
    {
        let entered = self.enter(call, slot).await?;
        if let (Some(FaultKind::DyingPolls(polls)), HostCall::StopJail, Some(slot)) =
            (entered.planned.fault, call, slot)
        {
            self.make_dying(slot, polls);
        }
        let result = match entered.planned.fault {
            Some(FaultKind::Lie) => Ok(lie),
            Some(FaultKind::Half) => {
                self.transact(&begin).and(Err(injected(call, slot, HostErrorKind::Failed)))
            }
            Some(FaultKind::Twice) => match self.transactions(&begin, &complete).await {
                Ok(_) => self.transactions(&begin, &complete).await,
                Err(error) => Err(error),
            },
            _ => self.transactions(&begin, &complete).await,
        };
        self.leave(entered, result).await
    }

    /// Do a call late, by a task of its own that outlives this future, if a fault asks for that.
    async fn late<T: Send + 'static, F: Future<Output = HostResult<T>> + Send + 'static>(
        &self,
        call: HostCall,
        spec: &CloneSpec,
        work: impl FnOnce(FakeHost, CloneSpec) -> F,
    ) -> Option<HostResult<T>> {
        let time = lock(&self.state.faults).take_late(call, spec.names.slot)?;
        let (host, work) = (self.clone(), work(self.clone(), spec.clone()));
        self.state.late.send_modify(|late| *late += 1);
        let task = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let result = work.await;
            host.state.late.send_modify(|late| *late -= 1);
            result
        });
        Some(task.await.expect("the late call does not panic"))
    }

    async fn make_storage(&self, spec: &CloneSpec) -> HostResult<()> {
        let now = self.now();
        let clone = |world: &mut World| world.begin_storage(spec, &now);
        let mark = |world: &mut World| world.mark_storage(spec);
        self.effect(HostCall::EnsureStorage, Some(spec.names.slot), clone, mark, ()).await
    }

    async fn make_network(&self, spec: &CloneSpec) -> HostResult<()> {
        let make = |world: &mut World| world.begin_network(spec);
        let complete = |world: &mut World| world.complete_network(spec);
        self.effect(HostCall::EnsureNetwork, Some(spec.names.slot), make, complete, ()).await
    }

    async fn make_jail(&self, spec: &CloneSpec) -> HostResult<()> {
        let mount = |world: &mut World| world.begin_jail(spec);
        let start = |world: &mut World| world.start_jail(spec);
        self.effect(HostCall::EnsureJail, Some(spec.names.slot), mount, start, ()).await
    }

    async fn make_service(&self, spec: &CloneSpec) -> HostResult<ServiceEndpoint> {
        let start = |world: &mut World| world.begin_service(spec);
        let ready = |world: &mut World| world.service_ready(spec);
        let lie = service(&spec.names);
        self.effect(HostCall::EnsureService, Some(spec.names.slot), start, ready, lie).await
    }

    async fn transactions<T>(
        &self,
        begin: impl Fn(&mut World) -> HostResult<()>,
        complete: impl Fn(&mut World) -> HostResult<T>,
    ) -> HostResult<T> {
        self.transact(begin)?;
        self.wait().await;
        self.transact(complete)
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

fn nothing(_: &mut World) -> HostResult<()> {
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
        let begin = |world: &mut World| world.begin_repair_egress();
        let repair = |world: &mut World| world.repair_egress();
        self.effect(HostCall::RepairEgress, None, begin, repair, EgressHealth::Ok).await
    }

    async fn ensure_storage(&self, spec: &CloneSpec) -> HostResult<()> {
        let late = |host: FakeHost, spec: CloneSpec| async move { host.make_storage(&spec).await };
        match self.late(HostCall::EnsureStorage, spec, late).await {
            Some(result) => result,
            None => self.make_storage(spec).await,
        }
    }

    async fn ensure_limits(&self, spec: &CloneSpec) -> HostResult<()> {
        let first = |world: &mut World| world.begin_limits(spec);
        let all = |world: &mut World| world.set_limits(spec);
        self.effect(HostCall::EnsureLimits, Some(spec.names.slot), first, all, ()).await
    }

    /// As with cgroups: shared limits can change, limits of each process cannot.
    fn can_change_limits(&self, from: &Limits, to: &Limits) -> bool {
        let fixed =
            |limits: &Limits| Limits { memory_bytes: None, processes: None, cpu_percent: None, ..*limits };
        fixed(from) == fixed(to)
    }

    async fn ensure_network(&self, spec: &CloneSpec) -> HostResult<()> {
        let late = |host: FakeHost, spec: CloneSpec| async move { host.make_network(&spec).await };
        match self.late(HostCall::EnsureNetwork, spec, late).await {
            Some(result) => result,
            None => self.make_network(spec).await,
        }
    }

    async fn ensure_egress(&self, spec: &CloneSpec) -> HostResult<()> {
        let add = |world: &mut World| world.add_member(spec.names.ip);
        self.effect(HostCall::EnsureEgress, Some(spec.names.slot), add, nothing, ()).await
    }

    async fn ensure_jail(&self, spec: &CloneSpec) -> HostResult<()> {
        let late = |host: FakeHost, spec: CloneSpec| async move { host.make_jail(&spec).await };
        match self.late(HostCall::EnsureJail, spec, late).await {
            Some(result) => result,
            None => self.make_jail(spec).await,
        }
    }

    async fn ensure_service(&self, spec: &CloneSpec) -> HostResult<ServiceEndpoint> {
        let late = |host: FakeHost, spec: CloneSpec| async move { host.make_service(&spec).await };
        match self.late(HostCall::EnsureService, spec, late).await {
            Some(result) => result,
            None => self.make_service(spec).await,
        }
    }

    async fn cut_egress(&self, names: &SlotNames) -> HostResult<()> {
        let remove = |world: &mut World| world.remove_member(names.ip);
        let kill = |world: &mut World| world.kill_states(names.ip);
        self.effect(HostCall::CutEgress, Some(names.slot), remove, kill, ()).await
    }

    async fn end_processes(&self, names: &SlotNames) -> HostResult<()> {
        let ask = |world: &mut World| world.begin_end_processes(names);
        let kill = |world: &mut World| world.end_processes(names);
        self.effect(HostCall::EndProcesses, Some(names.slot), ask, kill, ()).await
    }

    async fn freeze(&self, names: &SlotNames) -> HostResult<()> {
        let all = |world: &mut World| world.set_frozen(names, true);
        self.effect(HostCall::Freeze, Some(names.slot), nothing, all, ()).await
    }

    async fn thaw(&self, names: &SlotNames) -> HostResult<()> {
        let all = |world: &mut World| world.set_frozen(names, false);
        self.effect(HostCall::Thaw, Some(names.slot), nothing, all, ()).await
    }

    async fn service_answers(&self, names: &SlotNames) -> HostResult<bool> {
        let look = |world: &mut World| {
            Ok(world.slot_mut(names.slot).jail.as_ref().is_some_and(|jail| jail.answers()))
        };
        self.observe(HostCall::ServiceAnswers, Some(names.slot), look).await
    }

    async fn unmount(&self, names: &SlotNames, how: Unmount) -> HostResult<()> {
        let deepest = |world: &mut World| world.begin_unmount(names, how);
        let all = |world: &mut World| world.unmount(names, how);
        self.effect(HostCall::Unmount, Some(names.slot), deepest, all, ()).await
    }

    async fn stop_jail(&self, names: &SlotNames) -> HostResult<()> {
        let kill = |world: &mut World| world.begin_stop_jail(names);
        let stop = |world: &mut World| world.stop_jail(names);
        self.effect(HostCall::StopJail, Some(names.slot), kill, stop, ()).await
    }

    async fn remove_network(&self, names: &SlotNames) -> HostResult<()> {
        let one = |world: &mut World| world.begin_remove_network(names);
        let both = |world: &mut World| world.remove_network(names);
        self.effect(HostCall::RemoveNetwork, Some(names.slot), one, both, ()).await
    }

    async fn remove_limits(&self, names: &SlotNames) -> HostResult<()> {
        let some = |world: &mut World| world.begin_remove_limits(names);
        let all = |world: &mut World| world.remove_limits(names);
        self.effect(HostCall::RemoveLimits, Some(names.slot), some, all, ()).await
    }

    async fn destroy_storage(&self, names: &SlotNames) -> HostResult<()> {
        let unmount = |world: &mut World| world.begin_destroy_storage(names);
        let destroy = |world: &mut World| world.destroy_storage(names);
        self.effect(HostCall::DestroyStorage, Some(names.slot), unmount, destroy, ()).await
    }

    async fn move_storage_aside(&self, names: &SlotNames, clone_id: &CloneId) -> HostResult<()> {
        let mark = |world: &mut World| world.begin_move_aside(names, clone_id);
        let rename = |world: &mut World| world.move_aside(names, clone_id);
        self.effect(HostCall::MoveStorageAside, Some(names.slot), mark, rename, ()).await
    }

    async fn settle(&self) {
        // The sender is in this host, so the channel does not end.
        let _ = self.state.late.subscribe().wait_for(|late| *late == 0).await;
    }

    async fn destroy_aside(&self, clone_id: &CloneId) -> HostResult<()> {
        let unmount = |world: &mut World| world.begin_destroy_aside(clone_id);
        let destroy = |world: &mut World| world.destroy_aside(clone_id);
        self.effect(HostCall::DestroyAside, None, unmount, destroy, ()).await
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
