//! Repairs: what others undid on the host is put back. No repair destroys a clone.

use super::parts::Parts;
use super::planner::{self, Repair};
use super::slot_task::SlotWorker;
use super::step::Step;
use crate::api::{CloneId, Flavor};
use crate::host::{CloneSpec, Host, HostError, HostErrorKind, HostResult, Part, chain};
use crate::record::Phase;

/// How often freezing a clone is tried.
const FREEZE_TRIES: u32 = 3;

impl<H: Host> Parts<H> {
    /// Put the packet filter's rules and table back.
    pub(super) async fn repair_firewall(&self) {
        let health = self.host.run("firewall", self.host.host.repair_egress()).await;
        let alarm = match &health {
            Ok(health) => health.problem().map(str::to_owned),
            Err(error) => Some(format!("the clones' firewall cannot be put back: {}", chain(error))),
        };
        match &alarm {
            None => tracing::info!("the clones' firewall is in place again"),
            Some(problem) => tracing::warn!(problem, "the clones' firewall is not repaired yet"),
        }
        self.alarms.set("egress", alarm);
    }

    /// Destroy storage that was moved aside.
    pub(super) async fn destroy_aside(&self, id: &CloneId) {
        report(id.as_str(), self.host.run(id.as_str(), self.host.host.destroy_aside(id)).await);
    }
}

/// What a repair did.
enum Repaired {
    Yes,
    /// A fresh inspection showed nothing to repair, or nothing that is still wanted.
    NotNeeded,
}

fn report(object: &str, result: HostResult<()>) {
    match result {
        Ok(()) => tracing::info!(object, "repaired"),
        Err(error) => tracing::warn!(object, error = chain(&error), "not repaired yet"),
    }
}

impl<H: Host> SlotWorker<H> {
    /// Repair something of this slot, if it still has to be repaired.
    pub(super) async fn repair(&self, repair: &Repair) {
        let host = &self.parts.host;
        let name = self.names.name.as_str();
        let result = match repair {
            Repair::GrantEgress(_) => self.repair_step(Step::Egress).await,
            Repair::SetLimits(_) => self.repair_step(Step::Limits).await,
            Repair::Freeze(_) | Repair::Thaw(_) => self.repair_frozen().await,
            Repair::CutEgress(_) => match self.running().await {
                Ok(Some(_)) => Ok(Repaired::NotNeeded),
                Ok(None) => host.run(name, host.host.cut_egress(&self.names)).await.map(|()| Repaired::Yes),
                Err(error) => Err(error),
            },
            // These are no repairs of a slot.
            Repair::Firewall | Repair::DestroyAside(_) => Ok(Repaired::NotNeeded),
        };
        match result {
            Ok(Repaired::Yes) => tracing::info!(?repair, "repaired"),
            Ok(Repaired::NotNeeded) => tracing::debug!(?repair, "no repair is needed any more"),
            Err(error) => tracing::warn!(?repair, error = chain(&error), "not repaired yet"),
        }
    }

    /// Run a step again for a clone that is running, if it still is.
    async fn repair_step(&self, step: Step) -> HostResult<Repaired> {
        let Some(spec) = self.running().await? else { return Ok(Repaired::NotNeeded) };
        let host = &self.parts.host;
        host.run(spec.names.name.as_str(), step.ensure(&host.host, &spec)).await.map(|_| Repaired::Yes)
    }

    /// Freeze a ready member of the warm pool and thaw a clone that has an owner, if it still has to be.
    async fn repair_frozen(&self) -> HostResult<Repaired> {
        let Some(record) = self.record() else { return Ok(Repaired::NotNeeded) };
        let shall_be_frozen = match &record.phase {
            Phase::Pooled { flavor: Flavor::Ready, .. } => true,
            Phase::Ready { .. } => false,
            _ => return Ok(Repaired::NotNeeded),
        };
        let observed = self.parts.host.inspect(&self.names, &[Part::Jail, Part::Processes]).await?;
        match (shall_be_frozen, observed.frozen) {
            (true, false) => self.freeze().await.map(|()| Repaired::Yes),
            (false, true) => {
                self.thaw(&planner::spec(&record, &self.parts.slots)).await.map(|()| Repaired::Yes)
            }
            _ => Ok(Repaired::NotNeeded),
        }
    }

    /// Freeze the clone, and verify it. A process that is started while others are stopped is found by the next try.
    pub(super) async fn freeze(&self) -> HostResult<()> {
        let (host, name) = (&self.parts.host, self.names.name.as_str());
        for _ in 0..FREEZE_TRIES {
            host.run(name, host.host.freeze(&self.names)).await?;
            if host.inspect(&self.names, &[Part::Jail, Part::Processes]).await?.frozen {
                return Ok(());
            }
        }
        let message = "the host reported success, but the clone is not frozen";
        Err(HostError::new(HostErrorKind::Failed, name, message, "look at the host's log"))
    }

    /// What the clone in this slot shall be, if it is wanted, within its deadline, and running.
    async fn running(&self) -> HostResult<Option<CloneSpec>> {
        let now = self.parts.clock.now();
        let wanted = self.record().filter(|record| {
            matches!(record.phase, Phase::Ready { .. } | Phase::Pooled { .. })
                && now.until(&record.deadline).is_some_and(|left| !left.is_zero())
        });
        let Some(record) = wanted else { return Ok(None) };
        let spec = planner::spec(&record, &self.parts.slots);
        let parts = [Part::Storage, Part::Jail, Part::Network];
        let observed = self.parts.host.inspect(&spec.names, &parts).await?;
        let whole = planner::VITAL.iter().all(|step| step.verify(&spec, &observed).is_ok());
        Ok(whole.then_some(spec))
    }
}
