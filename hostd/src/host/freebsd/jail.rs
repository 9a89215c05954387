//! Starting and stopping a clone's jail, by jail(8) or by Bastille.
//!
//! `jail` is the default: its exit codes are reliable, it works on one jail and no shared file, so clones start in
//! parallel, and it starts a jail about twenty times faster than `bastille start`. `bastille` is for hosts whose
//! administrators hook into it. It has no lock and visits every jail of the host, so hostd runs one at a time. Its exit
//! codes are not reliable. After both, `jls` decides.
//!
//! A jail's interfaces are destroyed before it is stopped, even if they have been removed in an earlier step: an interface
//! that is left would return to the host with the name and description that the clone gave it.

use super::errors::{Complaint, classify, command_failed};
use super::jails::{self, Jail};
use super::{FreebsdState, commands, conf};
use crate::config::JailDriver;
use crate::host::command::Outcome;
use crate::host::{CloneSpec, HostError, HostErrorKind, HostResult, Unmount, chain};
use crate::slot::SlotNames;
use std::time::Duration;

/// The deadline of a start: four commands in the jail, of which the last waits for browserd.
const START_TIMEOUT: Duration = Duration::from_secs(50);
/// The deadline of `jail -r`, after which `jail -R` removes the jail.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Bastille visits every jail of the host first.
const BASTILLE_TIMEOUT: Duration = Duration::from_secs(120);

impl FreebsdState {
    pub(super) async fn jails(&self) -> HostResult<Vec<Jail>> {
        let outcome = self.tools.jls.with(commands::list_jails()).run().await?;
        if !outcome.success() {
            return Err(command_failed("jails", &outcome, "run `jls -d` by hand"));
        }
        Ok(jails::read(outcome.text()?)?)
    }

    /// Write the clone's files and start its jail.
    pub(super) async fn start(&self, spec: &CloneSpec) -> HostResult<()> {
        let (slots, copy, style) = (self.slots.clone(), spec.clone(), self.style.clone());
        let written = tokio::task::spawn_blocking(move || conf::write(&slots, &copy, &style)).await;
        written.unwrap_or_else(|died| {
            let name = spec.names.name.to_string();
            Err(HostError::new(
                HostErrorKind::Failed,
                name,
                "writing its files panicked",
                "report this defect",
            )
            .caused_by(died))
        })?;
        let names = &spec.names;
        let outcome = match self.config.freebsd.jail_driver {
            JailDriver::Jail => {
                let line = commands::start_jail(&conf::path(names), names);
                self.tools.jail.with(line).within(START_TIMEOUT).run().await?
            }
            JailDriver::Bastille => self.bastille("start", names).await?,
        };
        if outcome.success() {
            // No proof: the lifecycle inspects the jail.
            return Ok(());
        }
        let log = self.style.console_logs.join(format!("{}_console.log", names.name));
        let hint = format!("read {}", log.display());
        if classify(&outcome.stderr) != Complaint::Exists {
            return Err(command_failed(names.name.as_str(), &outcome, &hint));
        }
        // A jail that was started before is accepted if it is this clone's.
        let jails = self.jails().await?;
        let own = jails::of(&jails, names)
            .is_some_and(|jail| !jail.dying && conf::clone_id(&jail.uuid).as_ref() == Some(&spec.clone_id));
        match own {
            true => Ok(()),
            false => Err(HostError::new(
                HostErrorKind::Foreign,
                names.name.to_string(),
                "another jail has this name",
                "stop it, or configure another pool.prefix",
            )),
        }
    }

    /// Stop the jail. An absent jail is success.
    pub(super) async fn stop(&self, names: &SlotNames) -> HostResult<()> {
        let interfaces = self.remove_pair(names).await;
        self.looks.forget(names.slot);
        let file = conf::path(names);
        // Without its file the jail is removed by `jail -R`, which leaves its mounts.
        let orderly = std::fs::symlink_metadata(&file).is_ok_and(|meta| meta.is_file());
        let asked = match (orderly, self.config.freebsd.jail_driver) {
            (false, _) => None,
            (true, JailDriver::Jail) => {
                let line = commands::stop_jail(&file, names);
                Some(self.tools.jail.with(line).within(STOP_TIMEOUT).run().await.map_err(HostError::from))
            }
            (true, JailDriver::Bastille) => Some(self.bastille("stop", names).await),
        };
        match (asked, self.config.freebsd.jail_driver) {
            (Some(Ok(outcome)), JailDriver::Jail) if outcome.success() => return interfaces,
            (Some(Ok(outcome)), _) => {
                tracing::debug!(jail = %names.name, complaint = outcome.complaint(), "the stop command failed")
            }
            (Some(Err(error)), _) => {
                tracing::warn!(jail = %names.name, error = chain(&error), "the stop command has no result")
            }
            (None, _) => {}
        }
        let jails = self.jails().await?;
        if jails::of(&jails, names).is_some_and(|jail| !jail.dying) {
            let line = commands::remove_jail(names);
            let outcome = self.tools.jail.with(line).within(STOP_TIMEOUT).run().await?;
            match classify(&outcome.stderr) {
                _ if outcome.success() => {}
                Complaint::Absent | Complaint::Dying => {}
                _ => return Err(command_failed(names.name.as_str(), &outcome, "read the host's log")),
            }
        }
        // Only `jail -r` unmounts what jail(8) has mounted.
        interfaces.and(self.unmount_below(names, Unmount::Gentle).await)
    }

    async fn bastille(&self, what: &str, names: &SlotNames) -> HostResult<Outcome> {
        let _one_at_a_time = self.bastille_lock.lock().await;
        let line = commands::bastille(what, names);
        Ok(self.tools.bastille.with(line).within(BASTILLE_TIMEOUT).run().await?)
    }
}
