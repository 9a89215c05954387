//! Ends, stops and resumes everything that runs in a clone's jail.
//!
//! pkill(1) signals by jail: it lists the processes and signals those that the kernel reports in the jail, in one short run.
//! No name, user or PID file of the clone is trusted, and none of its scripts runs. A destroy kills at once: nothing that a
//! clone's browser could write at its end is kept.

use super::errors::command_failed;
use super::jails::{self, Jail};
use super::processes::{self, Process};
use super::{FreebsdState, commands};
use crate::host::command::Ended;
use crate::host::{HostError, HostErrorKind, HostResult};
use crate::slot::SlotNames;
use std::time::Duration;

/// The pauses between two signals.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How long a freeze may take. A process that waits for a processor stops only when it gets one.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(5);

impl FreebsdState {
    pub(super) async fn processes(&self) -> HostResult<Vec<Process>> {
        let outcome = self.tools.ps.with(commands::list_processes()).run().await?;
        if !outcome.success() {
            return Err(command_failed("processes", &outcome, "run `ps -axo pid,jid,state` by hand"));
        }
        Ok(processes::read(outcome.text()?)?)
    }

    /// The number of the slot's live jail now.
    async fn live_jail(&self, names: &SlotNames) -> HostResult<Option<u32>> {
        let jails = self.jails().await?;
        Ok(jails::of(&jails, names).filter(|jail| !jail.dying).map(|jail| jail.jid))
    }

    /// Freeze everything inside by SIGSTOP, and wait until it stands still. A process that was started meanwhile gets the
    /// next signal.
    pub(super) async fn freeze(&self, names: &SlotNames) -> HostResult<()> {
        let Some(jid) = self.live_jail(names).await? else { return Ok(()) };
        let stands_still =
            |all: &[Process]| processes::frozen(all, jid) || processes::inside(all, jid).is_empty();
        let frozen = self.signal_until(names, "STOP", jid, stands_still);
        match tokio::time::timeout(FREEZE_TIMEOUT.min(self.step_limit()), frozen).await {
            Ok(frozen) => frozen,
            // The lifecycle inspects it, and tries again or gives it up.
            Err(_) => Ok(()),
        }
    }

    /// Resume everything inside by SIGCONT.
    pub(super) async fn thaw(&self, names: &SlotNames) -> HostResult<()> {
        match self.live_jail(names).await? {
            Some(jid) => self.signal(names, "CONT", jid).await,
            None => Ok(()),
        }
    }

    /// End everything inside the jail by SIGKILL, which ends stopped processes too. A process can fork between the list and
    /// the signal, so both are repeated until the list is empty.
    ///
    /// One deadline holds for all of it. It is shorter than the lifecycle's, so that the error names the processes.
    pub(super) async fn end_processes(&self, names: &SlotNames) -> HostResult<()> {
        let jail = self.own_jail(names).await?.filter(|jail| !jail.dying);
        let Some(Jail { jid, .. }) = jail else { return Ok(()) };
        let limit = self.step_limit();
        let ended = self.signal_until(names, "KILL", jid, |all| processes::inside(all, jid).is_empty());
        match tokio::time::timeout(limit, ended).await {
            Ok(ended) => ended,
            Err(_) => Err(HostError::new(
                HostErrorKind::Timeout,
                format!("processes of {}", names.name),
                format!("still running after {:.1} s", limit.as_secs_f32()),
                "inspect them with ps -J; a process in state D waits for a disk",
            )),
        }
    }

    /// Signal again and again until the host's processes are as they should be.
    async fn signal_until(
        &self,
        names: &SlotNames,
        signal: &str,
        jid: u32,
        done: impl Fn(&[Process]) -> bool,
    ) -> HostResult<()> {
        let mut pause = FIRST_PAUSE;
        loop {
            self.signal(names, signal, jid).await?;
            if done(&self.processes().await?) {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Signal every process of the jail. A jail without processes is no error.
    async fn signal(&self, names: &SlotNames, signal: &str, jid: u32) -> HostResult<()> {
        let outcome = self.tools.pkill.with(commands::signal(signal, jid)).run().await?;
        // 1: no process matched.
        match (outcome.ended, outcome.stderr.trim().is_empty()) {
            (Ended::Code(0), _) | (Ended::Code(1), true) => Ok(()),
            _ => {
                let object = format!("processes of {}", names.name);
                Err(command_failed(object, &outcome, "inspect them with ps -J"))
            }
        }
    }
}
