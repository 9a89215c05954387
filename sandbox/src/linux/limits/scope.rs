//! A transient scope, made by systemd on request over D-Bus.
//!
//! An ordinary user owns no cgroup, but the user's systemd does and makes a scope for processes that
//! the caller names. Success of the call is not taken as proof: we look where the processes are and
//! what the cgroup says.

use super::Unavailable;
use crate::Limits;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zbus::Variant;

const ROOT: &str = "/sys/fs/cgroup";
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether this machine could keep limits in scopes: cgroup v2, and a bus to ask on.
pub(crate) fn available() -> Result<(), Unavailable> {
    if !Path::new(ROOT).join("cgroup.controllers").exists() {
        return Err(Unavailable(format!("{ROOT} is not a cgroup v2 tree")));
    }
    let bus = bus_socket()?;
    if bus.exists() {
        return Ok(());
    }
    Err(Unavailable(format!(
        "no D-Bus to ask systemd on: {} does not exist",
        bus.display()
    )))
}

/// The socket of the bus on which the systemd that owns our cgroup listens.
fn bus_socket() -> Result<PathBuf, Unavailable> {
    let uid = nix::unistd::geteuid();
    if uid.is_root() {
        return Ok(PathBuf::from("/run/dbus/system_bus_socket"));
    }
    Ok(PathBuf::from(format!("/run/user/{uid}/bus")))
}

/// A name that no other launch of this machine uses.
pub(crate) fn new_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("sandbox-{}-{number}.scope", std::process::id())
}

/// Moves `pids` into a new scope with the limits.
pub(crate) fn enclose(name: &str, pids: &[u32], limits: &Limits) -> Result<(), Unavailable> {
    let failed = |e: &dyn std::fmt::Display| Unavailable(format!("systemd scope {name}: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| failed(&e))?;
    let socket = bus_socket()?;
    let call = async {
        let address = format!("unix:path={}", socket.display());
        let connection = zbus::connection::Builder::address(address.as_str())
            .build()
            .await?;
        start_transient_unit(&connection, name, pids, limits).await
    };
    runtime.block_on(async {
        match tokio::time::timeout(PATIENCE, call).await {
            Ok(result) => result.map_err(|e| failed(&e)),
            Err(_) => Err(failed(&format!("no answer within {PATIENCE:?}"))),
        }
    })?;
    pids.iter()
        .try_for_each(|pid| wait_until_inside(*pid, name))?;
    verify(pids[0], name, limits)
}

async fn start_transient_unit(
    connection: &zbus::Connection,
    name: &str,
    pids: &[u32],
    limits: &Limits,
) -> zbus::Result<()> {
    let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
    connection
        .call_method(
            Some("org.freedesktop.systemd1"),
            "/org/freedesktop/systemd1",
            Some("org.freedesktop.systemd1.Manager"),
            "StartTransientUnit",
            &(name, "fail", properties(pids, limits), auxiliary),
        )
        .await
        .map(drop)
}

fn properties<'a>(pids: &'a [u32], limits: &Limits) -> Vec<(&'static str, Variant<'a>)> {
    let mut properties = vec![
        ("Description", Variant::from("confined program")),
        ("PIDs", Variant::from(pids)),
        // A scope that failed must not stay in systemd's list.
        ("CollectMode", Variant::from("inactive-or-failed")),
    ];
    if let Some(bytes) = limits.memory_bytes {
        properties.push(("MemoryMax", Variant::from(bytes)));
        properties.push(("MemorySwapMax", Variant::from(0u64)));
    }
    if let Some(count) = limits.processes {
        properties.push(("TasksMax", Variant::from(u64::from(count))));
    }
    if let Some(percent) = limits.cpu_percent {
        // Microseconds of processor time a second.
        properties.push((
            "CPUQuotaPerSecUSec",
            Variant::from(u64::from(percent) * 10_000),
        ));
    }
    properties
}

fn cgroup_of(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(str::to_owned)
}

fn wait_until_inside(pid: u32, name: &str) -> Result<(), Unavailable> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let cgroup = cgroup_of(pid).unwrap_or_default();
        if cgroup.ends_with(&format!("/{name}")) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Unavailable(format!(
                "systemd said yes, but process {pid} is still in {cgroup:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The limits as the kernel has them: a user's systemd ignores what was not delegated to it.
fn verify(pid: u32, name: &str, limits: &Limits) -> Result<(), Unavailable> {
    let folder = Path::new(ROOT).join(cgroup_of(pid).unwrap_or_default().trim_start_matches('/'));
    let files = [
        ("memory.max", limits.memory_bytes.is_some()),
        ("pids.max", limits.processes.is_some()),
        ("cpu.max", limits.cpu_percent.is_some()),
    ];
    for (file, is_set) in files {
        let kept = fs::read_to_string(folder.join(file)).unwrap_or_default();
        if is_set && (kept.is_empty() || kept.starts_with("max")) {
            return Err(Unavailable(format!(
                "systemd scope {name}: {file} is not in force (is the controller delegated to the \
                 user?)"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_say_the_limits_in_systemds_units() {
        let limits = Limits {
            memory_bytes: Some(1 << 30),
            processes: Some(100),
            cpu_percent: Some(50),
            ..Limits::default()
        };
        let pids = [7, 8];
        let properties = properties(&pids, &limits);
        let value = |name: &str| {
            properties
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value)
        };
        assert_eq!(value("PIDs"), Some(&Variant::from(&pids[..])));
        assert_eq!(value("MemoryMax"), Some(&Variant::from(1u64 << 30)));
        assert_eq!(value("MemorySwapMax"), Some(&Variant::from(0u64)));
        assert_eq!(value("TasksMax"), Some(&Variant::from(100u64)));
        assert_eq!(
            value("CPUQuotaPerSecUSec"),
            Some(&Variant::from(500_000u64))
        );
    }

    #[test]
    fn names_are_never_used_twice() {
        assert_ne!(new_name(), new_name());
        assert!(new_name().ends_with(".scope"));
    }
}
