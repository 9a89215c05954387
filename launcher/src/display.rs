//! The display of a headed browser: its socket, and for X11 the authentication cookie.

use std::path::{Path, PathBuf};

use sandbox::FileRule;

use crate::LaunchError;
use crate::runfolder::RunFolder;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Display {
    /// The X11 socket and the file with its cookie, if there is one.
    X11 {
        name: String,
        socket: PathBuf,
        authority: Option<PathBuf>,
    },
    Wayland {
        name: String,
        socket: PathBuf,
    },
}

type Grant = (Vec<FileRule>, Vec<(String, String)>);

impl Display {
    /// Prefers Wayland, because it isolates clients from each other; X11 does not.
    pub(crate) fn from_environment() -> Result<Display, LaunchError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let (Some(name), Some(runtime)) = (variable("WAYLAND_DISPLAY"), variable("XDG_RUNTIME_DIR")) {
            // The name may also be an absolute path.
            let socket = Path::new(&runtime).join(&name);
            if socket.exists() {
                let name = socket.file_name().unwrap_or_default().to_string_lossy().into_owned();
                return Ok(Display::Wayland { name, socket });
            }
        }
        let authority = variable("XAUTHORITY")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".Xauthority")));
        match variable("DISPLAY") {
            Some(name) => Self::x11(&name, authority.filter(|file| file.is_file())),
            None => Err(LaunchError::Display(
                "no DISPLAY or WAYLAND_DISPLAY is set; add --headless for a browser without windows".into(),
            )),
        }
    }

    fn x11(name: &str, authority: Option<PathBuf>) -> Result<Display, LaunchError> {
        let number = name
            .strip_prefix(':')
            .or_else(|| name.strip_prefix("unix:"))
            .map(|rest| rest.split('.').next().unwrap_or(rest));
        let number =
            number.filter(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
        let Some(number) = number else {
            return Err(LaunchError::Display(format!(
                "DISPLAY={name} is not on this machine; a confined browser can only use a local one"
            )));
        };
        let socket = PathBuf::from(format!("/tmp/.X11-unix/X{number}"));
        match socket.exists() {
            true => Ok(Display::X11 { name: format!(":{number}"), socket, authority }),
            false => Err(LaunchError::Display(format!(
                "DISPLAY={name} is set, but {} does not exist",
                socket.display()
            ))),
        }
    }

    pub(crate) fn notice(&self) -> Option<String> {
        match self {
            Display::X11 { .. } => Some("X11 lets every window see the others: a headed browser can read and control this session; use a separate display (Xvfb) or Wayland".into()),
            Display::Wayland { .. } => None,
        }
    }

    /// The file rules and variables that give access to the display. A copy of the cookie is put into `folder`.
    pub(crate) fn grant(&self, home: &str, folder: &RunFolder) -> Result<Grant, LaunchError> {
        match self {
            Display::Wayland { name, socket } => {
                let rule =
                    FileRule::Socket { path: Path::new(home).join(name), source: Some(socket.clone()) };
                Ok((vec![rule], vec![("WAYLAND_DISPLAY".to_owned(), name.clone())]))
            }
            Display::X11 { name, socket, authority } => {
                let mut rules = vec![FileRule::Socket { path: socket.clone(), source: None }];
                let mut variables = vec![("DISPLAY".to_owned(), name.clone())];
                if let Some(authority) = authority {
                    let io = |source| LaunchError::Io { what: authority.display().to_string(), source };
                    // A copy, because the browser's private uid may not read the original.
                    let copy =
                        folder.file("authority", &std::fs::read(authority).map_err(io)?).map_err(io)?;
                    let inside = Path::new(home).join(".Xauthority");
                    variables.push(("XAUTHORITY".to_owned(), inside.display().to_string()));
                    rules.push(FileRule::ReadOnly {
                        path: inside,
                        source: Some(copy),
                        execute: false,
                        optional: false,
                    });
                }
                Ok((rules, variables))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_displays_are_accepted() {
        for name in ["host:0", "localhost:10.0", "", ":", ":x", ":../../etc", "tcp/host:0"] {
            assert!(Display::x11(name, None).is_err(), "{name}");
        }
        let error = Display::x11(":987654", None).expect_err("no such socket").to_string();
        assert!(error.contains("/tmp/.X11-unix/X987654"), "{error}");
    }

    #[test]
    fn a_wayland_socket_keeps_its_name_in_the_private_runtime_folder() {
        let display = Display::Wayland { name: "wayland-1".into(), socket: "/run/user/7/wayland-1".into() };
        let folder = RunFolder::new(None).expect("folder");
        let (rules, variables) = display.grant("/home/browser", &folder).expect("grant");
        assert_eq!(
            rules,
            [FileRule::Socket {
                path: "/home/browser/wayland-1".into(),
                source: Some("/run/user/7/wayland-1".into())
            }]
        );
        assert_eq!(variables, [("WAYLAND_DISPLAY".to_owned(), "wayland-1".to_owned())]);
    }

    #[test]
    fn an_x11_cookie_is_copied_for_the_browser() {
        let cookie = tempfile::NamedTempFile::new().expect("file");
        std::fs::write(cookie.path(), b"\x01\x00cookie").expect("write");
        let display = Display::X11 {
            name: ":5".into(),
            socket: "/tmp/.X11-unix/X5".into(),
            authority: Some(cookie.path().to_owned()),
        };
        let folder = RunFolder::new(None).expect("folder");
        let (rules, variables) = display.grant("/home/browser", &folder).expect("grant");
        let copy = rules[1].source().expect("a copy");
        assert_eq!(std::fs::read(copy).expect("read"), b"\x01\x00cookie");
        assert!(variables.contains(&("XAUTHORITY".into(), "/home/browser/.Xauthority".into())));
    }
}
