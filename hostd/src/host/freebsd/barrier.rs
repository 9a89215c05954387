//! The second barrier: ipfw rules on the host that do not depend on PF.
//!
//! Missing PF rules block nothing until hostd has taken the bridge down. The barrier ([`pf::ipfw`]) drops what enters the host
//! from the bridge for a denied range, the pool, the host itself or a foreign resolver all the time. One command loads it for
//! all clones, so a create needs none. Every inspection of the whole host lists the rules and loads them again if one is
//! missing. setup-host loads the kernel module; hostd does not, because a module with the wrong default would cut the host off.

use super::checks::{finding, good};
use super::errors::command_failed;
use super::{FreebsdState, commands};
use crate::api::{Finding, Severity};
use crate::host::{HostError, HostErrorKind, HostResult, chain};
use std::path::PathBuf;

/// The administrator may have many rules too.
const MAX_LIST_BYTES: usize = 4 << 20;
const HINT: &str =
    "run setup-host, which loads ipfw with a default that accepts; `ipfw list` shows the rules";

impl FreebsdState {
    /// What is missing in the barrier; `None` if it is complete.
    pub(super) async fn barrier_gap(&self) -> HostResult<Option<String>> {
        let outcome = self.tools.ipfw.with(commands::list_barrier()).at_most(MAX_LIST_BYTES).run().await?;
        match outcome.success() {
            true => Ok(pf::ipfw::prove(&self.egress.policy, outcome.text()?)),
            false => Err(command_failed("ipfw", &outcome, HINT)),
        }
    }

    /// Load the barrier if it is not complete. A failure is only logged, and doctor reports it: PF is still there, and an
    /// inspection must not fail because a file cannot be written.
    pub(super) async fn keep_barrier(&self, gap: HostResult<Option<String>>) {
        let kept = match gap {
            Ok(None) => Ok(()),
            Ok(Some(_)) => self.load_barrier().await,
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            let hint = &error.hint;
            tracing::error!(error = chain(&error), hint, "the clones have no second barrier beside PF");
        }
    }

    async fn load_barrier(&self) -> HostResult<()> {
        let (file, text) = (self.barrier_file(), pf::ipfw::render(&self.egress.policy));
        let path = file.clone();
        let written = tokio::task::spawn_blocking(move || std::fs::write(&path, text)).await;
        let written = written.unwrap_or_else(|died| Err(std::io::Error::other(died)));
        written.map_err(|error| {
            let object = file.display().to_string();
            HostError::new(HostErrorKind::Failed, object, "cannot be written", "check its file system")
                .caused_by(error)
        })?;
        let outcome = self.tools.ipfw.with(commands::load_barrier(&file)).run().await?;
        if !outcome.success() {
            return Err(command_failed("ipfw", &outcome, HINT));
        }
        match self.barrier_gap().await? {
            None => Ok(()),
            Some(gap) => Err(HostError::new(HostErrorKind::Failed, "ipfw", gap, HINT)),
        }
    }

    pub(super) async fn barrier_finding(&self) -> Finding {
        match self.barrier_gap().await {
            Ok(None) => good("second_barrier", "ipfw blocks denied addresses also without PF"),
            Ok(Some(gap)) => finding(
                "second_barrier",
                Severity::Error,
                format!("without PF the clones would not be blocked: {gap}"),
                format!("ipfw -f -q {}", self.barrier_file().display()),
            ),
            Err(error) => finding("second_barrier", Severity::Error, chain(&error), HINT),
        }
    }

    fn barrier_file(&self) -> PathBuf {
        self.config.paths.state.join("barrier.ipfw")
    }
}
