//! The clones' packet filter: checks PF's anchor, maintains its table, and takes the bridge down when the rules are gone.
//!
//! The main ruleset belongs to the administrator. hostd owns the members of the table, and inside the anchor it only reloads
//! the rules that it renders from its own configuration. It handles three hazards:
//!
//! - Missing rules block nothing: `service pf restart` first empties the ruleset, and a disabled PF passes everything.
//!   hostd takes the clones' bridge down until the rules are verified again.
//! - `pfctl -T add` creates a missing table and succeeds, although no rule refers to it. After such an add the rules are
//!   verified, or the create fails.
//! - Removing an address from the table does not end its connections. Their states are killed in both directions,
//!   including the translated ones.
//!
//! PF reports no changes. Every inspection of the whole host verifies the rules again, and between inspections
//! [`super::rule_watch`] checks the most important facts several times per second. A create relies on the last verification
//! for at most [`PROOF_LASTS`].
//!
//! A state that was made while the rules were missing passes packets after they are back. So the states of all clones are
//! killed before the bridge comes up.

use super::FreebsdState;
use super::interfaces::Interface;
use super::network::BridgeState;
use super::rule_watch::RuleWatch;
use crate::api::{EgressHealth, Method};
use crate::config::{AccessRule, Config, Resolver};
use crate::host::command::{Command, Outcome};
use crate::host::{HostError, HostErrorKind, HostResult, resolvers};
use crate::slot::{SlotNames, Slots};
use futures_util::future::try_join_all;
use ipnet::IpNet;
use pf::pfctl::{self, Failure, Finding, Observed};
use pf::{Policy, PolicySpec, pf_conf};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long a create may rely on the last verification of the rules.
pub(super) const PROOF_LASTS: Duration = Duration::from_secs(15);

/// How often the states of all clones are killed before hostd gives up.
const KILL_TRIES: usize = 5;

const HINT: &str = "load the rules with `pfctl -f /etc/pf.conf` (never `service pf restart`); hostctl doctor reports what is wrong";

/// The packet filter of one hostd.
#[derive(Debug)]
pub(super) struct Egress {
    pub(super) policy: Policy,
    /// Where the rendered anchor is kept for loading it again.
    file: PathBuf,
    pub(super) watch: RuleWatch,
}

impl Egress {
    /// The policy of this pool, checked. Nothing is loaded.
    pub(super) fn new(config: &Config, slots: &Slots) -> HostResult<Egress> {
        let policy = policy(config, slots)?;
        let file = config.paths.state.join("browser.conf");
        Ok(Egress { policy, file, watch: RuleWatch::new(config.freebsd.rules_interval_ms) })
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
    spec.resolver = resolver(config);
    spec.control_plane =
        here.into_iter().flatten().map(IpNet::from).chain(egress.control_plane.iter().copied()).collect();
    spec.control_users = match egress.creators_may_connect() {
        true => creators(&config.access).into_iter().collect(),
        false => egress.control_users.clone(),
    };
    spec.browserd_port = egress.browserd_port;
    spec.external = Some(egress.external.clone()).filter(|name| !name.is_empty());
    spec.connections = egress.connection_limits();
    Policy::try_from(spec).map_err(|error| {
        let hint = "correct the sections [egress] and [freebsd]";
        HostError::new(HostErrorKind::NotReady, "egress policy", "the configuration is not valid", hint)
            .caused_by(error)
    })
}

/// The resolver of the clones. PF cannot send them to one on loopback.
pub(super) fn resolver(config: &Config) -> Option<IpAddr> {
    match config.egress.resolver {
        Resolver::Address(address) => Some(address),
        Resolver::None => None,
        Resolver::Auto => {
            let known = resolvers::of_this_machine().into_iter().map(|server| server.ip());
            known.filter(|address| !address.is_loopback()).find(|address| match address {
                IpAddr::V4(_) => true,
                // A link-local one cannot be reached from another link.
                IpAddr::V6(v6) => config.pool.subnet6.is_some() && !v6.is_unicast_link_local(),
            })
        }
    }
}

/// Root, and the users that the rules let create clones, as far as the system's databases list them. PF has no table of users,
/// so a later change takes effect at the next start.
fn creators(rules: &[AccessRule]) -> BTreeSet<u32> {
    let user = |name: &String| {
        let found = || nix::unistd::User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
        name.parse().ok().or_else(found)
    };
    let group = |name: &String| match name.parse() {
        Ok(gid) => nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(gid)).ok().flatten(),
        Err(_) => nix::unistd::Group::from_name(name).ok().flatten(),
    };
    let mut users = BTreeSet::from([0]);
    for rule in rules.iter().filter(|rule| rule.operator || rule.operations.contains(&Method::Create)) {
        users.extend(rule.users.iter().filter_map(user));
        let members = rule.groups.iter().filter_map(group).flat_map(|group| group.mem);
        users.extend(members.filter_map(|member| user(&member)));
    }
    users
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
    pub(super) fn pfctl(&self, arguments: pfctl::Arguments) -> Command {
        self.tools.pfctl.with(arguments)
    }

    pub(super) fn pfctl_failed(&self, outcome: &Outcome) -> HostError {
        let kind = match pfctl::failure(&outcome.stderr) {
            Some(Failure::NoTable | Failure::NoAnchor | Failure::NoDevice | Failure::Permission) => {
                HostErrorKind::NotReady
            }
            _ => HostErrorKind::Failed,
        };
        HostError::new(kind, format!("table <{}>", self.egress.policy.set), "the command failed", HINT)
            .caused_by(outcome.failed())
    }

    pub(super) fn pf_unreadable(&self, error: pfctl::ReadError) -> HostError {
        let hint = "this version of pfctl has another output format: report its output";
        HostError::new(HostErrorKind::Failed, "pfctl", "unexpected output", hint).caused_by(error)
    }

    /// The members of the table; none if there is no table or no PF.
    pub(super) async fn members(&self) -> HostResult<BTreeSet<IpNet>> {
        let outcome = self.pfctl(pfctl::show(&self.egress.policy)).run().await?;
        match pfctl::failure(&outcome.stderr) {
            None if outcome.success() => {
                pfctl::read_members(outcome.text()?).map_err(|error| self.pf_unreadable(error))
            }
            Some(Failure::NoTable | Failure::NoDevice) => Ok(BTreeSet::new()),
            _ => Err(self.pfctl_failed(&outcome)),
        }
    }

    /// What is wrong with the loaded rules. All commands run at the same time.
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
        // Without the kernel module nothing is filtered.
        if pfctl::failure(&info.stderr) == Some(Failure::NoDevice) {
            return Ok(vec![Finding::Disabled]);
        }
        for outcome in [&info, &bridge, &tables, &main_rules, &main_nat] {
            if !outcome.success() {
                return Err(self.pfctl_failed(outcome));
            }
        }
        let unreadable = |error: pfctl::ReadError| self.pf_unreadable(error);
        let listed = |outcome: &Outcome| match pfctl::read_rules(outcome.text()?, &outcome.stderr) {
            Ok(rules) => Ok(rules),
            // A missing anchor has no rules.
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

    /// The state of the firewall by the verification and the bridge, which an earlier failure may have taken down.
    pub(super) fn judge(&self, findings: &[Finding], bridge: Option<&Interface>) -> EgressHealth {
        let only_table = |finding: &Finding| matches!(finding, Finding::Table { .. });
        if !findings.is_empty() && findings.iter().all(only_table) {
            return EgressHealth::TableMissing;
        }
        match bridge {
            _ if !findings.is_empty() => EgressHealth::RulesMissing,
            None => EgressHealth::BridgeMissing,
            Some(bridge) if !bridge.up => EgressHealth::BridgeDown,
            Some(_) => EgressHealth::Ok,
        }
    }

    /// Verify the rules now.
    pub(super) async fn health(&self) -> HostResult<EgressHealth> {
        let (findings, interfaces) = tokio::try_join!(self.prove(), self.interfaces())?;
        Ok(self.judge(&findings, self.network.bridge(&interfaces)))
    }

    /// Reload the anchor and the table if they are wrong. The bridge stays down until the rules are verified.
    pub(super) async fn repair(&self) -> HostResult<EgressHealth> {
        let findings = self.prove().await?;
        if findings.is_empty() {
            return self.open_bridge().await;
        }
        self.close_bridge().await?;
        for finding in &findings {
            tracing::error!(%finding, bridge = self.network.bridge, "the clones' firewall rules are wrong; their bridge is down");
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
            // An add without addresses creates the table that the rules refer to.
            self.run_pf(pfctl::add(&self.egress.policy, &[])).await?;
            left = self.prove().await?;
        }
        if !left.is_empty() {
            return Ok(self.judge(&left, None));
        }
        self.open_bridge().await
    }

    /// Take the bridge down: no clone reaches anything.
    pub(super) async fn close_bridge(&self) -> HostResult<()> {
        self.egress.watch.set_closed(true);
        self.set_bridge(false).await.map(drop)
    }

    /// Bring the bridge up after the rules were verified. Connections that were made while the rules were wrong are ended
    /// first.
    async fn open_bridge(&self) -> HostResult<EgressHealth> {
        self.end_all_connections().await?;
        if let BridgeState::Missing = self.set_bridge(true).await? {
            return Ok(EgressHealth::BridgeMissing);
        }
        self.egress.watch.set_closed(false);
        Ok(EgressHealth::Ok)
    }

    /// Kill the states of all addresses of the clones' networks, and prove that none is left: the same commands kill none
    /// in a second run. The bridge is down and the rules are loaded, so no new state can appear.
    async fn end_all_connections(&self) -> HostResult<()> {
        for _ in 0..KILL_TRIES {
            let mut killed = 0;
            for network in &self.egress.policy.networks {
                for line in pfctl::kill_network_states(network) {
                    let outcome = self.run_pf(line).await?;
                    killed +=
                        pfctl::read_killed(&outcome.stderr).map_err(|error| self.pf_unreadable(error))?;
                }
            }
            if killed == 0 {
                return Ok(());
            }
        }
        let message = "states of the clones' addresses appear as fast as they are killed";
        let hint = "find their source with `pfctl -ss`; the bridge stays down until there are none";
        Err(HostError::new(HostErrorKind::Busy, "PF states", message, hint))
    }

    async fn load_anchor(&self) -> HostResult<()> {
        let (file, text) = (self.egress.file.clone(), pf_conf::render(&self.egress.policy));
        let shown = file.display().to_string();
        let written = tokio::task::spawn_blocking(move || std::fs::write(&file, text)).await;
        let written = written.unwrap_or_else(|died| Err(std::io::Error::other(died)));
        written.map_err(|error| {
            let hint = "check the file system of its folder";
            HostError::new(HostErrorKind::Failed, &shown, "cannot be written", hint).caused_by(error)
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

    /// Add a clone's addresses to the table.
    pub(super) async fn grant(&self, names: &SlotNames) -> HostResult<()> {
        let policy = &self.egress.policy;
        let own = addresses(names);
        let outcome = self.run_pf(pfctl::add(policy, &own)).await?;
        let change = pfctl::read_change(&outcome.stderr).map_err(|error| self.pf_unreadable(error))?;
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
        // pfctl has created the missing table. It has no effect unless a rule refers to it.
        let findings = self.prove().await?;
        match findings.first() {
            None => Ok(()),
            Some(finding) => {
                let cut = self.run_pf(pfctl::delete(policy, &own)).await;
                tracing::warn!(%finding, taken_back = cut.is_ok(), "no rule refers to the table that pfctl created");
                let message = format!("it was missing, and no rule refers to it: {finding}");
                Err(HostError::new(HostErrorKind::NotReady, format!("table <{}>", policy.set), message, HINT))
            }
        }
    }

    /// Remove a clone's addresses from the table, then kill its states in both directions, translated ones too.
    pub(super) async fn cut(&self, names: &SlotNames) -> HostResult<()> {
        let outcome = self.pfctl(pfctl::delete(&self.egress.policy, &addresses(names))).run().await?;
        match pfctl::failure(&outcome.stderr) {
            None if outcome.success() => {
                pfctl::read_change(&outcome.stderr).map_err(|error| self.pf_unreadable(error))?;
            }
            // Without PF there are no states.
            Some(Failure::NoDevice) => return Ok(()),
            Some(Failure::NoTable) => {}
            _ => return Err(self.pfctl_failed(&outcome)),
        }
        self.end_connections(names).await
    }

    /// Kill the states of a clone's connections.
    async fn end_connections(&self, names: &SlotNames) -> HostResult<()> {
        let lines = addresses(names).into_iter().flat_map(pfctl::kill_states);
        try_join_all(lines.map(|line| self.kill_states(line))).await.map(drop)
    }

    async fn kill_states(&self, line: pfctl::Arguments) -> HostResult<()> {
        let outcome = self.pfctl(line).run().await?;
        match pfctl::failure(&outcome.stderr) {
            None if outcome.success() => {
                pfctl::read_killed(&outcome.stderr).map(drop).map_err(|error| self.pf_unreadable(error))
            }
            Some(Failure::NoDevice) => Ok(()),
            _ => Err(self.pfctl_failed(&outcome)),
        }
    }
}
