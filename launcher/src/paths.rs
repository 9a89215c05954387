//! Rewrites paths in switches from host paths to paths inside the sandbox.

use std::path::{Path, PathBuf};

use crate::LaunchError;
use crate::blueprint::PROFILE;
use crate::flags::Flags;

/// Maps host paths to paths inside.
pub(crate) struct PathMap<'a> {
    pub(crate) profile: Option<&'a Path>,
    pub(crate) shared: &'a [PathBuf],
    pub(crate) readable: &'a [PathBuf],
    /// The base of relative paths.
    pub(crate) working: Option<&'a Path>,
}

/// Switches that name an output file for the user. A file that would be lost with the sandbox is an error.
const OUTPUTS: &[&str] =
    &["screenshot", "print-to-pdf", "log-file", "log-net-log", "ssl-key-log-file", "trace-startup-file"];
/// Switches that name a folder for the browser's own use; any writable folder inside is sufficient.
const SCRATCH: &[&str] = &["disk-cache-dir", "crash-dumps-dir", "media-cache-dir"];
/// Switches that name folders to read, separated by commas.
const INPUTS: &[&str] = &["load-extension", "disable-extensions-except"];

impl PathMap<'_> {
    /// Rewrites the paths in the switches; refuses paths that the browser cannot use.
    pub(crate) fn rewrite_paths(&self, flags: &mut Flags) -> Result<(), LaunchError> {
        for name in OUTPUTS {
            let Some(path) = flags.value(name).map(str::to_owned) else {
                continue;
            };
            // Without a value Chromium uses a default name in the working folder.
            let path = if path.is_empty() { "." } else { &path };
            let inside = self.writable(Path::new(path)).ok_or_else(|| {
                let hint = match self.shared {
                    [] => "set `media` in the configuration to the folder for such files".to_owned(),
                    folders => format!("use a file in {}", list(folders)),
                };
                LaunchError::Argument(format!("--{name}={path}: the browser cannot write there; {hint}"))
            })?;
            if path != "." {
                flags.set(name, Some(&inside));
            }
        }
        for name in SCRATCH {
            let Some(path) = flags.take(name) else {
                continue;
            };
            // Otherwise the browser uses its default inside the profile.
            if let Some(inside) = self.writable(Path::new(&path)) {
                flags.set(name, Some(&inside));
            }
        }
        for name in INPUTS {
            let Some(paths) = flags.value(name).filter(|paths| !paths.is_empty()) else {
                continue;
            };
            for path in paths.split(',') {
                let known =
                    self.shared.iter().chain(self.readable).any(|folder| Path::new(path).starts_with(folder));
                if !known && !Path::new(path).starts_with("/usr") {
                    return Err(LaunchError::Argument(format!(
                        "--{name}: the browser does not see {path}; add it to `extra_ro_bind` in the configuration"
                    )));
                }
            }
        }
        if flags.value("profile-directory").is_some_and(|name| name.contains('/') || name == "..") {
            return Err(LaunchError::Argument("--profile-directory is a name, not a path".into()));
        }
        Ok(())
    }

    /// The path inside, or `None` if the browser cannot write there.
    fn writable(&self, path: &Path) -> Option<String> {
        let absolute = match path.is_absolute() {
            true => path.to_owned(),
            false => self.working?.join(path),
        };
        let plain = |part| !matches!(part, std::path::Component::ParentDir);
        if !absolute.components().all(plain) {
            return None;
        }
        if let Some(rest) = self.profile.and_then(|profile| absolute.strip_prefix(profile).ok()) {
            return Some(Path::new(PROFILE).join(rest).to_str()?.to_owned());
        }
        let shared = self.shared.iter().any(|folder| absolute.starts_with(folder));
        shared.then(|| absolute.to_str().map(str::to_owned))?
    }
}

fn list(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Strictness;

    #[test]
    fn paths_are_mapped_or_refused() {
        let shared = [PathBuf::from("/srv/media")];
        let map = PathMap {
            profile: Some(Path::new("/srv/profile")),
            shared: &shared,
            readable: &[PathBuf::from("/srv/extension")],
            working: Some(Path::new("/srv/media")),
        };
        let rewritten = |arguments: &[&str]| {
            let mut flags = Flags::parse(arguments, Strictness::Refuse).expect("harmless");
            map.rewrite_paths(&mut flags).map(|()| flags.to_arguments())
        };
        assert_eq!(
            rewritten(&["--screenshot=/srv/media/a.png"]).expect("shared"),
            ["--screenshot=/srv/media/a.png"]
        );
        assert_eq!(rewritten(&["--screenshot=a.png"]).expect("relative"), ["--screenshot=/srv/media/a.png"]);
        assert_eq!(rewritten(&["--screenshot"]).expect("default name"), ["--screenshot"]);
        assert_eq!(
            rewritten(&["--log-net-log=/srv/profile/net"]).expect("profile"),
            ["--log-net-log=/home/browser/profile/net"]
        );
        assert_eq!(
            rewritten(&["--disk-cache-dir=/tmp/cache"]).expect("left to the browser"),
            [] as [&str; 0]
        );
        assert!(rewritten(&["--load-extension=/srv/extension/one"]).is_ok());
        for wrong in [
            "--screenshot=/etc/a.png",
            "--screenshot=/srv/media/../secret/a.png",
            "--print-to-pdf=/srv/mediaother/a.pdf",
            "--load-extension=/srv/extension,/srv/other",
            "--profile-directory=../x",
        ] {
            assert!(rewritten(&[wrong]).is_err(), "{wrong}");
        }
    }
}
