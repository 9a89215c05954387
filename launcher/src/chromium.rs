//! Finds the browser's real executable, not a wrapper script.
//!
//! Distributions install a script in `/usr/bin` that reads files and variables before it starts the browser. Inside a
//! sandbox it would need a shell and its configuration; outside it could add switches after the filter. So known
//! scripts are resolved to the executable that they start.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

/// The build of the browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flavor {
    /// The full browser; can be headed.
    Full,
    /// `headless_shell`: no windows, a third of the start-up cost.
    HeadlessShell,
}

/// A browser executable on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chromium {
    /// The real executable, symlinks resolved.
    pub executable: PathBuf,
    pub flavor: Flavor,
}

#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error(
        "no Chromium, Chrome or headless_shell found in the usual locations; install one (Debian: `apt install chromium`, Fedora: `dnf install chromium`, Arch: `pacman -S chromium`) or name it with `browser` in the configuration or CHROME_EXECUTABLE_PATH"
    )]
    NotFound,
    #[error("the browser {path} (from {origin}) cannot be used: {problem}")]
    Unusable { path: PathBuf, origin: &'static str, problem: String },
}

/// The usual locations of the real executables, best first.
const FULL: &[&str] = &[
    "/usr/lib/chromium/chromium",                   // Debian, Arch
    "/usr/lib64/chromium-browser/chromium-browser", // Fedora
    "/usr/lib/chromium-browser/chromium-browser",   // older Debian derivatives
    "/opt/google/chrome/chrome",
    "/opt/google/chrome-beta/chrome",
    "/opt/google/chrome-unstable/chrome",
    "/opt/chromium.org/chromium/chrome",
];
const HEADLESS_SHELL: &[&str] = &[
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib64/chromium-browser/headless_shell",
    "/usr/lib/chromium/headless_shell",
    "/opt/headless-shell/headless-shell",
    "/headless-shell/headless-shell",
];

/// Wrapper scripts of distributions, and the executables that they start.
const WRAPPERS: &[(&str, &[&str])] = &[
    ("chromium-headless-shell", HEADLESS_SHELL),
    ("headless_shell", HEADLESS_SHELL),
    ("chromium", FULL),
    ("chromium-browser", FULL),
    ("google-chrome", &["/opt/google/chrome/chrome"]),
    ("google-chrome-stable", &["/opt/google/chrome/chrome"]),
    ("google-chrome-beta", &["/opt/google/chrome-beta/chrome"]),
    ("google-chrome-unstable", &["/opt/google/chrome-unstable/chrome"]),
];

impl Chromium {
    /// The browser to use: the configured one, else `CHROME_EXECUTABLE_PATH`, else `CHROME_BIN`, else the first in the
    /// usual locations, preferably of the wanted flavor.
    pub fn find(configured: Option<&Path>, wanted: Flavor) -> Result<Chromium, DiscoveryError> {
        if let Some(path) = configured {
            return Self::at(path, "the configuration");
        }
        for variable in ["CHROME_EXECUTABLE_PATH", "CHROME_BIN"] {
            if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
                return Self::at(Path::new(&path), variable);
            }
        }
        let (first, second) = match wanted {
            Flavor::Full => (FULL, HEADLESS_SHELL),
            Flavor::HeadlessShell => (HEADLESS_SHELL, FULL),
        };
        let usable = |path: &&str| Self::at(Path::new(path), "the usual locations").ok();
        first.iter().chain(second).find_map(usable).ok_or(DiscoveryError::NotFound)
    }

    /// Every browser in the usual locations.
    pub fn all() -> Vec<Chromium> {
        let places = FULL.iter().chain(HEADLESS_SHELL);
        places.filter_map(|path| Self::at(Path::new(path), "the usual locations").ok()).collect()
    }

    /// The browser at a path, after resolving symlinks and known scripts.
    pub fn at(path: &Path, origin: &'static str) -> Result<Chromium, DiscoveryError> {
        let unusable = |problem: String| DiscoveryError::Unusable { path: path.to_owned(), origin, problem };
        let real = path.canonicalize().map_err(|error| unusable(error.to_string()))?;
        if std::env::current_exe().is_ok_and(|own| own == real) {
            return Err(unusable("it is this launcher itself".into()));
        }
        if real.starts_with("/snap") || path.starts_with("/snap") || real == Path::new("/usr/bin/snap") {
            return Err(unusable(
                "it is a snap, which has its own confinement and cannot run in another sandbox".into(),
            ));
        }
        match Format::of(&real).map_err(|error| unusable(error.to_string()))? {
            Format::Program => {}
            Format::Script => {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                let behind = WRAPPERS.iter().find(|(wrapper, _)| *wrapper == name).map(|(_, places)| *places);
                let found = behind
                    .into_iter()
                    .flatten()
                    .find(|place| matches!(Format::of(Path::new(place)), Ok(Format::Program)));
                return match found {
                    Some(place) => Self::at(Path::new(place), origin),
                    None => Err(unusable("it is a script; name the executable that it starts".into())),
                };
            }
            Format::Other => return Err(unusable("it is not an executable program".into())),
        }
        Self::refuse_if_others_can_change(&real).map_err(unusable)?;
        let name = real.file_name().unwrap_or_default().to_string_lossy();
        let headless = name.contains("headless-shell") || name.contains("headless_shell");
        let flavor = if headless { Flavor::HeadlessShell } else { Flavor::Full };
        Ok(Chromium { executable: real, flavor })
    }

    /// Refuses a browser that another user can replace.
    fn refuse_if_others_can_change(real: &Path) -> Result<(), String> {
        let own = nix::unistd::geteuid().as_raw();
        for part in real.ancestors() {
            let meta = part.symlink_metadata().map_err(|error| format!("{}: {error}", part.display()))?;
            let sticky_folder = meta.is_dir() && meta.mode() & 0o1000 != 0;
            if meta.uid() != 0 && meta.uid() != own {
                return Err(format!("{} belongs to another user (uid {})", part.display(), meta.uid()));
            }
            if meta.mode() & 0o002 != 0 && !sticky_folder {
                return Err(format!("{} can be written by everybody", part.display()));
            }
        }
        Ok(())
    }

    /// Runs the executable with `--version`. Root runs it as `nobody`, because a browser never runs as root.
    pub fn version(&self) -> std::io::Result<String> {
        let mut command = Command::new(&self.executable);
        command.arg("--version").env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if nix::unistd::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        let mut child = command.spawn()?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut text = String::new();
        child.stdout.take().expect("stdout is piped").take(4096).read_to_string(&mut text)?;
        let text = text.trim();
        if text.is_empty() { Err(std::io::Error::other("no version printed")) } else { Ok(text.to_owned()) }
    }
}

#[derive(Debug, PartialEq)]
enum Format {
    Program,
    Script,
    Other,
}

impl Format {
    fn of(path: &Path) -> std::io::Result<Format> {
        let mut file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
            return Ok(Format::Other);
        }
        let mut start = Vec::new();
        Read::by_ref(&mut file).take(4).read_to_end(&mut start)?;
        Ok(match start.as_slice() {
            b"\x7fELF" => Format::Program,
            [b'#', b'!', ..] => Format::Script,
            _ => Format::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn put(folder: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, content).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        path
    }

    fn problem(path: &Path) -> String {
        Chromium::at(path, "the test").expect_err("unusable").to_string()
    }

    #[test]
    fn the_flavor_follows_from_the_file_name() {
        let folder = tempfile::tempdir().expect("folder");
        let full = put(folder.path(), "chrome", b"\x7fELF....", 0o755);
        let shell = put(folder.path(), "headless_shell", b"\x7fELF....", 0o755);
        assert_eq!(Chromium::at(&full, "the test").expect("full").flavor, Flavor::Full);
        assert_eq!(Chromium::at(&shell, "the test").expect("shell").flavor, Flavor::HeadlessShell);
    }

    #[test]
    fn untrusted_executables_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().expect("folder");
        assert!(problem(&put(folder.path(), "my-chrome", b"#!/bin/sh\n", 0o755)).contains("script"));
        assert!(problem(&put(folder.path(), "text", b"hello", 0o755)).contains("not an executable"));
        assert!(problem(&put(folder.path(), "plain", b"\x7fELF", 0o644)).contains("not an executable"));
        assert!(problem(&put(folder.path(), "open", b"\x7fELF", 0o777)).contains("written by everybody"));
        assert!(problem(&folder.path().join("absent")).contains("No such file"));
        assert!(problem(folder.path()).contains("not an executable"));
    }

    #[test]
    fn a_symlink_is_resolved_to_the_real_program() {
        let folder = tempfile::tempdir().expect("folder");
        let real = put(folder.path(), "chrome", b"\x7fELF", 0o755);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&real, &link).expect("link");
        assert_eq!(
            Chromium::at(&link, "the test").expect("found").executable,
            real.canonicalize().expect("real")
        );
    }
}
