//! Checks everything a create needs, each with its fix, for `hostctl doctor`.

use super::interfaces::Interface;
use super::{FreebsdState, settings};
use crate::api::{EgressHealth, Finding, Severity};
use crate::config::JailDriver;
use crate::host::{HostError, chain};
use ipnet::IpNet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// 2025-01-01. A clock before this was never set, and the browser would reject every certificate.
const PLAUSIBLE_TIME: u64 = 1_735_689_600;
pub(super) fn finding(
    check: &str,
    severity: Severity,
    message: impl Into<String>,
    fix: impl Into<String>,
) -> Finding {
    Finding { check: check.into(), severity, message: message.into(), fix: fix.into() }
}

pub(super) fn good(check: &str, message: impl Into<String>) -> Finding {
    finding(check, Severity::Ok, message, "")
}

fn failed(check: &str, error: &HostError) -> Finding {
    finding(check, Severity::Error, chain(error), &error.hint)
}

impl FreebsdState {
    pub(super) async fn checks(&self) -> Vec<Finding> {
        let (settings, interfaces, jails) = tokio::join!(self.settings(), self.interfaces(), self.jails());
        let mut findings = vec![root()];
        findings.extend(self.tools());
        match &settings {
            Ok(settings) => findings.extend(settings::findings(settings, self.slots.subnet6().is_some())),
            Err(error) => findings.push(failed("kernel", error)),
        }
        match &interfaces {
            Ok(interfaces) => {
                findings.push(self.bridge(interfaces));
                findings.push(self.external(interfaces));
                findings.push(self.egress_finding(interfaces).await);
            }
            Err(error) => findings.push(failed("interfaces", error)),
        }
        findings.push(self.arp_finding().await);
        findings.push(self.barrier_finding().await);
        findings.push(self.table().await);
        findings.extend(self.storage.findings().await);
        findings.push(self.template().await);
        findings.push(match &jails {
            Ok(jails) => match self.template_rests(jails) {
                Ok(()) => good("template_rests", format!("jail {} is stopped", self.config.host.template)),
                Err(error) => failed("template_rests", &error),
            },
            Err(error) => failed("jails", error),
        });
        findings.push(self.ruleset());
        findings.extend(self.folders());
        findings.push(clock());
        findings.push(self.objects().await);
        findings
    }

    fn tools(&self) -> Vec<Finding> {
        let driver = self.config.freebsd.jail_driver;
        let missing: Vec<String> = self
            .tools
            .needed(driver)
            .into_iter()
            .filter_map(|tool| tool.path().err().map(ToString::to_string))
            .collect();
        match missing.is_empty() {
            true => vec![good("tools", "all tools exist and only root can change them")],
            false => missing
                .into_iter()
                .map(|why| {
                    let fix = match driver {
                        JailDriver::Bastille if why.contains("bastille") => "pkg install bastille",
                        _ => "install it, or name its folder in host.tool_folders",
                    };
                    finding("tools", Severity::Error, why, fix)
                })
                .collect(),
        }
    }

    fn bridge(&self, all: &[Interface]) -> Finding {
        let name = &self.network.bridge;
        let (gateway, prefix) = (self.slots.gateway(), self.slots.subnet().prefix_len());
        let make = format!("ifconfig bridge create name {name}; ifconfig {name} inet {gateway}/{prefix} up");
        let Some(bridge) = self.network.bridge(all) else {
            return finding("bridge", Severity::Error, format!("there is no interface {name}"), make);
        };
        if !bridge.groups.contains("bridge") {
            return finding(
                "bridge",
                Severity::Error,
                format!("{name} is no bridge"),
                "name another in freebsd.bridge",
            );
        }
        if !bridge.addresses.contains(&gateway.into()) {
            let message = format!("{name} does not carry {gateway}, which clones use as their router");
            return finding(
                "bridge",
                Severity::Error,
                message,
                format!("ifconfig {name} inet {gateway}/{prefix}"),
            );
        }
        if let (Some(gateway6), Some(subnet6)) = (self.slots.gateway6(), self.slots.subnet6())
            && !bridge.addresses.contains(&gateway6.into())
        {
            let message = format!("{name} does not carry {gateway6}, which clones use as their IPv6 router");
            let fix =
                format!("ifconfig {name} inet6 {gateway6}/{}; setup-host keeps it", subnet6.prefix_len());
            return finding("bridge", Severity::Error, message, fix);
        }
        let foreign: Vec<&str> = bridge
            .members
            .keys()
            .filter(|member| self.network.slot_of_name(&self.slots, member).is_none())
            .map(String::as_str)
            .collect();
        let open: Vec<&str> = bridge
            .members
            .iter()
            .filter(|(_, flags)| !flags.contains("PRIVATE"))
            .map(|(member, _)| member.as_str())
            .collect();
        if !open.is_empty() {
            let fix =
                format!("ifconfig {name} private {}", open.join(&format!("; ifconfig {name} private ")));
            let message = format!("clones reach these members of {name}, past PF: {}", open.join(", "));
            return finding("bridge", Severity::Error, message, fix);
        }
        if !foreign.is_empty() {
            let message = format!("{name} has members that are no clones: {}", foreign.join(", "));
            return finding("bridge", Severity::Warning, message, "give the clones a bridge of their own");
        }
        if !bridge.up {
            let message = format!("{name} is down: clones reach nothing and nobody reaches them");
            return finding(
                "bridge",
                Severity::Error,
                message,
                "hostd brings it up by itself when PF's rules are proven",
            );
        }
        good(
            "bridge",
            format!("{name} carries {gateway} and has {} members, all private", bridge.members.len()),
        )
    }

    fn external(&self, all: &[Interface]) -> Finding {
        let name = &self.config.egress.external;
        match all.iter().find(|interface| interface.name == *name) {
            _ if name.is_empty() => finding(
                "external",
                Severity::Warning,
                "no interface to the Internet is named: PF translates nothing, and clones with private addresses reach nothing",
                "set egress.external to the host's interface, such as em0",
            ),
            Some(_) => good("external", format!("clones go out by {name}")),
            None => finding(
                "external",
                Severity::Error,
                format!("there is no interface {name}"),
                "correct egress.external: ifconfig -l lists the interfaces",
            ),
        }
    }

    async fn egress_finding(&self, all: &[Interface]) -> Finding {
        let policy = &self.egress.policy;
        match self.prove().await {
            Ok(findings) if self.judge(&findings, self.network.bridge(all)) == EgressHealth::Ok => good(
                "egress",
                format!("PF is on, anchor {} is the rendered one and uses <{}>", policy.anchor, policy.set),
            ),
            Ok(findings) if findings.is_empty() => {
                let (state, fix) = match self.network.bridge(all) {
                    None => ("does not exist", "scripts/freebsd/setup-host makes it"),
                    Some(_) => ("is down", "hostd brings it up by itself within its next inspection"),
                };
                let message = format!("PF's rules are in place, but {} {state}", policy.bridge);
                finding("egress", Severity::Error, message, fix)
            }
            Ok(findings) => {
                let what: Vec<String> = findings.iter().map(ToString::to_string).collect();
                let message = format!("the clones' bridge is kept down: {}", what.join("; "));
                let fix = "pfctl -f /etc/pf.conf (never service pf restart); pfctl -e";
                finding("egress", Severity::Error, message, fix)
            }
            Err(error) => failed("egress", &error),
        }
    }

    /// Every member must be the address of one clone: a network in the table would grant egress to all of it.
    async fn table(&self) -> Finding {
        let table = &self.egress.policy.set;
        let members = match self.members().await {
            Ok(members) => members,
            Err(error) => return failed("table", &error),
        };
        let own = |member: &&IpNet| {
            member.prefix_len() == member.max_prefix_len()
                && self.slots.slot_of_address(member.addr()).is_some()
        };
        let strange: Vec<String> =
            members.iter().filter(|member| !own(member)).map(IpNet::to_string).collect();
        match strange.is_empty() {
            true => good("table", format!("<{table}> has {} members, all of them clones", members.len())),
            false => finding(
                "table",
                Severity::Error,
                format!("<{table}> has members that are no clones: {}", strange.join(", ")),
                format!("pfctl -t {table} -T delete {}", strange.join(" ")),
            ),
        }
    }

    async fn template(&self) -> Finding {
        let snapshot = &self.config.host.snapshot;
        match self.storage.check_template(snapshot).await {
            Ok(seen) => {
                let version = seen.version.map(|version| format!(": {version}")).unwrap_or_default();
                good("template", format!("{}@{snapshot}{version}", self.storage.layout().template))
            }
            Err(error) => failed("template", &error),
        }
    }

    /// Only the declaration of the ruleset is checked, because the loaded rulesets need devfs(8).
    fn ruleset(&self) -> Finding {
        let number = self.config.freebsd.devfs_ruleset;
        let files = ["/etc/devfs.rules", "/etc/defaults/devfs.rules"];
        let declared = |file: &&str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            text.lines().any(|line| {
                let line = line.trim();
                line.strip_prefix('[').and_then(|line| line.strip_suffix(']')).is_some_and(|line| {
                    line.split_once('=').and_then(|(_, rule)| rule.trim().parse().ok()) == Some(number)
                })
            })
        };
        match files.into_iter().find(declared) {
            Some(file) => good("devfs_ruleset", format!("{file} declares ruleset {number}")),
            None => finding(
                "devfs_ruleset",
                Severity::Warning,
                format!("no file declares devfs ruleset {number}: jails may see no or all devices"),
                "scripts/freebsd/setup-host installs it; then service devfs restart",
            ),
        }
    }

    fn folders(&self) -> Vec<Finding> {
        let freebsd = &self.config.freebsd;
        let mut findings = Vec::new();
        for (check, folder) in
            [("console_logs", &freebsd.console_logs), ("clones_dir", &self.config.pool.clones_dir)]
        {
            findings.push(match owned(folder) {
                Ok(()) => good(check, format!("{} belongs to root", folder.display())),
                Err(why) => {
                    let fix = format!("install -d -o root -g wheel -m 0750 {}", folder.display());
                    finding(check, Severity::Error, why, fix)
                }
            });
        }
        if freebsd.jail_driver == JailDriver::Bastille {
            let prefix = &freebsd.bastille_prefix;
            let mode = prefix.metadata().map(|meta| meta.permissions().mode() & 0o7777);
            findings.push(match mode {
                Ok(0o750) => good("bastille", format!("{} has mode 0750", prefix.display())),
                Ok(mode) => {
                    let message =
                        format!("{} has mode {mode:04o}: Bastille refuses to work", prefix.display());
                    finding("bastille", Severity::Error, message, format!("chmod 0750 {}", prefix.display()))
                }
                Err(error) => {
                    let message = format!("{}: {error}", prefix.display());
                    finding("bastille", Severity::Error, message, "pkg install bastille; bastille setup")
                }
            });
        }
        findings
    }

    /// The slots with objects on the host. `hostctl ls` should show a clone for each.
    async fn objects(&self) -> Finding {
        let seen = match self.inventory().await {
            Ok(seen) => seen,
            Err(error) => return failed("objects", &error),
        };
        let names: Vec<String> = seen.clones.keys().map(|slot| self.slots.name(*slot).to_string()).collect();
        let aside = match seen.aside.len() {
            0 => String::new(),
            count => format!("; {count} datasets are moved aside"),
        };
        let message = match names.is_empty() {
            true => "no slot has objects on this host".to_owned(),
            false => format!("these slots have objects on this host: {}", names.join(", ")),
        };
        good("objects", message + &aside)
    }
}

fn root() -> Finding {
    match nix::unistd::geteuid().is_root() {
        true => good("root", "hostd runs as root"),
        false => finding("root", Severity::Error, "hostd does not run as root", "service hostd start"),
    }
}

fn clock() -> Finding {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    match now.as_secs() >= PLAUSIBLE_TIME {
        true => good("clock", "the clock is plausible"),
        false => finding(
            "clock",
            Severity::Error,
            "the clock was never set",
            "sysrc ntpd_enable=YES; service ntpd start",
        ),
    }
}

fn owned(folder: &Path) -> Result<(), String> {
    let meta = folder.metadata().map_err(|error| format!("{}: {error}", folder.display()))?;
    if !meta.is_dir() {
        return Err(format!("{} is no folder", folder.display()));
    }
    match meta.uid() == nix::unistd::geteuid().as_raw() && meta.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(format!(
            "{} could be changed by others (mode {:04o})",
            folder.display(),
            meta.mode() & 0o7777
        )),
    }
}
