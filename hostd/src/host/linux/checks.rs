//! The checks of `hostctl doctor`: everything that a create needs, each with the fix.

use super::limits::{LimitBackend, RATES, has_rates};
use super::mounts::MountTable;
use super::overlay::Overlay;
use super::{LinuxHostState, fonts, open_files, probe, user_ids};
use crate::api::{EgressHealth, Finding, Severity};
use crate::config::LimitsDemand;
use crate::host::zfs::datasets::Datasets;
use crate::host::{HostError, HostResult, chain};
use sandbox::preflight::{self, Outcome};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// With less than this, a clone's first page could fill the disk or the memory.
const LEAST_FREE: u64 = 256 << 20;
/// 2025-01-01. An earlier clock was never set, and the browser would refuse every certificate.
const PLAUSIBLE_TIME: u64 = 1_735_689_600;
/// What the sandbox requires of Landlock.
const LANDLOCK_ABI: u8 = 6;

/// All checks. Storage and template were inspected by the caller, because ZFS needs asynchronous commands.
pub(super) fn run(
    state: &LinuxHostState,
    storage: Vec<Finding>,
    usable: HostResult<(PathBuf, String)>,
    datasets: HostResult<Datasets>,
) -> Vec<Finding> {
    let mut findings = vec![root()];
    findings.extend(storage);
    findings.extend(sandbox());
    findings.push(limits(state));
    findings.extend(rates(state));
    findings.push(open_files::check(&state.config));
    findings.push(user_ids::check(state));
    findings.push(egress(state));
    findings.push(connection_tracking(state));
    findings.extend(forwarding(state));
    findings.extend(probe::check(state));
    findings.push(callers(state));
    findings.push(template(state, usable));
    findings.push(passage(state));
    findings.push(browserd(state));
    findings.push(fonts::check());
    findings.push(free_space(state));
    findings.push(free_memory());
    findings.push(clock());
    findings.push(leftovers(state, datasets));
    findings
}

/// The checks themselves failed.
pub(super) fn broken(error: &HostError) -> Finding {
    finding("checks", Severity::Error, chain(error), &error.hint)
}

pub(super) fn finding(check: &str, severity: Severity, message: impl Into<String>, fix: &str) -> Finding {
    Finding { check: check.into(), severity, message: message.into(), fix: fix.into() }
}

pub(super) fn good(check: &str, message: impl Into<String>) -> Finding {
    finding(check, Severity::Ok, message, "")
}

fn root() -> Finding {
    match nix::unistd::geteuid().is_root() {
        true => good("root", "hostd runs as root"),
        false => finding(
            "root",
            Severity::Error,
            "hostd does not run as root",
            "start it by systemd, or with sudo",
        ),
    }
}

/// What the overlay needs of the kernel, and how the clones' size is limited.
pub(super) fn overlay(overlay: &Overlay) -> Vec<Finding> {
    let bound = match overlay.check_bound() {
        Ok(description) => good("storage", description),
        Err((why, fix)) => finding("storage", Severity::Error, why, fix),
    };
    vec![filesystem("overlay"), filesystem("tmpfs"), bound]
}

fn filesystem(kind: &str) -> Finding {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.split_whitespace().last() == Some(kind)) {
        return good(kind, format!("the kernel supports {kind}"));
    }
    match has_module(kind) {
        true => good(kind, format!("the kernel has a module for {kind}")),
        false => finding(
            kind,
            Severity::Error,
            format!("the kernel does not support {kind}"),
            &format!("use a kernel with it, or modprobe {kind}"),
        ),
    }
}

/// Whether the running kernel has a module for a file system. The first mount loads it.
fn has_module(kind: &str) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = Path::new("/lib/modules").join(release.trim()).join("modules.dep");
    let modules = std::fs::read_to_string(modules).unwrap_or_default();
    let file = format!("/{kind}.ko");
    modules.lines().filter_map(|line| line.split_once(':')).any(|(module, _)| module.contains(&file))
}

/// Every layer of the sandbox, found out by using it. Limits have a check of their own.
fn sandbox() -> Vec<Finding> {
    let report = preflight::check(None, LANDLOCK_ABI);
    let probes = report.probes.iter().filter(|probe| probe.layer != sandbox::Layer::Limits);
    probes
        .map(|probe| {
            let severity = match probe.outcome {
                Outcome::Good => Severity::Ok,
                Outcome::Note => Severity::Warning,
                Outcome::Bad => Severity::Error,
            };
            finding(probe.name, severity, &probe.found, probe.fix.as_deref().unwrap_or_default())
        })
        .collect()
}

fn limits(state: &LinuxHostState) -> Finding {
    match (&state.limits, state.config.linux.limits) {
        (LimitBackend::Cgroup(parent), _) => {
            good("limits", format!("a cgroup per clone below {}", parent.display()))
        }
        (LimitBackend::Rlimits { why }, LimitsDemand::Available) => finding(
            "limits",
            Severity::Warning,
            format!(
                "{why}: a clone's memory and processor time are not limited, only its processes and open files"
            ),
            "boot with systemd.unified_cgroup_hierarchy=1",
        ),
        (LimitBackend::Rlimits { why }, LimitsDemand::Cgroup) => finding(
            "limits",
            Severity::Error,
            why,
            "boot with systemd.unified_cgroup_hierarchy=1, or set linux.limits = \"available\"",
        ),
    }
}

/// Configured rates, which are never enforced here.
fn rates(state: &LinuxHostState) -> Option<Finding> {
    let severity = match state.config.linux.limits {
        _ if !has_rates(&state.config.clone_limits.all()) => return None,
        LimitsDemand::Available => Severity::Warning,
        LimitsDemand::Cgroup => Severity::Error,
    };
    let fix = "remove read_bytes_per_second and write_bytes_per_second from [clone_limits]";
    Some(finding("rates", severity, RATES, fix))
}

fn egress(state: &LinuxHostState) -> Finding {
    match state.egress.health() {
        Ok(EgressHealth::Ok) => {
            good("egress", format!("table inet {} is loaded and unchanged", state.egress.table()))
        }
        Ok(_) => finding(
            "egress",
            Severity::Error,
            format!(
                "table inet {} is missing or was changed; the clones' links are down",
                state.egress.table()
            ),
            "hostd loads it again; find out who changes it: nft monitor",
        ),
        Err(error) => finding(
            "egress",
            Severity::Error,
            chain(&error),
            "apt install nftables; modprobe nf_tables nf_conntrack",
        ),
    }
}

/// Who may connect to the clones.
fn callers(state: &LinuxHostState) -> Finding {
    let egress = &state.config.egress;
    let users = match egress.creators_may_connect() {
        true => "root and whoever creates clones".to_owned(),
        false => format!("only the users {:?} (egress.control_users)", egress.control_users),
    };
    let networks = egress.callers(None).networks;
    let others = match networks.is_empty() {
        true => "no container and no other machine (egress.control_plane)".to_owned(),
        false => networks.join(", "),
    };
    good("callers", format!("may connect to clones: on this host {users}; beside it {others}"))
}

/// Whether all clones together can fill the table that the host's own connections need too.
fn connection_tracking(state: &LinuxHostState) -> Finding {
    const CHECK: &str = "connections";
    let path = "/proc/sys/net/netfilter/nf_conntrack_max";
    let text = std::fs::read_to_string(path);
    let Some(most) = text.as_ref().ok().and_then(|text| text.trim().parse::<u64>().ok()) else {
        return finding(CHECK, Severity::Warning, format!("{path} cannot be read"), "modprobe nf_conntrack");
    };
    let clones = state.config.server.max_clones.min(state.slots.len() as u64);
    let each = state.egress.tracked_per_clone();
    let all = each * clones;
    let message = format!(
        "{clones} clones track at most {all} connections ({each} each); the host's table has room for {most}"
    );
    // The rest is for the host itself.
    if all <= most / 8 * 7 {
        return good(CHECK, message);
    }
    let fix = format!(
        "sysctl -w net.netfilter.nf_conntrack_max={}, or lower egress.max_connections or server.max_clones",
        all.div_ceil(7) * 8
    );
    finding(CHECK, Severity::Warning, message, &fix)
}

fn forwarding(state: &LinuxHostState) -> Vec<Finding> {
    let mut wanted = vec![("net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward")];
    if state.slots.subnet6().is_some() {
        wanted.push(("net.ipv6.conf.all.forwarding", "/proc/sys/net/ipv6/conf/all/forwarding"));
    }
    let check = |(name, path): (&str, &str)| match std::fs::read_to_string(path) {
        Ok(value) if value.trim() != "0" => good("forwarding", format!("{name} is on")),
        Ok(_) => finding(
            "forwarding",
            Severity::Error,
            format!("{name} is off: clones have no network"),
            &format!("sysctl -w {name}=1"),
        ),
        Err(error) => finding(
            "forwarding",
            Severity::Error,
            format!("{path}: {error}"),
            "use a kernel with that protocol, or a pool without it",
        ),
    };
    wanted.into_iter().map(check).collect()
}

fn template(state: &LinuxHostState, usable: HostResult<(PathBuf, String)>) -> Finding {
    let snapshot = &state.config.host.snapshot;
    match usable {
        Ok((_, version)) => {
            good("template", format!("{} snapshot {snapshot}: {version}", state.config.host.template))
        }
        Err(error) => finding("template", Severity::Error, chain(&error), &error.hint),
    }
}

/// The clones' users have no privileges. They need search permission on every folder above the clone's.
fn passage(state: &LinuxHostState) -> Finding {
    let clones = &state.config.pool.clones_dir;
    match closed(clones) {
        None => good("passage", format!("the clones' users can reach {}", clones.display())),
        Some(folder) => finding(
            "passage",
            Severity::Error,
            format!("the clones' users have no search permission on {}", folder.display()),
            &format!("chmod o+x {}", folder.display()),
        ),
    }
}

/// The first folder of a path without search permission for everybody.
fn closed(path: &Path) -> Option<&Path> {
    let open = |folder: &Path| folder.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0);
    path.ancestors().find(|folder| !open(folder))
}

/// browserd, which runs in each clone as the clone's user.
fn browserd(state: &LinuxHostState) -> Finding {
    let program = &state.config.linux.browserd;
    let shown = program.display();
    let missing = |message: String, fix: &str| finding("browserd", Severity::Warning, message, fix);
    let without = "a clone's endpoint is its browser's debugging socket";
    let Ok(meta) = program.metadata() else {
        return match program.as_os_str().is_empty() {
            true => good("browserd", format!("linux.browserd is empty: {without}")),
            false => missing(
                format!("{shown} does not exist: {without}"),
                "install browserd there, set another path in linux.browserd, or leave that empty",
            ),
        };
    };
    if meta.permissions().mode() & 0o005 != 0o005 {
        return finding(
            "browserd",
            Severity::Error,
            format!("the clones' users cannot execute {shown}"),
            &format!("chmod 755 {shown}"),
        );
    }
    match closed(program) {
        None => good("browserd", format!("{shown} runs in every clone")),
        Some(folder) => finding(
            "browserd",
            Severity::Error,
            format!(
                "the clones' users have no search permission on {}, so they cannot execute {shown}",
                folder.display()
            ),
            "install browserd elsewhere, for example in /usr/local/libexec",
        ),
    }
}

fn free_space(state: &LinuxHostState) -> Finding {
    let folder = &state.config.paths.state;
    match nix::sys::statvfs::statvfs(folder) {
        Ok(seen) => enough(
            "space",
            seen.blocks_available() * seen.fragment_size(),
            &folder.display().to_string(),
            "free space on that disk",
        ),
        Err(error) => finding(
            "space",
            Severity::Error,
            format!("{}: {error}", folder.display()),
            "check the folder's file system",
        ),
    }
}

fn free_memory() -> Finding {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    // By default clones write to memory too.
    match available {
        Some(kilobytes) => {
            enough("memory", kilobytes << 10, "memory", "stop other programs, or lower server.max_clones")
        }
        None => finding(
            "memory",
            Severity::Warning,
            "the kernel does not report how much memory is free",
            "check /proc/meminfo",
        ),
    }
}

fn enough(check: &str, free: u64, of: &str, fix: &str) -> Finding {
    let message = format!("{} MiB are free in {of}", free >> 20);
    if free >= LEAST_FREE { good(check, message) } else { finding(check, Severity::Error, message, fix) }
}

fn clock() -> Finding {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    match now >= PLAUSIBLE_TIME {
        true => good("clock", "the clock is set"),
        false => {
            finding("clock", Severity::Error, "the clock was never set", "set it: timedatectl set-ntp true")
        }
    }
}

/// The objects in this pool's slots. All of them should belong to clones that `hostctl ls` shows.
fn leftovers(state: &LinuxHostState, datasets: HostResult<Datasets>) -> Finding {
    let inventory = match datasets.and_then(|datasets| state.inventory(datasets)) {
        Ok(inventory) => inventory,
        Err(error) => return finding("objects", Severity::Error, chain(&error), &error.hint),
    };
    let foreign = foreign_mounts(state);
    if !foreign.is_empty() {
        let fix = "hostctl reap removes what belongs to hostd; unmount the rest";
        return finding(
            "objects",
            Severity::Warning,
            format!("mounts that belong to no slot: {}", foreign.join(", ")),
            fix,
        );
    }
    let names: Vec<String> =
        inventory.clones.keys().map(|slot| state.slots.name(*slot).to_string()).collect();
    let message = match (names.as_slice(), inventory.aside.len()) {
        ([], 0) => "there are no clones and no leftovers".to_owned(),
        (names, 0) => format!("slots in use: {}", names.join(", ")),
        (names, aside) => {
            format!("slots in use: {}; {aside} stores were moved aside", names.join(", "))
        }
    };
    good("objects", message)
}

/// Mounts below the clones' folder that belong to no slot.
fn foreign_mounts(state: &LinuxHostState) -> Vec<String> {
    let Ok(all) = MountTable::read() else { return Vec::new() };
    let clones =
        state.config.pool.clones_dir.canonicalize().unwrap_or_else(|_| state.config.pool.clones_dir.clone());
    let belongs_to_slot = |path: &Path| {
        let inside = path.strip_prefix(&clones).unwrap_or(path);
        let mut parts = inside.components().map(|part| part.as_os_str().to_string_lossy());
        // The ZFS template is mounted beside its clones.
        let template = state.config.host.template.as_str();
        parts.any(|part| state.slots.slot_of_name(&part).is_some() || part == ".aside" || part == template)
    };
    let foreign = all.below(&clones).into_iter().filter(|mount| !belongs_to_slot(&mount.at));
    foreign.map(|mount| mount.at.display().to_string()).collect()
}
