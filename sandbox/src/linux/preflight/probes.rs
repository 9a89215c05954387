//! The probes of the preflight.

use super::{Distribution, Outcome, Probe, Report};
use crate::linux::{bubblewrap, embedded, fixes, limits, stages};
use crate::{Error, FileRule, HostFacts, Launch, Layer, Policy, Program, Stdio, error_chain};
use kernel::user_ids;
use sandbox_inside::linux::sys;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

pub(super) fn run(given: Option<&Path>, abi: u8, distribution: Distribution) -> Report {
    let found = bubblewrap::find(given);
    let mut probes = vec![bubblewrap_probe(&found)];
    let path = found.ok();
    let version = path.as_deref().and_then(version_of);
    probes.push(memory_program());
    probes.push(user_namespaces(distribution));
    probes.push(capabilities_in_namespaces(distribution));
    probes.extend(apparmor(distribution));
    let landlock_abi = sys::landlock_abi();
    probes.push(landlock(landlock_abi, abi, distribution));
    probes.push(seccomp());
    probes.push(limit_enforcer());
    if let Some(path) = &path {
        probes.push(whole_launch(path, abi));
        probes.push(nested_user_namespaces(path, abi, distribution));
    }
    Report { distribution, bubblewrap: path, bubblewrap_version: version, landlock_abi, probes }
}

fn probe(name: &'static str, layer: Layer, result: Result<String, (String, Option<String>)>) -> Probe {
    let (outcome, found, fix) = match result {
        Ok(found) => (Outcome::Good, found, None),
        Err((found, fix)) => (Outcome::Bad, found, fix),
    };
    Probe { name, layer, outcome, found, fix }
}

fn bubblewrap_probe(found: &Result<PathBuf, Error>) -> Probe {
    let result = match found {
        Ok(path) => Ok(match version_of(path) {
            Some(version) => {
                format!("{} version {version}, not setuid, not writable by other users", path.display())
            }
            None => format!("{}, of unknown version", path.display()),
        }),
        Err(Error::Layer { reason, fix, .. }) => Err((reason.clone(), fix.clone())),
        Err(other) => Err((error_chain(other), None)),
    };
    probe("bubblewrap", Layer::Bubblewrap, result)
}

/// "bubblewrap 0.8.0" → "0.8.0".
fn version_of(path: &Path) -> Option<String> {
    let mut child = Command::new(path)
        .arg("--version")
        .env_clear()
        .current_dir("/")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .ok()?;
    // One line fits into the pipe, so the program can end before it is read.
    wait_for(&mut child).ok()?;
    let mut text = String::new();
    child.stdout.take()?.read_to_string(&mut text).ok()?;
    Some(text.split_whitespace().nth(1)?.to_owned())
}

/// Waits for a child for a few seconds, then kills it.
fn wait_for(child: &mut Child) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => return Ok(status),
            None if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("did not end within 5 seconds".to_owned());
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Runs one check of the stages' `check` mode.
fn run_check(question: &str) -> Result<(), String> {
    let user = user_ids::of_preflight(std::process::id()).to_string();
    let mut words = vec!["check", question];
    if nix::unistd::geteuid().is_root() {
        words.push(&user);
    }
    let (mut child, _socket) = stages::start(&words).map_err(|e| error_chain(&e))?;
    let status = wait_for(&mut child)?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(std::io::Error::from_raw_os_error(code).to_string()),
        None => Err(status.to_string()),
    }
}

fn memory_program() -> Probe {
    let result = match run_check("start") {
        Ok(()) => Ok("programs can be executed from sealed memory files".to_owned()),
        Err(why) => Err((
            format!("a program in a memory file cannot be executed: {why}"),
            Some(fixes::memory_programs()),
        )),
    };
    probe("memory-program", Layer::Bubblewrap, result)
}

fn setting(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn user_namespaces(distribution: Distribution) -> Probe {
    let result =
        run_check("user-namespace").map(|()| "an ordinary user can create them".to_owned()).map_err(|why| {
            let settings = [
                "/proc/sys/kernel/unprivileged_userns_clone",
                "/proc/sys/user/max_user_namespaces",
                "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            ];
            let values: Vec<String> =
                settings.iter().filter_map(|path| Some(format!("{path} is {}", setting(path)?))).collect();
            (
                format!("an ordinary user cannot create them: {why} ({})", values.join(", ")),
                Some(fixes::allow_user_namespaces(distribution)),
            )
        });
    probe("user-namespaces", Layer::Bubblewrap, result)
}

/// Ubuntu allows user namespaces but removes the capabilities in them.
fn capabilities_in_namespaces(distribution: Distribution) -> Probe {
    let result = run_check("capabilities")
        .map(|()| "a user namespace has capabilities inside".to_owned())
        .map_err(|why| {
            (
                format!("a user namespace has no capabilities inside: {why}"),
                Some(fixes::allow_nested_user_namespaces(distribution)),
            )
        });
    probe("user-namespace-capabilities", Layer::Bubblewrap, result)
}

fn apparmor(distribution: Distribution) -> Option<Probe> {
    let restricted = setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")? == "1";
    let profile = Path::new("/etc/apparmor.d/bwrap-userns-restrict").exists();
    let found = match (restricted, profile) {
        (false, _) => return None,
        (true, false) => "restricts user namespaces of programs without a profile",
        (true, true) => {
            "restricts user namespaces; bubblewrap's profile (bwrap-userns-restrict) \
                         removes capabilities from its children, so nested sandboxes fail"
        }
    };
    Some(Probe {
        name: "apparmor",
        layer: Layer::Bubblewrap,
        outcome: Outcome::Note,
        found: found.to_owned(),
        fix: Some(fixes::allow_nested_user_namespaces(distribution)),
    })
}

fn landlock(kernel: u8, wanted: u8, distribution: Distribution) -> Probe {
    let result = if kernel >= wanted {
        Ok(format!("ABI {kernel}, {wanted} is needed"))
    } else {
        Err((
            match kernel {
                0 => "not in this kernel, or not switched on".to_owned(),
                abi => format!("ABI {abi}, {wanted} is needed"),
            },
            Some(fixes::landlock(distribution, wanted)),
        ))
    };
    probe("landlock", Layer::Landlock, result)
}

fn seccomp() -> Probe {
    let result = sys::seccomp_available()
        .map(|()| "filters can be installed".to_owned())
        .map_err(|e| (format!("filters cannot be installed: {e}"), Some(fixes::seccomp())));
    probe("seccomp", Layer::Seccomp, result)
}

/// A failure is only a note: policies without cgroup limits need no scope, and daemons have a cgroup.
fn limit_enforcer() -> Probe {
    let (outcome, found, fix) = match limits::scopes_available() {
        Ok(()) => (Outcome::Good, "systemd can enforce them with scopes".to_owned(), None),
        Err(limits::Unavailable(why)) => (Outcome::Note, why, Some(fixes::limits())),
    };
    Probe { name: "limits", layer: Layer::Limits, outcome, found, fix }
}

/// A launch with every layer required; `question` is the check that runs inside.
fn launch(bubblewrap: &Path, abi: u8, question: &str) -> Result<(i32, String), Error> {
    let mut policy = Policy::new("preflight");
    policy.landlock.abi = abi;
    policy.files = vec![FileRule::temporary("/tmp", 1 << 20), FileRule::temporary("/dev/shm", 1 << 20)];
    policy.identity.host_uid =
        nix::unistd::geteuid().is_root().then(|| user_ids::of_preflight(std::process::id()));
    let program = Program { path: "/preflight".into(), arguments: vec![question.to_owned()] };
    let plan = policy.plan(&HostFacts::gather(&policy)?, &program)?;
    let failed = |source| Error::Io { what: "communicate with the program inside".to_owned(), source };
    let (mut reader, writer) = std::io::pipe().map_err(failed)?;
    let mut sandbox = Launch::new(plan)
        .bubblewrap(bubblewrap)
        .executable(embedded::probe()?)
        .stdout(Stdio::Descriptor(writer.into()))
        .spawn()?;
    let status = sandbox.wait_timeout(Duration::from_secs(10)).map_err(failed)?;
    drop(sandbox);
    let mut text = String::new();
    reader.read_to_string(&mut text).map_err(failed)?;
    Ok((status.and_then(|s| s.code()).unwrap_or(255), text.trim().to_owned()))
}

fn whole_launch(bubblewrap: &Path, abi: u8) -> Probe {
    let result = match launch(bubblewrap, abi, "nothing") {
        Ok((0, _)) => Ok("a program was started with every layer enforced".to_owned()),
        Ok((status, text)) => Err((format!("the program ended with {status}: {text}"), None)),
        Err(Error::Layer { layer, reason, fix }) => Err((format!("layer {layer}: {reason}"), fix)),
        Err(other) => Err((error_chain(&other), None)),
    };
    probe("whole-launch", Layer::Bubblewrap, result)
}

/// Does what Chromium's own sandbox does: creates a user namespace, then an empty root folder.
fn nested_user_namespaces(bubblewrap: &Path, abi: u8, distribution: Distribution) -> Probe {
    let fix = Some(fixes::allow_nested_user_namespaces(distribution));
    let result = match launch(bubblewrap, abi, "nested-sandbox") {
        Ok((0, _)) => Ok("a program inside can create its own sandbox".to_owned()),
        Ok((_, text)) => Err((format!("a program inside cannot create its own sandbox: {text}"), fix)),
        Err(other) => Err((format!("could not be tested: {}", error_chain(&other)), None)),
    };
    probe("nested-user-namespaces", Layer::Bubblewrap, result)
}
