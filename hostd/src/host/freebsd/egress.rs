//! The clones' packet filter: PF's anchor proven, its table kept, and the bridge as the emergency brake.
//!
//! The ruleset is the administrator's; hostd owns the table's members and, inside the anchor, nothing but reloading the
//! very rules it renders from its own configuration. What it watches for:
//!
//! - rules that are gone block nothing: `service pf restart` empties the ruleset first, and PF that is off passes all.
//!   Then the clones' bridge goes down until a proof succeeds again;
//! - `-T add` makes a table that is missing, with success, and no rule may refer to it. So a table that had to be made
//!   is proven to be in use, or the create fails;
//! - a member that leaves keeps its connections: they are ended in both directions, translated ones too.
//!
//! PF does not tell of changes, so the proof is repeated with every look at the whole host. Creates between two looks
//! rely on the last one for as long as [`PROOF_LASTS`].

use super::FreebsdState;
use super::interfaces::Interface;
use crate::api::EgressHealth;
use crate::config::Config;
use crate::host::command::{Command, Outcome};
use crate::host::{HostError, HostErrorKind, HostResult};
use crate::slot::{SlotNames, Slots};
use ipnet::IpNet;
use pf::pfctl::{self, Failure, Finding, Observed};
use pf::{Policy, PolicySpec, pf_conf};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long a create may rely on the last proof. Every look at the whole host makes a new one.
pub(super) const PROOF_LASTS: Duration = Duration::from_secs(15);

const HINT: &str = "load the rules with `pfctl -f /etc/pf.conf` (never `service pf restart`); hostctl doctor tells what is wrong";

/// The packet filter of one hostd.
#[derive(Debug)]
pub(super) struct Egress {
    pub(super) policy: Policy,
    /// Where the rendered anchor is kept for loading it again.
    file: PathBuf,
}

impl Egress {
    /// The policy of this pool, checked. Nothing is loaded.
    pub(super) fn new(config: &Config, slots: &Slots) -> HostResult<Egress> {
        let policy = policy(config, slots)?;
        Ok(Egress { policy, file: config.paths.state.join("browser.conf") })
    }
}

/// The policy that a configuration means on FreeBSD.
pub fn policy(config: &Config, slots: &Slots) -> HostResult<Policy> {
    let (egress, freebsd) = (&config.egress, &config.freebsd);
    let here = [Some(IpAddr::V4(slots.gateway())), slots.gateway6().map(IpAddr::V6)];
    let mut spec = PolicySpec::new(slots.networks().collect());
    spec.anchor = freebsd.anchor.clone();
    spec.set = freebsd.table.clone();
    spec.bridge = freebsd.bridge.clone();
    spec.resolver = egress.resolver;
    spec.control_plane = here.into_iter().flatten().chain(egress.control_plane.iter().copied()).collect();
    spec.control_users = egress.control_users.clone();
    spec.browserd_port = egress.browserd_port;
    spec.external = Some(egress.external.clone()).filter(|name| !name.is_empty());
    Policy::try_from(spec).map_err(|error| {
        let hint = "correct the sections [egress] and [freebsd]";
        HostError::new(HostErrorKind::NotReady, "egress policy", error.to_string(), hint)
    })
}

/// A clone's addresses.
fn addresses(names: &SlotNames) -> Vec<IpAddr> {
    [Some(IpAddr::V4(names.ip)), names.ip6.map(IpAddr::V6)].into_iter().flatten().collect()
}

/// Whether all of a clone's addresses are members, and whether any is.
pub(super) fn membership(members: &BTreeSet<IpNet>, names: &SlotNames) -> (bool, bool) {
    let own = addresses(names);
    let present = own.iter().filter(|address| members.contains(&IpNet::from(**address))).count();
    (present == own.len(), present > 0)
}

impl FreebsdState {
    fn pfctl(&self, arguments: pfctl::Arguments) -> Command {
        self.tools.pfctl.with(arguments)
    }

    fn pfctl_failed(&self, outcome: &Outcome) -> HostError {
        let kind = match pfctl::failure(&outcome.stderr) {
            Some(Failure::NoTable | Failure::NoAnchor | Failure::NoDevice | Failure::Permission) => {
                HostErrorKind::NotReady
            }
            _ => HostErrorKind::Failed,
        };
        let message = format!("`{}`: {}", outcome.command, outcome.complaint());
        HostError::new(kind, format!("table <{}>", self.egress.policy.set), message, HINT)
    }

    fn pf_unreadable(&self, error: &pfctl::ReadError) -> HostError {
        HostError::new(
            HostErrorKind::Failed,
            "pfctl",
            error.to_string(),
            "this version of pfctl speaks differently: report its output",
        )
    }

    /// The members; nobody where there is no table or no PF.
    pub(super) async fn members(&self) -> HostResult<BTreeSet<IpNet>> {
        let outcome = self.pfctl(pfctl::show(&self.egress.policy)).run().await?;
        match pfctl::failure(&outcome.stderr) {
            None if outcome.success() => {
                pfctl::read_members(outcome.text()?).map_err(|error| self.pf_unreadable(&error))
            }
            Some(Failure::NoTable | Failure::NoDevice) => Ok(BTreeSet::new()),
            _ => Err(self.pfctl_failed(&outcome)),
        }
    }

    /// What is wrong with the loaded rules. All questions are asked at once.
    pub(super) async fn prove(&self) -> HostResult<Vec<Finding>> {
        let policy = &self.egress.policy;
        let (info, bridge, tables, main_rules, main_nat, rules, nat, denied) = tokio::try_join!(
            self.pfctl(pfctl::info()).run(),
            self.pfctl(pfctl::bridge(policy)).run(),
            self.pfctl(pfctl::tables()).run(),
            self.pfctl(pfctl::main_rules()).run(),
            self.pfctl(pfctl::main_nat()).run(),
            self.pfctl(pfctl::anchor_rules(policy)).run(),
            self.pfctl(pfctl::anchor_nat(policy)).run(),
            self.pfctl(pfctl::anchor_denied(policy)).run(),
        )?;
        // Without the module there is no PF, and nothing is blocked.
        if pfctl::failure(&info.stderr) == Some(Failure::NoDevice) {
            return Ok(vec![Finding::Disabled]);
        }
        for outcome in [&info, &bridge, &tables, &main_rules, &main_nat] {
            if !outcome.success() {
                return Err(self.pfctl_failed(outcome));
            }
        }
        let unreadable = |error: pfctl::ReadError| self.pf_unreadable(&error);
        let listed = |outcome: &Outcome| match pfctl::read_rules(outcome.text()?, &outcome.stderr) {
            Ok(rules) => Ok(rules),
            // No such anchor: no rules.
            Err(Failure::NoAnchor) => Ok(Vec::new()),
            Err(_) => Err(self.pfctl_failed(outcome)),
        };
        let denied = match pfctl::failure(&denied.stderr) {
            None if denied.success() => pfctl::read_members(denied.text()?).map_err(unreadable)?,
            Some(Failure::NoTable | Failure::NoAnchor) => BTreeSet::new(),
            _ => return Err(self.pfctl_failed(&denied)),
        };
        let observed = Observed {
            enabled: pfctl::read_enabled(info.text()?).map_err(unreadable)?,
            skipped: pfctl::read_skipped(bridge.text()?, &policy.bridge).map_err(unreadable)?,
            main_rules: listed(&main_rules)?,
            main_nat: listed(&main_nat)?,
            anchor_rules: listed(&rules)?,
            anchor_nat: listed(&nat)?,
            denied,
            tables: pfctl::read_tables(tables.text()?).map_err(unreadable)?,
        };
        Ok(pfctl::prove(policy, &observed))
    }

    /// How the firewall is, judged by a proof and the bridge. A bridge that is down is a brake that somebody pulled.
    pub(super) fn judge(&self, findings: &[Finding], bridge: Option<&Interface>) -> EgressHealth {
        let only_table = |finding: &Finding| matches!(finding, Finding::Table { .. });
        if !findings.is_empty() && findings.iter().all(only_table) {
            return EgressHealth::TableMissing;
        }
        match findings.is_empty() && bridge.is_some_and(|bridge| bridge.up) {
            true => EgressHealth::Ok,
            false => EgressHealth::RulesMissing,
        }
    }

    /// A proof of now.
    pub(super) async fn health(&self) -> HostResult<EgressHealth> {
        let (findings, interfaces) = tokio::try_join!(self.prove(), self.interfaces())?;
        Ok(self.judge(&findings, self.network.bridge(&interfaces)))
    }

    /// Put right what is hostd's to put right; as long as that is not enough, the bridge is down.
    pub(super) async fn repair(&self) -> HostResult<EgressHealth> {
        let findings = self.prove().await?;
        if findings.is_empty() {
            self.set_bridge(true).await?;
            return Ok(EgressHealth::Ok);
        }
        self.set_bridge(false).await?;
        for finding in &findings {
            tracing::error!(%finding, bridge = self.network.bridge, "the clones' firewall is not as it must be; their bridge is down");
        }
        let admins = |finding: &Finding| {
            matches!(
                finding,
                Finding::Disabled | Finding::Skipped(_) | Finding::NotCalled(_) | Finding::Shadowed(_)
            )
        };
        if findings.iter().any(admins) {
            return Ok(self.judge(&findings, None));
        }
        let mut left = findings;
        if left.iter().any(|finding| matches!(finding, Finding::Anchor(_))) {
            self.load_anchor().await?;
            left = self.prove().await?;
        }
        if !left.is_empty() && left.iter().all(|finding| matches!(finding, Finding::Table { .. })) {
            // Without addresses: this makes the table that the rules name.
            self.run_pf(pfctl::add(&self.egress.policy, &[])).await?;
            left = self.prove().await?;
        }
        if !left.is_empty() {
            return Ok(self.judge(&left, None));
        }
        self.set_bridge(true).await?;
        Ok(EgressHealth::Ok)
    }

    async fn load_anchor(&self) -> HostResult<()> {
        let (file, text) = (self.egress.file.clone(), pf_conf::render(&self.egress.policy));
        let shown = file.display().to_string();
        let written = tokio::task::spawn_blocking(move || std::fs::write(&file, text)).await;
        let written = written.unwrap_or_else(|died| Err(std::io::Error::other(died)));
        written.map_err(|error| {
            HostError::new(
                HostErrorKind::Failed,
                &shown,
                error.to_string(),
                "look at the folder's file system",
            )
        })?;
        self.run_pf(pfctl::load_anchor(&self.egress.policy, &shown)).await.map(drop)
    }

    async fn run_pf(&self, arguments: pfctl::Arguments) -> HostResult<Outcome> {
        let outcome = self.pfctl(arguments).run().await?;
        match outcome.success() && pfctl::failure(&outcome.stderr).is_none() {
            true => Ok(outcome),
            false => Err(self.pfctl_failed(&outcome)),
        }
    }

    /// Let a clone out.
    pub(super) async fn grant(&self, names: &SlotNames) -> HostResult<()> {
        let policy = &self.egress.policy;
        let own = addresses(names);
        let outcome = self.run_pf(pfctl::add(policy, &own)).await?;
        let change = pfctl::read_change(&outcome.stderr).map_err(|error| self.pf_unreadable(&error))?;
        if change.given != own.len() {
            let message = format!("pfctl took {} of {} addresses", change.given, own.len());
            return Err(HostError::new(
                HostErrorKind::Failed,
                format!("table <{}>", policy.set),
                message,
                HINT,
            ));
        }
        if !change.table_created {
            return Ok(());
        }
        // The table was gone, and pfctl has made one of its name. Only rules that refer to it give it a meaning.
        let findings = self.prove().await?;
        match findings.first() {
            None => Ok(()),
            Some(finding) => {
                let cut = self.run_pf(pfctl::delete(policy, &own)).await;
                tracing::warn!(%finding, taken_back = cut.is_ok(), "a membership that would mean nothing");
                let message = format!("it was missing, and membership means nothing: {finding}");
                Err(HostError::new(HostErrorKind::NotReady, format!("table <{}>", policy.set), message, HINT))
            }
        }
    }

    /// Cut a clone off: out of the table, then its connections, in both directions and behind the translation.
    pub(super) async fn cut(&self, names: &SlotNames) -> HostResult<()> {
        let outcome = self.pfctl(pfctl::delete(&self.egress.policy, &addresses(names))).run().await?;
        match pfctl::failure(&outcome.stderr) {
            None if outcome.success() => {
                pfctl::read_change(&outcome.stderr).map_err(|error| self.pf_unreadable(&error))?;
            }
            // No PF has no connections either.
            Some(Failure::NoDevice) => return Ok(()),
            Some(Failure::NoTable) => {}
            _ => return Err(self.pfctl_failed(&outcome)),
        }
        self.end_connections(names).await
    }

    /// End what PF knows of a clone's connections.
    async fn end_connections(&self, names: &SlotNames) -> HostResult<()> {
        for address in addresses(names) {
            for line in pfctl::kill_states(address) {
                let outcome = self.pfctl(line).run().await?;
                match pfctl::failure(&outcome.stderr) {
                    None if outcome.success() => {
                        pfctl::read_killed(&outcome.stderr).map_err(|error| self.pf_unreadable(&error))?;
                    }
                    Some(Failure::NoDevice) => return Ok(()),
                    _ => return Err(self.pfctl_failed(&outcome)),
                }
            }
        }
        Ok(())
    }
}
