//! Starting and stopping a clone's jail, by jail(8) or by Bastille.
//!
//! `jail` is the default: its exit codes are true, it works on one jail and takes no shared file, so clones start in
//! parallel, and the same jail starts about twenty times faster than with `bastille start`. `bastille` is for hosts whose
//! administrators hook into it. It has no lock of its own and goes through every jail of the host, so hostd runs one at
//! a time, and its exit codes say nothing: `jls` is asked afterwards, as it is after jail(8).
//!
//! Before a jail is stopped its interfaces are destroyed. They would come back to the host otherwise, under whatever
//! name and description the clone gave its end.

use super::errors::{Complaint, classify, command_failed};
use super::jails::{self, Jail};
use super::{FreebsdState, commands, conf};
use crate::config::JailDriver;
use crate::host::command::Outcome;
use crate::host::{CloneSpec, HostError, HostErrorKind, HostResult, Unmount};
use crate::slot::SlotNames;
use std::time::Duration;

/// How long a start may take: four commands of the jail's own, the last of which waits for browserd.
const START_TIMEOUT: Duration = Duration::from_secs(50);
/// How long an orderly stop may take before the jail is removed as it is.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Bastille looks at every jail of the host first.
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
            let hint = "report this defect";
            Err(HostError::new(HostErrorKind::Failed, spec.names.name.to_string(), died.to_string(), hint))
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
            // Not proof; the lifecycle looks.
            return Ok(());
        }
        let log = self.style.console_logs.join(format!("{}_console.log", names.name));
        let hint = format!("look at {}", log.display());
        if classify(&outcome.stderr) != Complaint::Exists {
            return Err(command_failed(names.name.as_str(), &outcome, &hint));
        }
        // One that was started before is as good as a new one, if it is this clone's.
        let jails = self.jails().await?;
        let own = jails::of(&jails, names)
            .is_some_and(|jail| !jail.dying && conf::clone_id(&jail.uuid).as_ref() == Some(&spec.clone_id));
        match own {
            true => Ok(()),
            false => Err(HostError::new(
                HostErrorKind::Foreign,
                names.name.to_string(),
                "another jail has this name",
                "stop it, or take another pool",
            )),
        }
    }

    /// Stop the jail and everything in it. Absent is success.
    pub(super) async fn stop(&self, names: &SlotNames) -> HostResult<()> {
        let interfaces = self.remove_pair(names).await;
        let file = conf::path(names);
        // Without its file the jail is removed all the same; only its mounts are left then.
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
                tracing::debug!(jail = %names.name, complaint = outcome.complaint(), "its stop counts nothing")
            }
            (Some(Err(error)), _) => {
                tracing::warn!(jail = %names.name, %error, "not stopped in an orderly way")
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
                _ => return Err(command_failed(names.name.as_str(), &outcome, "look at the host's log")),
            }
        }
        // jail(8) unmounts what it mounted only in an orderly stop.
        interfaces.and(self.unmount_below(names, Unmount::Gentle).await)
    }

    async fn bastille(&self, what: &str, names: &SlotNames) -> HostResult<Outcome> {
        let _one_at_a_time = self.bastille_lock.lock().await;
        let line = commands::bastille(what, names);
        Ok(self.tools.bastille.with(line).within(BASTILLE_TIMEOUT).run().await?)
    }
}
