//! One run of a fake tool: its world, its faults, what it says.

use crate::tools;
use crate::world::{World, Wrong};
use crate::{calls, world};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The names under which the executable is installed.
pub const TOOLS: &[&str] = &[
    "arp",
    "bastille",
    "ifconfig",
    "ipfw",
    "jail",
    "jexec",
    "jls",
    "kill",
    "kldload",
    "kldstat",
    "kldunload",
    "mount",
    "pfctl",
    "pkill",
    "ps",
    "rctl",
    "route",
    "service",
    "sysctl",
    "umount",
    "zfs",
];

/// What a tool says in the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// On stdout.
    pub out: String,
    /// On stderr.
    pub err: String,
    /// Its exit code.
    pub code: i32,
}

impl Said {
    /// Nothing, with success.
    pub(crate) fn nothing() -> Said {
        Said::default()
    }

    /// This on stdout, with success.
    pub(crate) fn out(text: impl Into<String>) -> Said {
        Said { out: text.into(), ..Said::default() }
    }

    /// This on stderr.
    pub(crate) fn err(code: i32, text: impl Into<String>) -> Said {
        Said { out: String::new(), err: text.into(), code }
    }

    /// Go on with another tool's words; its exit code counts.
    pub(crate) fn then(&mut self, next: Said) {
        self.out.push_str(&next.out);
        self.err.push_str(&next.err);
        self.code = next.code;
    }
}

/// What the faults make of a run.
enum Struck {
    /// Nothing.
    Not,
    /// It says this and does nothing.
    Instead(Said),
    /// It dies between its transactions.
    Halfway,
    /// It dies in the end.
    After,
}

/// Who runs a tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// In which jail; 0 is the host.
    pub(crate) jid: u32,
    /// Not as root.
    pub(crate) nobody: bool,
}

/// The fake host, as its tools find it: the folder with the tools and the world beside it.
#[derive(Debug, Clone)]
pub struct Fake {
    folder: PathBuf,
}

/// A tool that a test runs as another user has this in its environment.
const NOBODY: &str = "FAKE_FREEBSD_NOBODY";

impl Fake {
    /// The host in a folder: tools in `bin`, the world in `world`.
    pub fn at(folder: &Path) -> Fake {
        Fake { folder: folder.to_owned() }
    }

    /// Be the tool that the executable's own name tells.
    pub fn main() -> ExitCode {
        let own = std::env::current_exe().expect("the executable's own path");
        let name = own.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let Some(folder) = own.parent().and_then(Path::parent) else { return ExitCode::from(99) };
        let fake = Fake::at(folder);
        if !fake.world_file().is_file() {
            eprintln!("{}: no world: install the fake tools with fake_freebsd::Machine", own.display());
            return ExitCode::from(99);
        }
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        calls::began(&fake.calls_file(), &name, &arguments);
        fake.check_environment(&name);
        let caller = Caller { jid: 0, nobody: std::env::var_os(NOBODY).is_some() };
        let said = match fake.faults(&name, &arguments) {
            Struck::Not => tools::run(&fake, &name, &arguments, caller),
            Struck::Instead(said) => said,
            Struck::Halfway => {
                let given: Vec<usize> = (0..arguments.len()).filter(|at| arguments[*at] == "-o").collect();
                let first = |at: &usize| !given.iter().any(|option| at == option || *at == option + 1);
                let first =
                    (0..arguments.len()).filter(first).map(|at| arguments[at].clone()).collect::<Vec<_>>();
                tools::run(&fake, &name, &first, caller);
                std::process::abort();
            }
            Struck::After => {
                tools::run(&fake, &name, &arguments, caller);
                std::process::abort();
            }
        };
        let _ = std::io::stdout().write_all(said.out.as_bytes());
        let _ = std::io::stderr().write_all(said.err.as_bytes());
        calls::ended(&fake.calls_file(), said.code);
        ExitCode::from(u8::try_from(said.code).unwrap_or(255))
    }

    pub(crate) fn tools_folder(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// The folder for files of datasets that are not mounted, and of snapshots.
    pub(crate) fn store(&self, kind: &str, id: u64) -> PathBuf {
        self.folder.join("world").join(kind).join(id.to_string())
    }

    pub(crate) fn world_file(&self) -> PathBuf {
        self.folder.join("world/world.json")
    }

    pub(crate) fn calls_file(&self) -> PathBuf {
        self.folder.join("world/calls")
    }

    /// Look at the world and change it, while nobody else does.
    pub fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let _lock = self.lock();
        let mut world = self.load();
        let before = world.clone();
        let answer = change(&mut world);
        if world != before {
            self.save(&world);
        }
        answer
    }

    fn lock(&self) -> File {
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).open(self.folder.join("world/lock"));
        let lock = lock.expect("the world's lock");
        lock.lock().expect("the world's lock");
        lock
    }

    fn load(&self) -> World {
        let text = fs::read(self.world_file()).expect("the world can be read");
        serde_json::from_slice(&text).expect("the world is whole")
    }

    pub(crate) fn save(&self, world: &World) {
        let new = self.folder.join("world/world.new");
        fs::write(&new, serde_json::to_vec(world).expect("plain data")).expect("the world can be written");
        fs::rename(&new, self.world_file()).expect("the world can be replaced");
    }

    /// Note what no caller may do.
    pub(crate) fn violation(&self, what: impl Into<String>) {
        let what = what.into();
        self.change(|world| world.violations.push(what));
    }

    /// Bastille acts on variables, and every tool speaks the language it is told to: nothing of that may come through.
    fn check_environment(&self, name: &str) {
        const HARMLESS: &[&str] = &["PATH", "LC_ALL", "HOME", "PWD", "OLDPWD", "SHLVL", "_", NOBODY];
        for (key, _) in std::env::vars_os() {
            let key = key.to_string_lossy().into_owned();
            if !HARMLESS.contains(&key.as_str()) {
                self.violation(format!("{name} was started with {key} in its environment"));
            }
        }
    }

    /// The faults of this run.
    fn faults(&self, name: &str, arguments: &[String]) -> Struck {
        let line = format!("{name} {}", arguments.join(" "));
        let mut wrong = Vec::new();
        let struck = |fault: &world::Fault| fault.words.iter().all(|word| line.contains(word.as_str()));
        if self.load().faults.iter().any(struck) {
            self.change(|world| {
                for fault in world.faults.iter_mut().filter(|fault| struck(fault)) {
                    wrong.push(fault.what.clone());
                    if let Some(times) = &mut fault.times {
                        *times = times.saturating_sub(1);
                    }
                }
                world.faults.retain(|fault| fault.times != Some(0));
            });
        }
        let mut struck = Struck::Not;
        for wrong in wrong {
            match wrong {
                Wrong::Slow(milliseconds) => std::thread::sleep(Duration::from_millis(milliseconds)),
                Wrong::Hangs => loop {
                    std::thread::sleep(Duration::from_secs(3600));
                },
                Wrong::Fails { code, stderr } => return Struck::Instead(Said::err(code, stderr)),
                Wrong::DiesBefore => std::process::abort(),
                Wrong::DiesHalfway => struck = Struck::Halfway,
                Wrong::DiesAfter => struck = Struck::After,
            }
        }
        struck
    }
}
