//! The kernel settings that clones depend on.

use super::checks::{finding, good};
use super::errors::unreadable;
use super::{FreebsdState, commands};
use crate::api::{Finding, Severity};
use crate::host::HostError;
use std::collections::BTreeMap;

/// The settings that are read.
const SETTINGS: [&str; 5] = [
    "kern.racct.enable",
    "net.inet.ip.forwarding",
    "net.inet6.ip6.forwarding",
    "net.link.bridge.pfil_member",
    "net.link.bridge.pfil_bridge",
];

impl FreebsdState {
    /// The kernel's settings by name.
    pub(super) async fn settings(&self) -> Result<BTreeMap<String, String>, HostError> {
        let outcome = self.tools.sysctl.with(commands::settings(&SETTINGS)).run().await?;
        let mut found = BTreeMap::new();
        for line in outcome.text()?.lines() {
            match line.split_once(": ") {
                Some((name, value)) => drop(found.insert(name.to_owned(), value.trim().to_owned())),
                None => return Ok(unreadable("sysctl", line, "name: value")?),
            }
        }
        Ok(found)
    }
}

/// The findings about them, for a pool with or without IPv6.
pub(super) fn findings(settings: &BTreeMap<String, String>, ip6: bool) -> Vec<Finding> {
    let mut findings = vec![
        racct(settings),
        forwarding(settings, "net.inet.ip.forwarding", "gateway_enable"),
        filtering(settings),
    ];
    if ip6 {
        findings.push(forwarding(settings, "net.inet6.ip6.forwarding", "ipv6_gateway_enable"));
    }
    findings
}

fn racct(settings: &BTreeMap<String, String>) -> Finding {
    let fix =
        "put kern.racct.enable=1 into /boot/loader.conf and restart the host: it cannot be switched on later";
    match settings.get("kern.racct.enable").map(String::as_str) {
        Some("1") => good("racct", "resource limits are on"),
        Some(_) => finding(
            "racct",
            Severity::Error,
            "RACCT is off: clones could not be limited, so none is made",
            fix,
        ),
        None => finding(
            "racct",
            Severity::Error,
            "the kernel has no RACCT",
            "use a kernel with options RACCT and RCTL, such as GENERIC",
        ),
    }
}

fn forwarding(settings: &BTreeMap<String, String>, name: &str, kept: &str) -> Finding {
    match settings.get(name).map(String::as_str) {
        Some("1") => good("forwarding", format!("{name} is on")),
        _ => finding(
            "forwarding",
            Severity::Error,
            format!("{name} is off: clones reach nothing"),
            format!("sysrc {kept}=YES; sysctl {name}=1"),
        ),
    }
}

/// The rules are written for the bridge interface. Filtering its members too would apply them to the same packets again.
fn filtering(settings: &BTreeMap<String, String>) -> Finding {
    let on = |name: &&str| settings.get(*name).is_some_and(|value| value != "0");
    let names = ["net.link.bridge.pfil_member", "net.link.bridge.pfil_bridge"];
    match names.iter().find(|name| on(name)) {
        None => good("bridge_filter", "PF sees what enters and leaves the bridge, once"),
        Some(name) => finding(
            "bridge_filter",
            Severity::Warning,
            format!("{name} is on: PF sees the clones' packets more than once"),
            format!("sysctl {name}=0, and in /etc/sysctl.conf"),
        ),
    }
}
