//! Everything that is decided before a browser starts: executable, switches, folders and sandbox policy.
//!
//! Building a blueprint checks the request and prepares folders; it starts nothing.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;
use sandbox::{DeviceRule, FileRule, HostFacts, Layer, Network, Policy, Program, Requirement, SandboxPlan};

use crate::LaunchError;
use crate::chromium::{Chromium, Flavor};
use crate::config::{Config, NetworkMode, OnMissing};
use crate::display::Display;
use crate::egress::{EgressRules, Upstream};
use crate::flags::Flags;
use crate::folders::{self, PrivateUid, Purpose};
use crate::paths::PathMap;
use crate::runfolder::RunFolder;

/// The browser's home inside; in memory, lost when the browser ends.
const HOME: &str = "/home/browser";
/// The browser's folder for temporary files. There is no `/tmp` inside, so that writing a file to the host's `/tmp`
/// fails instead of being lost with the sandbox.
const TEMPORARY: &str = HOME;
/// The profile's path inside. It is fixed, so the browser learns no path of the host.
pub(crate) const PROFILE: &str = "/home/browser/profile";
/// The folder inside for downloads whose target folder the browser does not see.
pub(crate) const STAGING: &str = "/media/downloads";
/// The folder inside for copies of files that a client gives to pages.
pub(crate) const UPLOADS: &str = "/media/uploads";
/// Stagehand loads an extension into the browser, which connects to the browser's own debugging port. Chromium derives the
/// origin from the path of the extension, here `UPLOADS/0/extension`: the first folder that the client names. It is
/// permitted if the client asks to permit every origin, which the launcher does not.
const STAGEHANDS_ORIGIN: &str = "chrome-extension://dgkmdldhnedmikiklblfamojdfpepddm";
/// The port of the egress proxy inside. The network namespace is the browser's own, so no port is taken.
const PROXY_PORT: u16 = 3128;

/// How the caller communicates with the browser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Debugging {
    /// Over a pipe.
    #[default]
    Pipe,
    /// Over a TCP port of the loopback interface; 0 for any free one.
    Port(u16),
    /// Not at all: a command of headless Chromium (`--screenshot`, `--dump-dom`), which excludes debugging.
    Command,
}

impl Debugging {
    /// Removes the debugging switches, because the launcher sets them itself.
    pub(crate) fn take_from(flags: &mut Flags) -> Result<Debugging, LaunchError> {
        let port = flags.take("remote-debugging-port");
        let pipe = flags.take("remote-debugging-pipe");
        match (pipe, port) {
            (Some(_), Some(_)) => Err(LaunchError::Argument(
                "--remote-debugging-pipe and --remote-debugging-port exclude each other".into(),
            )),
            (Some(format), None) if !format.is_empty() && !format.eq_ignore_ascii_case("json") => {
                Err(LaunchError::Argument(format!(
                    "--remote-debugging-pipe={format}: only JSON messages are supported"
                )))
            }
            (Some(_), None) => Ok(Debugging::Pipe),
            (None, Some(text)) => match text.parse() {
                Ok(port) => Ok(Debugging::Port(port)),
                Err(_) => {
                    Err(LaunchError::Argument(format!("--remote-debugging-port={text}: not a port number")))
                }
            },
            (None, None) if ["screenshot", "print-to-pdf", "dump-dom"].iter().any(|name| flags.has(name)) => {
                Ok(Debugging::Command)
            }
            (None, None) => Ok(Debugging::Pipe),
        }
    }
}

/// What the caller requested; everything else comes from the configuration.
#[derive(Debug, Default)]
pub(crate) struct LaunchRequest {
    pub(crate) flags: Flags,
    pub(crate) debugging: Debugging,
    /// The profile; overrides the switch `--user-data-dir`.
    pub(crate) profile: Option<PathBuf>,
    pub(crate) flavor: Option<Flavor>,
    pub(crate) host_uid: Option<u32>,
    /// The caller prepared a filtered network namespace (mode `filtered`).
    pub(crate) filtered: bool,
    /// The DNS resolver in that namespace; without one the browser resolves no names.
    pub(crate) resolver: Option<std::net::IpAddr>,
    /// Open files of one process; defaults to the sandbox's own limit.
    pub(crate) open_files: Option<u64>,
    /// Support folders for downloads and files for pages that the browser does not see; clients name them in messages.
    pub(crate) stage_files: bool,
    /// Nothing will be started: folders keep their owner and are not locked.
    pub(crate) only_explain: bool,
}

/// What will be started, and the resources that it needs until it ends.
#[derive(Debug)]
pub(crate) struct Blueprint {
    pub(crate) chromium: Chromium,
    pub(crate) policy: Policy,
    pub(crate) program: Program,
    pub(crate) debugging: Debugging,
    /// The profile on the host; `None` when it is in memory.
    pub(crate) profile: Option<PathBuf>,
    /// The host's side of `STAGING` and `UPLOADS`.
    pub(crate) staging: Option<Staging>,
    /// Folders that the browser may write to, at the same path inside and outside.
    pub(crate) shared: Vec<PathBuf>,
    pub(crate) shown: Shown,
    /// The caller's own proxy, which the launcher's proxy uses.
    pub(crate) upstream: Option<Upstream>,
    pub(crate) notices: Vec<String>,
    /// Locks and files that are released on drop.
    _held: Vec<HeldResource>,
}

/// Paths of the host that the browser's user cannot follow, because they lead through a folder of root, and where
/// bubblewrap sees them instead.
#[derive(Debug, Default)]
pub(crate) struct Shown(pub(crate) Vec<(PathBuf, PathBuf)>);

impl Shown {
    /// Where bubblewrap sees a path.
    fn source<'a>(&'a self, path: &'a Path) -> &'a Path {
        self.0.iter().find(|(hidden, _)| hidden == path).map_or(path, |(_, point)| point)
    }
}

/// The folders of the host that files pass through on their way out of the sandbox and into it.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    pub(crate) downloads: PathBuf,
    pub(crate) uploads: PathBuf,
}

#[derive(Debug)]
#[allow(dead_code, reason = "held until drop")]
enum HeldResource {
    Uid(PrivateUid),
    Folder(Flock<OwnedFd>),
    Run(RunFolder),
}

impl Blueprint {
    pub(crate) fn new(config: &Config, request: LaunchRequest) -> Result<Blueprint, LaunchError> {
        let mut flags = request.flags;
        let mut notices = std::mem::take(&mut flags.notices);
        let wanted = request.flavor.unwrap_or(if flags.value("headless") == Some("old") {
            Flavor::HeadlessShell
        } else {
            Flavor::Full
        });
        let chromium = Chromium::find(config.browser.as_deref(), wanted)?;
        let debugging = request.debugging;
        let headless = chromium.flavor == Flavor::HeadlessShell || flags.has("headless");

        let mut writable = Writable::default();
        let named = flags.take("user-data-dir").filter(|path| !path.is_empty()).map(PathBuf::from);
        let profile = match request.profile.or(named) {
            Some(path) => Some(writable.add(&path, Purpose::Profile)?),
            None => None,
        };
        for folder in config.media.iter().chain(&config.downloads).chain(&config.extra_bind) {
            writable.add(folder, Purpose::Files)?;
        }
        let shared: Vec<PathBuf> =
            writable.folders.iter().filter(|path| Some(*path) != profile.as_ref()).cloned().collect();
        let media = match &config.media {
            Some(media) => Some(
                media
                    .canonicalize()
                    .map_err(|source| LaunchError::Io { what: media.display().to_string(), source })?,
            ),
            None => None,
        };
        let inside = PathMap {
            profile: profile.as_deref(),
            shared: &shared,
            readable: &config.extra_ro_bind,
            working: media.as_deref(),
        };
        inside.rewrite_paths(&mut flags)?;
        let upstream = match (config.network, request.filtered) {
            // The browser itself uses it.
            (NetworkMode::Host, false) => None,
            (mode, filtered) => take_upstream(&mut flags, config, filtered || mode == NetworkMode::None)?,
        };

        let mut policy = Policy::new("browser");
        let mut held = Vec::new();
        if nix::unistd::geteuid().is_root() {
            let uid = match request.host_uid {
                Some(uid) => uid,
                None => {
                    let private = PrivateUid::take()?;
                    let uid = private.uid;
                    held.push(HeldResource::Uid(private));
                    uid
                }
            };
            policy.identity.host_uid = Some(uid);
            if !request.only_explain {
                for folder in &writable.folders {
                    let lock = folders::lock(folder)?;
                    folders::change_owner(&lock, folder, uid)?;
                    held.push(HeldResource::Folder(lock));
                }
            }
        } else if let (Some(profile), false) = (&profile, request.only_explain) {
            held.push(HeldResource::Folder(folders::lock(profile)?));
        }
        let sources = writable.folders.iter().chain(&config.extra_ro_bind);
        let hidden: Vec<&PathBuf> = match policy.identity.host_uid {
            Some(uid) if !request.only_explain => {
                sources.filter(|path| !folders::can_reach(path, uid)).collect()
            }
            _ => Vec::new(),
        };
        let run_folder = match request.stage_files || !headless || !hidden.is_empty() {
            true => Some(RunFolder::new(policy.identity.host_uid).map_err(in_run_folder)?),
            false => None,
        };
        let staging = match &run_folder {
            Some(folder) if request.stage_files => Some(Staging {
                downloads: folder.subfolder("downloads").map_err(in_run_folder)?,
                uploads: folder.mount_point("uploads", true).map_err(in_run_folder)?,
            }),
            _ => None,
        };
        let mut shown = Shown::default();
        for (number, path) in hidden.into_iter().enumerate() {
            let folder = run_folder.as_ref().expect("made for hidden folders");
            let point =
                folder.mount_point(&format!("host-{number}"), path.is_dir()).map_err(in_run_folder)?;
            shown.0.push((path.clone(), point));
        }

        policy.network = match (config.network, request.filtered) {
            (_, true) => Network::Filtered,
            (NetworkMode::None, _) => Network::None,
            (NetworkMode::Proxy, _) if debugging == Debugging::Port(PROXY_PORT) => {
                Network::Proxy { port: PROXY_PORT + 1 }
            }
            (NetworkMode::Proxy, _) => Network::Proxy { port: PROXY_PORT },
            (NetworkMode::Host, _) => Network::Host,
        };
        if policy.network == Network::Host {
            notices.push(
                "network = \"host\": the browser reaches everything on this machine and its networks".into(),
            );
        }
        policy.files = browser_files(&chromium.executable);
        // In mode `proxy` the proxy outside resolves names.
        if policy.network == Network::Host {
            policy.files.extend(["/etc/resolv.conf", "/etc/hosts"].map(FileRule::read_only_if_present));
        }
        if request.filtered {
            // The host's resolver and names belong to another network.
            let resolver = request.resolver.map(|address| format!("nameserver {address}\n"));
            policy.files.push(FileRule::synthetic("/etc/resolv.conf", resolver.unwrap_or_default()));
            policy.files.push(FileRule::synthetic("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"));
        }
        policy.files.extend(FileRule::identity_files(&policy.identity, "browser", HOME));
        policy.files.push(FileRule::temporary("/dev/shm", 1 << 30));
        policy.files.push(FileRule::temporary(HOME, 1 << 30));
        if let Some(profile) = &profile {
            policy.files.push(FileRule::writable(shown.source(profile), PROFILE));
        }
        if let Some(staging) = &staging {
            policy.files.push(FileRule::writable(&staging.downloads, STAGING));
            policy.files.push(FileRule::ReadOnly {
                path: UPLOADS.into(),
                source: Some(staging.uploads.clone()),
                execute: false,
                optional: false,
            });
        }
        policy.files.extend(shared.iter().map(|folder| FileRule::writable(shown.source(folder), folder)));
        policy.files.extend(config.extra_ro_bind.iter().map(|path| FileRule::ReadOnly {
            path: path.clone(),
            source: Some(shown.source(path).to_owned()),
            execute: false,
            optional: false,
        }));
        policy.working_folder = media.unwrap_or_else(|| HOME.into());
        policy.environment = environment();
        policy.limits.memory_bytes = config.memory_mib.map(|mib| mib << 20);
        policy.limits.processes = config.max_processes;
        policy.limits.cpu_percent = config.cpu_percent;
        policy.limits.open_files = request.open_files.unwrap_or(policy.limits.open_files);
        if config.on_missing == OnMissing::Warn {
            for layer in Layer::ALL.into_iter().filter(|layer| layer.may_be_missing()) {
                policy.layers.set(layer, Requirement::Optional);
            }
        }
        if let (false, Some(folder)) = (headless, &run_folder) {
            let display = Display::from_environment()?;
            notices.extend(display.notice());
            let (rules, variables) = display.grant(HOME, folder)?;
            policy.files.extend(rules);
            policy.environment.extend(variables);
        }
        held.extend(run_folder.map(HeldResource::Run));
        let gpu = config.gpu && Path::new("/dev/dri").exists();
        if gpu {
            policy.devices.push(DeviceRule { path: "/dev/dri".into(), optional: false });
            // Graphics drivers identify the card here.
            policy.files.extend(["/sys/dev/char", "/sys/devices"].map(FileRule::read_only_if_present));
        } else if config.gpu {
            notices.push("gpu = true, but this machine has no /dev/dri; pages are drawn in software".into());
        }

        add_switches(&mut flags, &chromium, debugging, &policy.network, gpu);
        let program = Program { path: chromium.executable.clone(), arguments: flags.to_arguments() };
        Ok(Blueprint {
            chromium,
            policy,
            program,
            debugging,
            profile,
            staging,
            shared,
            shown,
            upstream,
            notices,
            _held: held,
        })
    }

    pub(crate) fn plan(&self) -> Result<SandboxPlan, LaunchError> {
        let facts = HostFacts::gather(&self.policy)?;
        Ok(self.policy.plan(&facts, &self.program).map_err(sandbox::Error::from)?)
    }
}

/// Removes the caller's proxy from the switches, because the browser uses the launcher's.
fn take_upstream(
    flags: &mut Flags,
    config: &Config,
    without_proxy: bool,
) -> Result<Option<Upstream>, LaunchError> {
    let bypass = flags.take("proxy-bypass-list").unwrap_or_default();
    let Some(server) = flags.take("proxy-server") else {
        return Ok(None);
    };
    let refused = |problem: String| LaunchError::Argument(format!("--proxy-server={server}: {problem}"));
    let Some(upstream) = Upstream::from_switches(&server, &bypass).map_err(refused)? else {
        return Ok(None);
    };
    if without_proxy {
        return Err(refused("the launcher has no proxy in this network mode".into()));
    }
    let hint =
        format!("; add \"{}\" to `allow` in the configuration if the browser may use it", upstream.target);
    upstream
        .check(&EgressRules::new(config.allow.clone()))
        .map_err(|denial| refused(format!("{denial}{hint}")))?;
    Ok(Some(upstream))
}

/// The folders of the host that become writable, checked and without duplicates.
#[derive(Default)]
struct Writable {
    folders: Vec<PathBuf>,
}

impl Writable {
    fn add(&mut self, path: &Path, purpose: Purpose) -> Result<PathBuf, LaunchError> {
        let real = folders::prepare(path, purpose)?;
        if !self.folders.contains(&real) {
            self.folders.push(real.clone());
        }
        Ok(real)
    }
}

fn in_run_folder(source: std::io::Error) -> LaunchError {
    LaunchError::Io { what: "the folder of this run".into(), source }
}

/// The host files that a browser needs to show pages, read-only. The caller adds resolver, identity and writable
/// folders.
pub fn browser_files(executable: &Path) -> Vec<FileRule> {
    let mut files = FileRule::system_programs();
    files.extend(site_folders(executable).into_iter().map(FileRule::hidden));
    if let Some(folder) = executable.parent().filter(|folder| !folder.starts_with("/usr")) {
        files.push(FileRule::programs(folder));
    }
    let read = [
        "/etc/fonts",
        // Caches. Without them every process searches for its libraries and the first one reads every system font.
        "/etc/ld.so.cache",
        "/var/cache/fontconfig",
        "/etc/localtime",
        "/etc/ssl/certs",
        "/etc/pki/tls/certs",
        "/etc/pki/ca-trust",
        "/etc/ca-certificates",
        // The administrator's policies for all browsers on this machine.
        "/etc/chromium/policies",
        "/etc/opt/chrome/policies",
    ];
    files.extend(read.map(FileRule::read_only_if_present));
    files
}

/// Local additions below `/usr` to hide: except for fonts they are not needed to show pages, and may be private.
fn site_folders(executable: &Path) -> Vec<PathBuf> {
    let is_filled = |folder: &Path| folder.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    let mut hidden = Vec::new();
    for folder in ["/usr/local", "/usr/src"].map(Path::new) {
        if !is_filled(folder) || executable.starts_with(folder) {
            continue;
        }
        let fonts = folder.join("share/fonts");
        if is_filled(&fonts) {
            hidden.extend(others_in(folder, "share"));
            hidden.extend(others_in(&folder.join("share"), "fonts"));
        } else {
            hidden.push(folder.to_owned());
        }
    }
    hidden
}

/// Everything in a folder except one entry. Links are skipped: their targets are hidden or shown at their own path.
fn others_in(folder: &Path, except: &str) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let others = entries.filter(|entry| {
        entry.file_name() != except && entry.file_type().is_ok_and(|kind| !kind.is_symlink())
    });
    others.map(|entry| entry.path()).collect()
}

fn environment() -> BTreeMap<String, String> {
    let fixed = [
        ("HOME", HOME),
        ("LANG", "C.UTF-8"),
        ("PATH", "/usr/bin:/bin"),
        ("TMPDIR", TEMPORARY),
        ("XDG_RUNTIME_DIR", TEMPORARY),
    ];
    fixed.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Adds the switches that the launcher requires, and the defaults that a caller may override.
fn add_switches(flags: &mut Flags, chromium: &Chromium, debugging: Debugging, network: &Network, gpu: bool) {
    flags.set("user-data-dir", Some(PROFILE));
    let client_in_the_browser = flags.left_out.iter().any(|name| name == "remote-allow-origins");
    if debugging != Debugging::Command {
        // The launcher's own channel, also used together with a port.
        flags.set("remote-debugging-pipe", None);
    }
    if let Debugging::Port(port) = debugging {
        flags.set("remote-debugging-port", Some(&port.to_string()));
        // Some clients send the port's own address as their origin. No page has it.
        let origins = format!("http://127.0.0.1:{port},http://localhost:{port}");
        match client_in_the_browser {
            true => flags.set("remote-allow-origins", Some(&format!("{origins},{STAGEHANDS_ORIGIN}"))),
            false => flags.set("remote-allow-origins", Some(&origins)),
        }
    }
    if let Network::Proxy { port } = network {
        flags.set("proxy-server", Some(&format!("http://127.0.0.1:{port}")));
        // Without this Chromium dials loopback addresses directly, where nothing listens except its own port.
        match debugging {
            Debugging::Port(own) if client_in_the_browser => {
                flags.set("proxy-bypass-list", Some(&format!("<-loopback>;127.0.0.1:{own}")));
            }
            _ => flags.set("proxy-bypass-list", Some("<-loopback>")),
        }
        flags.set_default("force-webrtc-ip-handling-policy", Some("disable_non_proxied_udp"));
    }
    if chromium.flavor == Flavor::HeadlessShell {
        flags.take("headless");
    }
    if !gpu {
        // WebGL in software; Chromium no longer falls back to it automatically.
        flags.set_default("enable-unsafe-swiftshader", None);
    }
    // No background activity.
    for name in [
        "disable-background-networking",
        "disable-breakpad",
        "disable-client-side-phishing-detection",
        "disable-component-update",
        "disable-crash-reporter",
        "disable-default-apps",
        "disable-domain-reliability",
        "disable-quic",
        "disable-sync",
        "metrics-recording-only",
        "no-default-browser-check",
        "no-first-run",
        "no-pings",
        "use-mock-keychain",
    ] {
        flags.set_default(name, None);
    }
    flags.set_default("password-store", Some("basic"));
    for feature in ["MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints"] {
        flags.add_to_list("disable-features", feature);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Strictness;

    fn flags(arguments: &[&str]) -> Flags {
        Flags::parse(arguments, Strictness::Refuse).expect("harmless")
    }

    #[test]
    fn debugging_mode_is_read_from_the_switches() {
        let read = |arguments: &[&str]| Debugging::take_from(&mut flags(arguments));
        assert_eq!(read(&["--remote-debugging-pipe"]).expect("pipe"), Debugging::Pipe);
        assert_eq!(read(&["--remote-debugging-port=0"]).expect("port"), Debugging::Port(0));
        assert_eq!(read(&["--headless", "--dump-dom"]).expect("command"), Debugging::Command);
        assert_eq!(read(&[]).expect("default"), Debugging::Pipe);
        for wrong in
            ["--remote-debugging-port=x", "--remote-debugging-port=-1", "--remote-debugging-pipe=cbor"]
        {
            assert!(read(&[wrong]).is_err(), "{wrong}");
        }
        assert!(read(&["--remote-debugging-pipe", "--remote-debugging-port=1"]).is_err());
    }
}
