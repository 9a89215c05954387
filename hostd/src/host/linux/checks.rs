//! Everything a create needs, looked at one by one, each with what to do about it.

use super::limits::{self, LimitBackend};
use super::storage::Overlay;
use super::{LinuxHostState, mounts};
use crate::api::{EgressHealth, Finding, Severity};
use crate::config::LimitsDemand;
use crate::host::zfs::datasets::Datasets;
use crate::host::{HostError, HostResult, chain};
use sandbox::preflight::{self, Outcome};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Below this a clone's first page could already fill the disk or the memory.
const LEAST_FREE: u64 = 256 << 20;
/// 2025-01-01: a clock before this was never set, and every certificate looks wrong to the browser.
const PLAUSIBLE_TIME: u64 = 1_735_689_600;
/// What the sandbox requires of Landlock.
const LANDLOCK_ABI: u8 = 6;

/// Everything but the storage and the template, which were looked at before.
pub(super) fn run(
    inner: &LinuxHostState,
    storage: Vec<Finding>,
    usable: HostResult<(PathBuf, String)>,
    datasets: HostResult<Datasets>,
) -> Vec<Finding> {
    let mut findings = vec![root()];
    findings.extend(storage);
    findings.extend(sandbox());
    findings.push(keeper(inner));
    findings.extend(rates(inner));
    findings.push(egress(inner));
    findings.push(connection_tracking(inner));
    findings.extend(forwarding(inner));
    findings.push(template(inner, usable));
    findings.push(passage(inner));
    findings.push(browserd(inner));
    findings.push(free_space(inner));
    findings.push(free_memory());
    findings.push(clock());
    findings.push(leftovers(inner, datasets));
    findings
}

/// The checks themselves did not run.
pub(super) fn broken(error: &HostError) -> Finding {
    finding("checks", Severity::Error, chain(error), &error.hint)
}

fn finding(check: &str, severity: Severity, message: impl Into<String>, fix: &str) -> Finding {
    Finding { check: check.into(), severity, message: message.into(), fix: fix.into() }
}

fn good(check: &str, message: impl Into<String>) -> Finding {
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

/// What the overlay needs of the kernel, and how the clones' size is bounded on it.
pub(super) fn overlay(overlay: &Overlay) -> Vec<Finding> {
    let bound = match overlay.check_bound() {
        Ok(word) => good("storage", word),
        Err((why, fix)) => finding("storage", Severity::Error, why, fix),
    };
    vec![filesystem("overlay"), filesystem("tmpfs"), bound]
}

fn filesystem(kind: &str) -> Finding {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.split_whitespace().last() == Some(kind)) {
        return good(kind, format!("the kernel knows {kind}"));
    }
    match has_module(kind) {
        true => good(kind, format!("the kernel loads {kind} when it is needed")),
        false => finding(
            kind,
            Severity::Error,
            format!("the kernel does not know {kind}"),
            &format!("use a kernel that has it, or modprobe {kind}"),
        ),
    }
}

/// Whether the running kernel has a module for a file system, which the first mount loads.
fn has_module(kind: &str) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = Path::new("/lib/modules").join(release.trim()).join("modules.dep");
    let modules = std::fs::read_to_string(modules).unwrap_or_default();
    let file = format!("/{kind}.ko");
    modules.lines().filter_map(|line| line.split_once(':')).any(|(module, _)| module.contains(&file))
}

/// Every layer of the sandbox, found out by trying. Limits are hostd's own affair here.
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

fn keeper(inner: &LinuxHostState) -> Finding {
    match (&inner.keeper, inner.config.linux.limits) {
        (LimitBackend::Cgroup(parent), _) => {
            good("limits", format!("a cgroup per clone below {}", parent.display()))
        }
        (LimitBackend::Rlimits { why }, LimitsDemand::Available) => finding(
            "limits",
            Severity::Warning,
            format!(
                "{why}: a clone's memory and processor time are not bounded, only its processes and open files"
            ),
            "boot with systemd.unified_cgroup_hierarchy=1",
        ),
        (LimitBackend::Rlimits { why }, LimitsDemand::Cgroup) => finding(
            "limits",
            Severity::Error,
            why,
            "boot with systemd.unified_cgroup_hierarchy=1, or accept it: linux.limits = \"available\"",
        ),
    }
}

/// Limits in the configuration that nobody keeps here.
fn rates(inner: &LinuxHostState) -> Option<Finding> {
    let severity = match inner.config.linux.limits {
        _ if !limits::has_rates(&inner.config.clone_limits.grant(None)) => return None,
        LimitsDemand::Available => Severity::Warning,
        LimitsDemand::Cgroup => Severity::Error,
    };
    let fix = "remove read_bytes_per_second and write_bytes_per_second from [clone_limits]";
    Some(finding("rates", severity, limits::RATES, fix))
}

fn egress(inner: &LinuxHostState) -> Finding {
    match inner.egress.health() {
        Ok(EgressHealth::Ok) => {
            good("egress", format!("table inet {} is loaded and is the rendered one", inner.egress.table()))
        }
        Ok(_) => finding(
            "egress",
            Severity::Error,
            format!(
                "table inet {} is not the rendered one; the clones' links are down",
                inner.egress.table()
            ),
            "hostd loads it again by itself; find out who changes it: nft monitor",
        ),
        Err(error) => finding(
            "egress",
            Severity::Error,
            chain(&error),
            "apt install nftables; modprobe nf_tables nf_conntrack",
        ),
    }
}

/// Whether all clones together can fill the table that the host's own connections need too.
fn connection_tracking(inner: &LinuxHostState) -> Finding {
    const CHECK: &str = "connections";
    let path = "/proc/sys/net/netfilter/nf_conntrack_max";
    let text = std::fs::read_to_string(path);
    let Some(most) = text.as_ref().ok().and_then(|text| text.trim().parse::<u64>().ok()) else {
        return finding(CHECK, Severity::Warning, format!("{path} cannot be read"), "modprobe nf_conntrack");
    };
    let clones = inner.config.server.max_clones.min(inner.pool.slots().count() as u64);
    let (each, all) = (inner.egress.tracked_per_clone(), inner.egress.tracked_per_clone() * clones);
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

fn forwarding(inner: &LinuxHostState) -> Vec<Finding> {
    let mut wanted = vec![("net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward")];
    if inner.pool.subnet6().is_some() {
        wanted.push(("net.ipv6.conf.all.forwarding", "/proc/sys/net/ipv6/conf/all/forwarding"));
    }
    let check = |(name, path): (&str, &str)| match std::fs::read_to_string(path) {
        Ok(value) if value.trim() != "0" => good("forwarding", format!("{name} is on")),
        Ok(_) => finding(
            "forwarding",
            Severity::Error,
            format!("{name} is off: clones reach nothing"),
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

fn template(inner: &LinuxHostState, usable: HostResult<(PathBuf, String)>) -> Finding {
    let snapshot = &inner.config.host.snapshot;
    match usable {
        Ok((_, version)) => {
            good("template", format!("{} snapshot {snapshot}: {version}", inner.config.host.template))
        }
        Err(error) => finding("template", Severity::Error, chain(&error), &error.hint),
    }
}

/// A clone's processes are nobody special, and must be able to walk to the clone's folder.
fn passage(inner: &LinuxHostState) -> Finding {
    let clones = &inner.config.pool.clones_dir;
    match closed(clones) {
        None => good("passage", format!("the clones' users can reach {}", clones.display())),
        Some(folder) => finding(
            "passage",
            Severity::Error,
            format!("the clones' users cannot pass through {} to their files", folder.display()),
            &format!("chmod o+x {}", folder.display()),
        ),
    }
}

/// The first folder on the way that does not let everybody pass.
fn closed(path: &Path) -> Option<&Path> {
    let open = |folder: &Path| folder.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0);
    path.ancestors().find(|folder| !open(folder))
}

/// The program beside the browser, which the clones' users start.
fn browserd(inner: &LinuxHostState) -> Finding {
    let program = &inner.config.linux.browserd;
    let shown = program.display();
    let missing = |message: String, fix: &str| finding("browserd", Severity::Warning, message, fix);
    let without = "a clone's endpoint is its browser's debugging socket";
    let Ok(meta) = program.metadata() else {
        return match program.as_os_str().is_empty() {
            true => good("browserd", format!("linux.browserd is empty: {without}")),
            false => missing(
                format!("{shown} is not there: {without}"),
                "install browserd there, name another place in linux.browserd, or leave that empty",
            ),
        };
    };
    if meta.permissions().mode() & 0o005 != 0o005 {
        return finding(
            "browserd",
            Severity::Error,
            format!("the clones' users cannot run {shown}"),
            &format!("chmod 755 {shown}"),
        );
    }
    match closed(program) {
        None => good("browserd", format!("{shown} runs in every clone")),
        Some(folder) => finding(
            "browserd",
            Severity::Error,
            format!("the clones' users cannot pass through {} to {shown}", folder.display()),
            "install browserd elsewhere, for example in /usr/local/libexec",
        ),
    }
}

fn free_space(inner: &LinuxHostState) -> Finding {
    let folder = &inner.config.paths.state;
    match nix::sys::statvfs::statvfs(folder) {
        Ok(seen) => enough(
            "space",
            seen.blocks_available() * seen.fragment_size(),
            &folder.display().to_string(),
            "make room on that disk",
        ),
        Err(error) => finding(
            "space",
            Severity::Error,
            format!("{}: {error}", folder.display()),
            "look at the folder's file system",
        ),
    }
}

fn free_memory() -> Finding {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    // Also what clones write: it is kept in memory.
    match available {
        Some(kilobytes) => {
            enough("memory", kilobytes << 10, "memory", "end other programs, or lower server.max_clones")
        }
        None => finding(
            "memory",
            Severity::Warning,
            "the kernel does not tell how much memory is free",
            "look at /proc/meminfo",
        ),
    }
}

fn enough(check: &str, free: u64, place: &str, fix: &str) -> Finding {
    let message = format!("{} MiB are free in {place}", free >> 20);
    if free >= LEAST_FREE { good(check, message) } else { finding(check, Severity::Error, message, fix) }
}

fn clock() -> Finding {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    match now >= PLAUSIBLE_TIME {
        true => good("clock", "the clock is plausible"),
        false => {
            finding("clock", Severity::Error, "the clock was never set", "set it: timedatectl set-ntp true")
        }
    }
}

/// What is on the host of this pool's: all of it should belong to a clone that `hostctl ls` shows.
fn leftovers(inner: &LinuxHostState, datasets: HostResult<Datasets>) -> Finding {
    let seen = match datasets.and_then(|datasets| inner.inventory(datasets)) {
        Ok(seen) => seen,
        Err(error) => return finding("objects", Severity::Error, chain(&error), &error.hint),
    };
    let strange = strange_mounts(inner);
    if !strange.is_empty() {
        let fix = "hostctl reap takes away what is ours; unmount what is not";
        return finding(
            "objects",
            Severity::Warning,
            format!("mounts nobody claims: {}", strange.join(", ")),
            fix,
        );
    }
    let names: Vec<String> = seen.clones.keys().map(|slot| inner.pool.name(*slot).to_string()).collect();
    let message = match (names.as_slice(), seen.aside.len()) {
        ([], 0) => "no clone and nothing of one is on this host".to_owned(),
        (names, 0) => format!("of these slots something is here: {}", names.join(", ")),
        (names, aside) => {
            format!("of these slots something is here: {}; {aside} stores are aside", names.join(", "))
        }
    };
    good("objects", message)
}

/// Mounts in our folders that belong to no slot of the pool.
fn strange_mounts(inner: &LinuxHostState) -> Vec<String> {
    let Ok(all) = mounts::all() else { return Vec::new() };
    let clones =
        inner.config.pool.clones_dir.canonicalize().unwrap_or_else(|_| inner.config.pool.clones_dir.clone());
    let claimed = |path: &Path| {
        let inside = path.strip_prefix(&clones).unwrap_or(path);
        let mut parts = inside.components().map(|part| part.as_os_str().to_string_lossy());
        // The template of the ZFS driver is mounted beside its clones.
        let template = inner.config.host.template.as_str();
        parts.any(|part| inner.pool.slot_of_name(&part).is_some() || part == ".aside" || part == template)
    };
    let strange = mounts::below(&all, &clones).into_iter().filter(|mount| !claimed(&mount.at));
    strange.map(|mount| mount.at.display().to_string()).collect()
}
