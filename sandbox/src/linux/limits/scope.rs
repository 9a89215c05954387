//! A transient scope, created by systemd over D-Bus.
//!
//! An ordinary user owns no cgroup, but the user's systemd does and creates a scope for given
//! processes. A successful call is not trusted: the cgroup of the processes and its limits are read
//! back from the kernel.

use super::Unavailable;
use crate::Limits;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zbus::Variant;

const ROOT: &str = "/sys/fs/cgroup";
const TIMEOUT: Duration = Duration::from_secs(5);

/// Whether this machine can use scopes: it needs cgroup v2 and a D-Bus socket.
pub(crate) fn available() -> Result<(), Unavailable> {
    if !Path::new(ROOT).join("cgroup.controllers").exists() {
        return Err(Unavailable(format!("{ROOT} is not a cgroup v2 tree")));
    }
    let bus = bus_socket();
    if bus.exists() {
        return Ok(());
    }
    Err(Unavailable(format!("no D-Bus connection to systemd: {} does not exist", bus.display())))
}

/// The bus socket of the systemd that owns this process's cgroup.
fn bus_socket() -> PathBuf {
    let uid = nix::unistd::geteuid();
    if uid.is_root() {
        PathBuf::from("/run/dbus/system_bus_socket")
    } else {
        PathBuf::from(format!("/run/user/{uid}/bus"))
    }
}

/// A unique scope name.
pub(crate) fn new_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("sandbox-{}-{number}.scope", std::process::id())
}

/// Moves `pids` into a new scope with the limits.
pub(crate) fn move_into(name: &str, pids: &[u32], limits: &Limits) -> Result<(), Unavailable> {
    move_into_on(&bus_socket(), name, pids, limits, TIMEOUT)
}

fn move_into_on(
    bus: &Path,
    name: &str,
    pids: &[u32],
    limits: &Limits,
    timeout: Duration,
) -> Result<(), Unavailable> {
    // A separate thread, because the caller's may already run an asynchronous runtime.
    std::thread::scope(|scope| {
        scope
            .spawn(|| request_scope(bus, name, pids, limits))
            .join()
            .unwrap_or_else(|_| Err("the request to systemd panicked".to_owned()))
    })
    .map_err(|e| Unavailable(format!("systemd scope {name}: {e}")))?;
    pids.iter().try_for_each(|pid| wait_until_inside(*pid, name, timeout))?;
    verify(pids[0], name, limits)
}

fn request_scope(bus: &Path, name: &str, pids: &[u32], limits: &Limits) -> Result<(), String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let call = async {
        let address = format!("unix:path={}", bus.display());
        let connection = zbus::connection::Builder::address(address.as_str()).build().await?;
        start_transient_unit(&connection, name, pids, limits).await
    };
    runtime.block_on(async {
        match tokio::time::timeout(TIMEOUT, call).await {
            Ok(result) => result.map_err(|e| e.to_string()),
            Err(_) => Err(format!("no reply within {TIMEOUT:?}")),
        }
    })
}

async fn start_transient_unit(
    connection: &zbus::Connection,
    name: &str,
    pids: &[u32],
    limits: &Limits,
) -> zbus::Result<()> {
    let call = async |oom: OomPolicy| {
        connection
            .call_method(
                Some("org.freedesktop.systemd1"),
                "/org/freedesktop/systemd1",
                Some("org.freedesktop.systemd1.Manager"),
                "StartTransientUnit",
                &request(name, pids, limits, oom),
            )
            .await
            .map(drop)
    };
    match call(OomPolicy::Continue).await {
        // systemd before version 253 has no such property for scopes and continues by default.
        Err(error) if error.to_string().contains(OOM_POLICY) => call(OomPolicy::Unset).await,
        other => other,
    }
}

const OOM_POLICY: &str = "OOMPolicy";

/// What systemd does when the kernel kills a process of the scope at its memory limit. By default it
/// kills all others too, so one large page would end the whole browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OomPolicy {
    Continue,
    Unset,
}

type Properties<'a> = Vec<(&'static str, Variant<'a>)>;
type Auxiliary<'a> = Vec<(&'a str, Properties<'a>)>;

/// The arguments of `StartTransientUnit`: name, mode, properties, auxiliary units.
fn request<'a>(
    name: &'a str,
    pids: &'a [u32],
    limits: &Limits,
    oom: OomPolicy,
) -> (&'a str, &'static str, Properties<'a>, Auxiliary<'a>) {
    (name, "fail", properties(pids, limits, oom), Vec::new())
}

fn properties<'a>(pids: &'a [u32], limits: &Limits, oom: OomPolicy) -> Properties<'a> {
    let mut properties = vec![
        ("Description", Variant::from("confined program")),
        ("PIDs", Variant::from(pids)),
        // systemd removes a failed scope from its list.
        ("CollectMode", Variant::from("inactive-or-failed")),
    ];
    if oom == OomPolicy::Continue {
        properties.push((OOM_POLICY, Variant::from("continue")));
    }
    if let Some(bytes) = limits.memory_bytes {
        properties.push(("MemoryMax", Variant::from(bytes)));
        properties.push(("MemorySwapMax", Variant::from(0u64)));
    }
    if let Some(count) = limits.processes {
        properties.push(("TasksMax", Variant::from(u64::from(count))));
    }
    if let Some(percent) = limits.cpu_percent {
        // Microseconds of processor time per second.
        properties.push(("CPUQuotaPerSecUSec", Variant::from(u64::from(percent) * 10_000)));
    }
    properties
}

fn cgroup_of(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

fn wait_until_inside(pid: u32, name: &str, timeout: Duration) -> Result<(), Unavailable> {
    let deadline = Instant::now() + timeout;
    loop {
        let cgroup = cgroup_of(pid).unwrap_or_default();
        if cgroup.ends_with(&format!("/{name}")) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Unavailable(format!(
                "systemd reported success, but process {pid} is still in {cgroup:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Checks the limits in the kernel. A user's systemd ignores limits of controllers that are not
/// delegated to it.
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
                "systemd scope {name}: {file} is not set (is the controller delegated to the \
                 user?)"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    #[test]
    fn properties_use_the_units_of_systemd() {
        let limits = Limits {
            memory_bytes: Some(1 << 30),
            processes: Some(100),
            cpu_percent: Some(50),
            ..Limits::default()
        };
        let pids = [7, 8];
        let properties = properties(&pids, &limits, OomPolicy::Continue);
        let value = |name: &str| properties.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
        assert_eq!(value("OOMPolicy"), Some(&Variant::from("continue")));
        assert_eq!(value("PIDs"), Some(&Variant::from(&pids[..])));
        assert_eq!(value("MemoryMax"), Some(&Variant::from(1u64 << 30)));
        assert_eq!(value("MemorySwapMax"), Some(&Variant::from(0u64)));
        assert_eq!(value("TasksMax"), Some(&Variant::from(100u64)));
        assert_eq!(value("CPUQuotaPerSecUSec"), Some(&Variant::from(500_000u64)));
    }

    #[test]
    fn the_request_has_the_signature_of_start_transient_unit() {
        let limits = Limits::default();
        let message = zbus::Message::method_call("/org/freedesktop/systemd1", "StartTransientUnit")
            .build(&request("a.scope", &[1], &limits, OomPolicy::Continue))
            .expect("a message");
        // On the wire: the signature's length, the signature, NUL.
        let bytes: &[u8] = message.data();
        let wanted = b"\x10ssa(sv)a(sa(sv))\0";
        assert!(bytes.windows(wanted.len()).any(|part| part == wanted));
    }

    /// A private bus with a fake systemd on it.
    struct FakeSystemd {
        bus: std::process::Child,
        folder: tempfile::TempDir,
        heard: std::sync::mpsc::Receiver<Vec<u8>>,
    }

    impl FakeSystemd {
        /// Accepts every request, or rejects OOMPolicy like an old systemd.
        fn start(knows_oom_policy: bool) -> FakeSystemd {
            let folder = tempfile::tempdir().expect("folder");
            let socket = folder.path().join("bus");
            let address = format!("unix:path={}", socket.display());
            let bus = std::process::Command::new("dbus-daemon")
                .args(["--session", "--nofork", "--nosyslog"])
                .arg(format!("--address={address}"))
                .stderr(std::process::Stdio::null())
                .spawn()
                .expect("dbus-daemon (package dbus) is needed for this test");
            while !socket.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let (say, heard) = std::sync::mpsc::channel();
            let (ready, wait) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
                runtime.block_on(async {
                    let connection =
                        zbus::connection::Builder::address(address.as_str()).build().await.expect("connect");
                    let mut messages = zbus::MessageStream::from(&connection);
                    connection
                        .call_method(
                            Some("org.freedesktop.DBus"),
                            "/org/freedesktop/DBus",
                            Some("org.freedesktop.DBus"),
                            "RequestName",
                            &("org.freedesktop.systemd1", 4u32),
                        )
                        .await
                        .expect("own the name");
                    ready.send(()).expect("the test waits");
                    while let Some(Ok(message)) = messages.next().await {
                        if message.header().member().map(|m| m.as_str()) == Some("StartTransientUnit") {
                            let asked = String::from_utf8_lossy(message.data()).contains(OOM_POLICY);
                            say.send(message.data().to_vec()).expect("the test listens");
                            if asked && !knows_oom_policy {
                                let error = zbus::fdo::Error::PropertyReadOnly(
                                    "Cannot set property OOMPolicy, or unknown property.".into(),
                                );
                                connection.reply_dbus_error(&message.header(), error).await.expect("reply");
                            } else {
                                connection.reply(&message.header(), &()).await.expect("reply");
                            }
                        }
                    }
                });
            });
            wait.recv().expect("the fake systemd has started");
            FakeSystemd { bus, folder, heard }
        }
    }

    impl Drop for FakeSystemd {
        fn drop(&mut self) {
            self.bus.kill().expect("end the bus");
            self.bus.wait().expect("reap the bus");
        }
    }

    #[test]
    fn success_reported_by_systemd_is_verified() {
        let fake = FakeSystemd::start(true);
        let limits = Limits { memory_bytes: Some(1 << 30), ..Limits::default() };
        let socket = fake.folder.path().join("bus");
        let own = [std::process::id()];
        let timeout = Duration::from_millis(100);
        let Err(Unavailable(why)) = move_into_on(&socket, "a.scope", &own, &limits, timeout) else {
            panic!("nothing was moved anywhere");
        };
        assert!(why.contains("systemd reported success, but"), "{why}");
        let heard = fake.heard.recv().expect("the request arrived");
        let heard = String::from_utf8_lossy(&heard);
        for word in ["a.scope", "PIDs", "MemoryMax", "MemorySwapMax", "OOMPolicy"] {
            assert!(heard.contains(word), "{word}");
        }
        assert!(fake.heard.try_recv().is_err(), "only one request is sent");
    }

    #[test]
    fn an_old_systemd_gets_a_second_request_without_oom_policy() {
        let fake = FakeSystemd::start(false);
        let socket = fake.folder.path().join("bus");
        let own = [std::process::id()];
        let result = move_into_on(&socket, "a.scope", &own, &Limits::default(), Duration::from_millis(100));
        let Err(Unavailable(why)) = result else { panic!("nothing was moved anywhere") };
        assert!(why.contains("systemd reported success, but"), "{why}");
        let hear = || {
            let heard = fake.heard.recv().expect("a request");
            String::from_utf8_lossy(&heard).contains(OOM_POLICY)
        };
        assert_eq!([hear(), hear()], [true, false]);
    }

    #[test]
    fn a_missing_bus_is_reported() {
        let limits = Limits::default();
        let gone = Path::new("/nonexistent/bus");
        let Err(Unavailable(why)) = move_into_on(gone, "a.scope", &[1], &limits, TIMEOUT) else {
            panic!("there is no bus");
        };
        assert!(why.contains("a.scope"), "{why}");
    }

    #[test]
    fn scope_names_are_unique() {
        assert_ne!(new_name(), new_name());
        assert!(new_name().ends_with(".scope"));
    }
}
