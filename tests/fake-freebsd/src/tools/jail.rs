//! jail(8): start and stop a jail, by parameters or by a jail.conf.

use super::command::{self, Ended};
use super::jail_conf::{self, Parameters};
use super::mount::unmount_one;
use crate::fake::{Fake, Said};
use crate::options::Options;
use crate::world::{Interface, Jail, Mount, World};
use std::fs::OpenOptions;
use std::io::Write;

const USAGE: &str = "usage: jail [-dhilqv] [-J jid_file] [-u username] [-U username]
            -[cmr] param=value ... [command=command ...]
       jail [-dqv] [-f file] -[cmr] [jail]
       jail [-qv] [-f file] -[rR] ['*' | jail ...]
       jail [-dhilqv] [-J jid_file] [-u username] [-U username]
            [-n jailname] [-s securelevel]
            path hostname ip[,...] command ...
       jail [-f file] -e separator
";

/// One run.
struct Run<'a> {
    fake: &'a Fake,
    /// What is said about it begins with the name only if it comes from a file.
    from_file: bool,
    quiet: bool,
    said: Said,
}

pub(super) fn run(fake: &Fake, arguments: &[String]) -> Said {
    let given = match Options::parse(arguments, "cdhilmqRrvJ:u:U:f:e:") {
        Ok(given) => given,
        Err(why) => return super::refused(fake, "jail", arguments, why, USAGE),
    };
    let quiet = given.has('q') || given.value('f').is_none();
    let mut run = Run { fake, from_file: given.value('f').is_some(), quiet, said: Said::nothing() };
    let jails = match given.value('f') {
        None => None,
        Some(file) => {
            let real = fake.change(|world| world.real(file));
            let Ok(text) = std::fs::read_to_string(real) else {
                return Said::err(1, format!("jail: {file}: No such file or directory\n"));
            };
            match jail_conf::parse(&text) {
                Some(jails) => Some(jails),
                None => return Said::err(1, format!("jail: {file}: unexpected EOF\n")),
            }
        }
    };
    let not_found = |name: &str| Said::err(1, format!("jail: \"{name}\" not found\n"));
    if given.has('c') {
        let (name, parameters) = match &jails {
            Some(jails) => {
                let Some(name) = given.operands.first() else { return Said::err(1, USAGE) };
                match jails.get(name) {
                    Some(parameters) => (name.clone(), parameters.clone()),
                    None => return not_found(name),
                }
            }
            None => {
                let mut parameters = Parameters::default();
                for word in &given.operands {
                    let (name, value) = match word.split_once('=') {
                        Some((name, value)) => (name, Some(value)),
                        None => (word.as_str(), None),
                    };
                    parameters.take(name, value, false);
                }
                (parameters.text("name").unwrap_or_default().to_owned(), parameters)
            }
        };
        run.create(&name, &parameters, given.has('m'));
        return run.said;
    }
    if !given.has('r') && !given.has('R') {
        return Said::err(1, USAGE);
    }
    let mut names = given.operands.clone();
    if names == ["*"] {
        let wanted = jails.as_ref().map(|jails| jails.keys().cloned().collect::<Vec<_>>());
        let running =
            fake.change(|world| world.jails.iter().map(|jail| jail.name.clone()).collect::<Vec<_>>());
        names = running
            .into_iter()
            .rev()
            .filter(|name| wanted.as_ref().is_none_or(|all| all.contains(name)))
            .collect();
    }
    for name in names {
        let found = fake.change(|world| world.jail(&name).map(|jail| (jail.jid, jail.name.clone())));
        let Some((jid, name)) = found else {
            // Removing what is dying is no error.
            if !(given.has('R') && fake.change(|world| world.dying(&name).is_some())) {
                run.said.then(not_found(&name));
            }
            continue;
        };
        match jails.as_ref().and_then(|jails| jails.get(&name)).filter(|_| !given.has('R')) {
            Some(parameters) => run.stop(jid, &name, parameters),
            None => fake.change(|world| world.remove_jail(jid)),
        }
    }
    run.said
}

impl Run<'_> {
    fn note(&mut self, name: &str, what: &str) {
        if !self.quiet {
            self.said.out.push_str(&format!("{name}: {what}\n"));
        }
    }

    fn fail(&mut self, name: &str, what: &str) {
        let lead = if self.from_file { format!("jail: {name}: ") } else { "jail: ".to_owned() };
        self.said.err.push_str(&format!("{lead}{what}\n"));
        self.said.code = 1;
    }

    /// Run lines on the host; false after the first that fails.
    fn on_host(&mut self, name: &str, lines: &[String]) -> bool {
        for line in lines {
            let simple = !line.contains(['$', '&', '|', ';', '(', '<', '>', '`', '*']);
            let program = line.split_whitespace().next().unwrap_or_default().to_owned();
            let shown = if simple { line.clone() } else { format!("/bin/sh -c {line}") };
            if simple && !self.is_program(&program) {
                self.fail(name, &format!("exec {program}: No such file or directory"));
                self.fail(name, &format!("{shown}: failed"));
                return false;
            }
            let done = command::on_host(self.fake, line);
            let code = done.code;
            self.said.then(Said { code: self.said.code, ..done });
            if code != 0 {
                self.fail(name, &format!("{shown}: failed"));
                return false;
            }
        }
        true
    }

    fn is_program(&self, program: &str) -> bool {
        let name = program.rsplit('/').next().unwrap_or_default();
        ["true", "false", "sleep", "echo"].contains(&name) || self.fake.tools_folder().join(name).exists()
    }

    /// Run lines inside; false after the first that fails or does not end in time.
    fn inside(&mut self, jid: u32, name: &str, lines: &[String], parameters: &Parameters) -> bool {
        for line in lines {
            let timeout = parameters.seconds("exec.timeout", 0);
            let done = match command::inside(self.fake, jid, line) {
                Ended::Said(said) => said,
                Ended::NoProgram => {
                    let program = line.split_whitespace().next().unwrap_or_default();
                    self.fail(name, &format!("exec {program}: No such file or directory"));
                    self.fail(name, &format!("{line}: failed"));
                    return false;
                }
                Ended::Sleeps(seconds) if timeout > 0 && seconds > timeout => {
                    std::thread::sleep(std::time::Duration::from_secs(timeout));
                    self.fail(name, &format!("{line}: timed out"));
                    return false;
                }
                Ended::Sleeps(seconds) => {
                    std::thread::sleep(std::time::Duration::from_secs(seconds));
                    Said::nothing()
                }
            };
            match parameters.text("exec.consolelog") {
                Some(log) => {
                    let real = self.fake.change(|world| world.real(log));
                    let opened = OpenOptions::new().append(true).create(true).open(real);
                    if opened.and_then(|mut log| write!(log, "{}{}", done.out, done.err)).is_err() {
                        self.fail(name, &format!("open {log}: No such file or directory"));
                        return false;
                    }
                }
                None => self.said.then(Said { code: self.said.code, ..done.clone() }),
            }
            if done.code != 0 {
                self.fail(name, &format!("{line}: failed"));
                return false;
            }
        }
        true
    }

    fn create(&mut self, name: &str, parameters: &Parameters, or_update: bool) {
        if let Some(unknown) = parameters.unknown() {
            return self.fail(name, &format!("unknown parameter: {unknown}"));
        }
        if self.fake.change(|world| world.jail(name).is_some()) {
            if or_update {
                return self.note(name, "updated");
            }
            self.said = Said::err(1, format!("jail: \"{name}\" already exists\n"));
            return;
        }
        if let Some((above, _)) = name.split_once('.') {
            return self.fail(name, &format!("jail \"{above}\" not found"));
        }
        let starts = ["exec.start", "command"].iter().any(|key| !parameters.all(key).is_empty());
        if !parameters.has("persist") && !starts {
            return self.fail(name, "new jail must persist or attach");
        }
        if !self.on_host(name, parameters.all("exec.prestart")) {
            return;
        }
        let path = parameters.text("path").unwrap_or_default().to_owned();
        if !self.fake.change(|world| world.real(&path).is_dir()) {
            return self.fail(name, &format!("path {path}: No such file or directory"));
        }
        if !self.mount_all(name, &path, parameters) {
            return;
        }
        let jid = match self.fake.change(|world| make(world, name, &path, parameters)) {
            Some(jid) => jid,
            None => return self.fail(name, &format!("jail \"{name}\" already exists")),
        };
        self.note(name, "created");
        for interface in parameters.all("vnet.interface") {
            let words = [interface.clone(), "vnet".to_owned(), name.to_owned()];
            let moved = super::run(self.fake, "ifconfig", &words, crate::fake::Caller::default());
            let code = moved.code;
            self.said.then(Said { code: self.said.code, ..moved });
            if code != 0 {
                self.fake.change(|world| world.remove_jail(jid));
                return self.fail(name, &format!("/sbin/ifconfig {interface} vnet {name}: failed"));
            }
        }
        if !self.inside(jid, name, parameters.all("exec.start"), parameters) {
            // It goes again, but neither are its mounts undone nor is exec.poststop run.
            self.fake.change(|world| world.remove_jail(jid));
            return self.note(name, "removed");
        }
        self.fake.change(|world| {
            // Without persist and without processes it does not stay.
            if !parameters.has("persist") && world.processes.values().all(|process| process.jid != jid) {
                world.remove_jail(jid);
            }
        });
        self.on_host(name, parameters.all("exec.poststart"));
    }

    fn mount_all(&mut self, name: &str, path: &str, parameters: &Parameters) -> bool {
        let mut mounts = Vec::new();
        if let Some(fstab) = parameters.text("mount.fstab") {
            let real = self.fake.change(|world| world.real(fstab));
            let Ok(text) = std::fs::read_to_string(real) else {
                self.fail(name, &format!("{fstab}: No such file or directory"));
                return false;
            };
            for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let [source, target, kind, options, ..] = fields[..] else {
                    self.fail(name, &format!("{fstab}: not enough fields"));
                    return false;
                };
                mounts.push((source.to_owned(), target.to_owned(), kind.to_owned(), options.to_owned()));
            }
        }
        if parameters.has("mount.devfs") {
            mounts.push(("devfs".into(), format!("{path}/dev"), "devfs".into(), "rw".into()));
        }
        for (source, target, kind, options) in mounts {
            let there = self.fake.change(|world| {
                let there = world.real(&target).is_dir();
                if there {
                    world.mounts.push(Mount { source, target: target.clone(), kind: kind.clone(), options });
                }
                there
            });
            if !there {
                self.said.err.push_str(&format!("mount: {target}: No such file or directory\n"));
                self.fail(name, &format!("/sbin/mount -t {kind} . {target}: failed"));
                return false;
            }
        }
        true
    }

    fn stop(&mut self, jid: u32, name: &str, parameters: &Parameters) {
        if !self.on_host(name, parameters.all("exec.prestop"))
            || !self.inside(jid, name, parameters.all("exec.stop"), parameters)
        {
            return;
        }
        let path = self.fake.change(|world| {
            let path = world.jail(name).map(|jail| jail.path.clone()).unwrap_or_default();
            world.remove_jail(jid);
            path
        });
        self.note(name, "removed");
        self.on_host(name, parameters.all("exec.poststop"));
        self.fake.change(|world| {
            let mut gone = vec![format!("{path}/dev")];
            let fstab = parameters.text("mount.fstab").map(|fstab| world.real(fstab));
            let lines = fstab.and_then(|fstab| std::fs::read_to_string(fstab).ok()).unwrap_or_default();
            gone.extend(lines.lines().filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)));
            gone.iter().rev().for_each(|target| drop(unmount_one(world, target, false)));
        });
    }
}

/// Make a jail. None: somebody else was faster.
fn make(world: &mut World, name: &str, path: &str, parameters: &Parameters) -> Option<u32> {
    if world.jail(name).is_some() {
        return None;
    }
    let jid = match name.parse() {
        Ok(jid) => jid,
        Err(_) => {
            world.last.jid += 1;
            world.last.jid
        }
    };
    let others = [
        "persist",
        "securelevel",
        "osrelease",
        "devfs_ruleset",
        "enforce_statfs",
        "host.hostuuid",
        "children.max",
    ];
    let kept = |key: &&str| Some(((*key).to_owned(), parameters.text(key)?.to_owned()));
    world.jails.push(Jail {
        jid,
        name: name.to_owned(),
        path: path.to_owned(),
        hostname: parameters.text("host.hostname").unwrap_or_default().to_owned(),
        vnet: parameters.has("vnet"),
        parameters: others.iter().filter_map(kept).collect(),
        dying: None,
    });
    if parameters.has("vnet") {
        let (id, lo) = (world.new_id(), "lo0".to_owned());
        let made_as = format!("lo0@{jid}");
        world.interfaces.push(Interface {
            id,
            name: lo,
            made_as,
            jid,
            group: "lo".into(),
            up: true,
            ..Default::default()
        });
    }
    Some(jid)
}
