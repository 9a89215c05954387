//! Permanent ARP entries: a clone's address always leads to the clone's own interface.
//!
//! Root in a jail can give its interface any address, and the host's ARP table would follow its replies: the control plane's
//! calls for a neighbour would go to the thief, and so would the replies to connections in the neighbour's name. Address and
//! Ethernet address of a slot never change, so all slots have permanent entries, which no reply replaces. Together with the
//! static entry of the bridge ([`super::commands::attach`]) packets for a slot only leave through its own port. Linux does not
//! need this: each clone has a point-to-point link.
//!
//! One command sets all entries. Every inspection of the whole host lists them and sets them again if one is missing: they are
//! lost with the bridge.

use super::errors::command_failed;
use super::{FreebsdState, commands};
use crate::api::{Finding, Severity};
use crate::host::{HostError, HostErrorKind, HostResult, chain};
use crate::slot::Slots;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// 999 entries need about 70 KB; other programs have entries too.
const MAX_LIST_BYTES: usize = 4 << 20;
const HINT: &str = "hostctl doctor checks the bridge; arp -an shows the entries";

/// One line for each slot: address and Ethernet address.
fn lines(slots: &Slots) -> String {
    let entry = |slot| {
        let names = slots.names(slot);
        format!("{} {}\n", names.ip, names.mac_clone)
    };
    slots.slots().map(entry).collect()
}

/// The slots' addresses whose entry is missing, not permanent or another one.
fn unset(slots: &Slots, listed: &str) -> Vec<String> {
    // `? (10.87.64.16) at 02:0b:0a:57:40:10 on bridge72 permanent [bridge]`
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let ip = words.nth(1)?.strip_prefix('(')?.strip_suffix(')')?.to_owned();
        let mac = words.nth(1)?.to_owned();
        words.any(|word| word == "permanent").then_some((ip, mac))
    };
    let entries: BTreeMap<String, String> = listed.lines().filter_map(entry).collect();
    let missing = slots.slots().filter_map(|slot| {
        let names = slots.names(slot);
        let ip = names.ip.to_string();
        (entries.get(&ip) != Some(&names.mac_clone.to_string())).then_some(ip)
    });
    missing.collect()
}

impl FreebsdState {
    /// The slots' addresses that have no permanent entry.
    pub(super) async fn unset_arp(&self) -> HostResult<Vec<String>> {
        let outcome = self.tools.arp.with(commands::list_arp()).at_most(MAX_LIST_BYTES).run().await?;
        match outcome.success() {
            true => Ok(unset(&self.slots, outcome.text()?)),
            false => Err(command_failed("ARP table", &outcome, HINT)),
        }
    }

    /// Set the entries if one is missing. A failure is only logged, and doctor reports it: an inspection must not fail because
    /// a file cannot be written, since clones are removed by what it shows.
    pub(super) async fn keep_arp(&self, unset: HostResult<Vec<String>>) {
        let kept = match unset {
            Ok(missing) if missing.is_empty() => Ok(()),
            Ok(_) => self.set_arp().await,
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            let hint = &error.hint;
            tracing::error!(error = chain(&error), hint, "the clones' ARP entries are not in place");
        }
    }

    /// Set the entries of all slots.
    async fn set_arp(&self) -> HostResult<()> {
        let (file, text) = (self.arp_file(), lines(&self.slots));
        let path = file.clone();
        let written = tokio::task::spawn_blocking(move || std::fs::write(&path, text)).await;
        let written = written.unwrap_or_else(|died| Err(std::io::Error::other(died)));
        written.map_err(|error| {
            let object = file.display().to_string();
            HostError::new(HostErrorKind::Failed, object, "cannot be written", "check its file system")
                .caused_by(error)
        })?;
        let outcome = self.tools.arp.with(commands::set_arp(&file)).run().await?;
        match outcome.success() {
            true => Ok(()),
            false => Err(command_failed("ARP table", &outcome, HINT)),
        }
    }

    pub(super) async fn arp_finding(&self) -> Finding {
        let finding = |severity, message: String, fix: &str| Finding {
            check: "arp".into(),
            severity,
            message,
            fix: fix.into(),
        };
        match self.unset_arp().await.as_deref() {
            Ok([]) => finding(Severity::Ok, "every slot has its permanent entry".into(), ""),
            Ok([first, rest @ ..]) => finding(
                Severity::Error,
                format!(
                    "{first} and {} more have no permanent entry: a clone's root can take them",
                    rest.len()
                ),
                &format!("arp -f {}", self.arp_file().display()),
            ),
            Err(error) => finding(Severity::Error, chain(error), &error.hint),
        }
    }

    fn arp_file(&self) -> PathBuf {
        self.config.paths.state.join("arp")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PoolConfig;

    #[test]
    fn only_permanent_entries_of_the_right_interface_count() {
        let slots = Slots::new(&PoolConfig { last_slot: 2, ..PoolConfig::default() }).unwrap();
        assert_eq!(lines(&slots), "10.87.64.16 02:0b:0a:57:40:10\n10.87.64.17 02:0b:0a:57:40:11\n");
        let good = "? (10.87.64.16) at 02:0b:0a:57:40:10 on bridge72 permanent [bridge]\n\
                    ? (10.87.64.17) at 02:0b:0a:57:40:11 on bridge72 permanent [bridge]\n";
        assert_eq!(unset(&slots, good), Vec::<String>::new());
        for (from, to) in [
            ("40:10 on bridge72 permanent", "40:10 on bridge72 expires in 1178 seconds"),
            ("02:0b:0a:57:40:10", "02:0b:0a:57:40:11"),
            ("(10.87.64.16)", "(10.87.64.160)"),
        ] {
            assert_eq!(unset(&slots, &good.replace(from, to)), ["10.87.64.16"], "{to}");
        }
        assert_eq!(unset(&slots, "").len(), 2);
    }
}
