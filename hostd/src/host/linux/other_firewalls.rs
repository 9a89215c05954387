//! Docker, ufw, firewalld and others: packet filters that drop the clones' packets although hostd's table accepts them.

use super::LinuxHostState;
use super::checks::{finding, good};
use crate::api::{Finding, Severity};
use crate::config::Resolver;
use crate::host::chain;
use pf::linux::{ClosedChain, Hook};

const CHECK: &str = "other-firewalls";

/// Which program made a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Docker,
    Ufw,
    Firewalld,
    Unknown,
}

impl Program {
    fn of(closed: &ClosedChain) -> Program {
        let has = |name: &str| closed.siblings.iter().any(|chain| chain == name);
        let ufw = closed.siblings.iter().any(|chain| chain.starts_with("ufw-") || chain.starts_with("ufw6-"));
        match closed.table.as_str() {
            "firewalld" => Program::Firewalld,
            _ if ufw => Program::Ufw,
            _ if has("DOCKER-USER") => Program::Docker,
            _ => Program::Unknown,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Program::Docker => " (Docker)",
            Program::Ufw => " (ufw)",
            Program::Firewalld => " (firewalld)",
            Program::Unknown => "",
        }
    }
}

/// The closed chains that concern clones: those that forward, and with the forwarder those to the host.
pub(super) fn concerning(state: &LinuxHostState) -> Result<Vec<ClosedChain>, Finding> {
    let forwarder = state.config.egress.resolver == Resolver::Auto;
    let v6 = state.slots.subnet6().is_some();
    match state.egress.closed_chains_of_others() {
        Ok(mut closed) => {
            closed.retain(|chain| {
                (v6 || chain.family != "ip6")
                    && (chain.hook == Hook::Forward || (forwarder && chain.family != "ip6"))
            });
            Ok(closed)
        }
        Err(error) => Err(finding(CHECK, Severity::Warning, chain(&error), &error.hint)),
    }
}

/// The finding about them. `proven`: whether a clone network reached what it must; `None` if that was not tried.
pub(super) fn check(state: &LinuxHostState, proven: Option<bool>) -> Finding {
    let closed = match concerning(state) {
        Ok(closed) => closed,
        Err(finding) => return finding,
    };
    if closed.is_empty() {
        return good(CHECK, "no other packet filter drops what it does not know");
    }
    let names: Vec<String> = closed.iter().map(shown).collect();
    let names = names.join(", ");
    let message = format!("{names} drops what it does not know");
    match proven {
        Some(true) => good(CHECK, format!("{message}, and lets clones pass")),
        Some(false) => {
            finding(CHECK, Severity::Error, format!("{message}: clones are cut off"), &fixes(state, &closed))
        }
        None => finding(
            CHECK,
            Severity::Warning,
            format!("{message}; whether clones may pass was not proven (egress.probe)"),
            &fixes(state, &closed),
        ),
    }
}

fn shown(closed: &ClosedChain) -> String {
    let ClosedChain { family, table, chain, .. } = closed;
    format!("table {family} {table} chain {chain}{}", Program::of(closed).name())
}

/// The commands that let clones pass.
fn fixes(state: &LinuxHostState, closed: &[ClosedChain]) -> String {
    let (clones, gateway) = (state.slots.subnet(), state.slots.gateway());
    let mut fixes: Vec<String> = Vec::new();
    for chain in closed {
        let fix = match (Program::of(chain), chain.hook) {
            (Program::Docker, Hook::Forward) => format!(
                "iptables -I DOCKER-USER -s {clones} -j ACCEPT; iptables -I DOCKER-USER -d {clones} -j ACCEPT"
            ),
            (Program::Ufw, Hook::Forward) => {
                format!(
                    "ufw route allow from {clones}; ufw route allow to {clones} port {}",
                    state.config.egress.browserd_port
                )
            }
            (Program::Ufw, Hook::Input) => format!("ufw allow from {clones} to {gateway} port 53"),
            (Program::Firewalld, _) => format!(
                "firewall-cmd --permanent --new-zone=hostd; firewall-cmd --permanent --zone=hostd --set-target=ACCEPT; \
                 firewall-cmd --permanent --zone=hostd --add-source={clones}; firewall-cmd --permanent --new-policy=hostd-out; \
                 firewall-cmd --permanent --policy=hostd-out --set-target=ACCEPT; firewall-cmd --permanent --policy=hostd-out \
                 --add-ingress-zone=hostd; firewall-cmd --permanent --policy=hostd-out --add-egress-zone=ANY; firewall-cmd --reload"
            ),
            (_, Hook::Forward) => {
                let ClosedChain { family, table, chain, .. } = chain;
                let insert = format!("nft insert rule {family} {table} {chain} ip");
                format!("{insert} saddr {clones} accept; {insert} daddr {clones} accept")
            }
            (_, Hook::Input) => {
                let ClosedChain { family, table, chain, .. } = chain;
                format!(
                    "nft insert rule {family} {table} {chain} ip saddr {clones} ip daddr {gateway} udp dport 53 accept"
                )
            }
        };
        if !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    format!("{} (docs/linux.md, \"Beside other firewalls\", says how to keep that)", fixes.join("; "))
}
