//! Recordings, read and done once more.

#![allow(clippy::unwrap_used, unreachable_pub)]

use fake_freebsd::{Hold, Machine, Said};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// One recorded command, or a line beside them.
#[derive(Debug, Default)]
pub struct Entry {
    pub line: usize,
    command: String,
    said: Said,
    /// The contents of a file that was shown.
    file: Option<String>,
}

/// The entries of a recording.
pub fn entries(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut open: Option<Entry> = None;
    let mut section = "";
    for (at, line) in text.lines().enumerate() {
        if let Some(command) = line.strip_prefix("@ ") {
            entries.push(Entry { line: at + 1, command: format!("@ {command}"), ..Entry::default() });
        } else if let Some(command) = line.strip_prefix("$ ") {
            assert!(open.is_none(), "line {}: the command before has no end", at + 1);
            section = if command.starts_with("cat ") { "file" } else { "" };
            let file = command.starts_with("cat ").then(String::new);
            open = Some(Entry { line: at + 1, command: command.to_owned(), file, ..Entry::default() });
        } else if let Some(entry) = &mut open {
            match line {
                "--- stdout" => section = "out",
                "--- stderr" => section = "err",
                "--- end of file" => entries.extend(open.take()),
                _ if line.starts_with("--- exit=") => {
                    let code: String = line[9..].chars().take_while(char::is_ascii_digit).collect();
                    entry.said.code = code.parse().unwrap();
                    entries.extend(open.take());
                }
                _ => {
                    let text = match section {
                        "out" => &mut entry.said.out,
                        "err" => &mut entry.said.err,
                        "file" => entry.file.get_or_insert_default(),
                        _ if line.is_empty() => continue,
                        _ => panic!("line {}: {line:?} belongs to nothing", at + 1),
                    };
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    assert!(open.is_none(), "the last command has no end");
    entries
}

/// A fake host on which a recording is done once more.
pub struct Replay {
    pub machine: Machine,
    folder: tempfile::TempDir,
    /// What a recorded number is here.
    numbers: BTreeMap<String, String>,
}

impl Replay {
    pub fn new() -> Replay {
        let folder = tempfile::Builder::new().prefix("fbsd").tempdir().unwrap();
        let root = folder.path().join("root");
        for path in ["tmp", "lab/j1/dev", "lab/j1/etc", "dev", "etc", "var/log/bastille"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        let machine = Machine::install(folder.path(), env!("CARGO_BIN_EXE_fake-freebsd").as_ref(), &root);
        Replay { machine, folder, numbers: BTreeMap::new() }
    }

    /// Do an entry; answers the tool that was tried, or how it differs.
    pub fn play(&mut self, entry: &Entry) -> Result<Option<String>, String> {
        if let Some(action) = entry.command.strip_prefix("@ ") {
            self.act(action);
            return Ok(None);
        }
        if let Some(text) = &entry.file {
            let path = self.root(entry.command.strip_prefix("cat ").unwrap());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
            return Ok(None);
        }
        let said = self.run(&entry.command);
        for (stream, recorded, now) in
            [("stdout", &entry.said.out, &said.out), ("stderr", &entry.said.err, &said.err)]
        {
            if let Err(why) = self.same(recorded, now) {
                let command = &entry.command;
                return Err(format!("$ {command}\n{stream} ({why}), recorded:\n{recorded}now:\n{now}"));
            }
        }
        if said.code != entry.said.code {
            return Err(format!(
                "$ {}\nended with {} instead of {}",
                entry.command, said.code, entry.said.code
            ));
        }
        let words = entry.command.strip_prefix("sh -c: ").unwrap_or(&entry.command);
        let tool = words.split([' ', ';', '(', '\'']).find(|word| fake_freebsd::TOOLS.contains(word));
        Ok(Some(tool.unwrap_or("none").to_owned()))
    }

    fn root(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join("root").join(path.trim_start_matches('/'))
    }

    /// Run a command line with the fake tools.
    pub fn run(&self, line: &str) -> Said {
        let tools = self.machine.tools();
        let (line, nobody) = match line.strip_prefix("sh -c: su -m nobody -c '") {
            Some(line) => (line.trim_end_matches('\''), true),
            None => (line, false),
        };
        let mut command = match line.strip_prefix("sh -c: ") {
            Some(script) => {
                let mut command = Command::new("/bin/sh");
                command.args(["-c", script]);
                command
            }
            None => {
                let words = words(line);
                let mut command = Command::new(tools.join(&words[0]));
                command.args(&words[1..]);
                command
            }
        };
        command.env_clear().env("PATH", format!("{}:/usr/bin:/bin", tools.display())).stdin(Stdio::null());
        if nobody {
            command.env("FAKE_FREEBSD_NOBODY", "1");
        }
        let done = command.output().unwrap_or_else(|error| panic!("{line}: {error}"));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Said { out: text(&done.stdout), err: text(&done.stderr), code: done.status.code().unwrap_or(-1) }
    }

    /// What the recording script did beside its commands.
    fn act(&mut self, action: &str) {
        let words = words(action);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            // A process that sits in a folder, and its end.
            ["hold", path] => self.machine.change(|world| {
                world.holds.push(Hold { path: path.to_owned(), tries: None, stubborn: false });
            }),
            ["release"] => self.machine.change(|world| world.holds.clear()),
            // What a jail's connections do to its end.
            ["linger", jail, looks] => self.machine.change(|world| {
                world.lingering.insert(jail.to_owned(), looks.parse().unwrap());
            }),
            ["linger-no-more"] => self.machine.change(|world| world.lingering.clear()),
            ["no-pool"] => self.machine.change(|world| world.datasets.clear()),
            ["end-process", command] => self.machine.change(|world| {
                world.processes.retain(|_, process| !process.command.starts_with(command));
            }),
            ["jail", name, jid] => self.machine.change(|world| {
                let (name, jid) = (name.to_owned(), jid.parse().unwrap());
                world.jails.push(fake_freebsd::Jail { jid, name, ..Default::default() });
            }),
            ["process", pid, jid, command] => self.machine.change(|world| {
                let (jid, command) = (jid.parse().unwrap(), command.to_owned());
                let process = fake_freebsd::Process {
                    jid,
                    parent: 1,
                    command,
                    deaf: false,
                    stopped: false,
                    condemned: false,
                    awaiting: None,
                };
                world.processes.insert(pid.parse().unwrap(), process);
            }),
            ["state-to-clone", source, destination] => self.machine.change(|world| {
                let (source, destination) = (source.to_owned(), destination.to_owned());
                let kind = fake_freebsd::StateKind::ToClone;
                world.pf.states.push(fake_freebsd::State { source, destination, kind });
            }),
            ["end-of-dying"] => self.machine.change(|world| {
                world.lingering.clear();
                world.jails.retain(|jail| jail.dying.is_none());
            }),
            ["folder", path] => std::fs::create_dir_all(self.root(path)).unwrap(),
            ["file", path] => std::fs::write(self.root(path), "").unwrap(),
            ["write", path, text] => {
                std::fs::write(
                    self.root(path),
                    format!("{}\n", text.replace("\\n", "\n").replace('\'', "\"")),
                )
                .unwrap();
            }
            ["edit", path, old, new] => {
                let text = std::fs::read_to_string(self.root(path)).unwrap();
                assert!(text.contains(old), "{path} has no {old:?}");
                std::fs::write(self.root(path), text.replace(old, new)).unwrap();
            }
            ["copy", from, to] => drop(std::fs::copy(self.root(from), self.root(to)).unwrap()),
            ["next-jid", number] => self.machine.change(|world| {
                world.last.jid = number.parse::<u32>().unwrap() - 1;
            }),
            ["size", dataset, own] => self.machine.change(|world| {
                let dataset = world.datasets.get_mut(dataset).unwrap();
                dataset.own = own.parse().unwrap();
                dataset.referenced = dataset.own;
            }),
            ["sysctl", name, value] => self.machine.change(|world| {
                world.sysctl.insert(name.to_owned(), value.to_owned());
            }),
            ["state", source, destination] => self.machine.change(|world| {
                for kind in [fake_freebsd::StateKind::Inner, fake_freebsd::StateKind::Translated] {
                    let (source, destination) = (source.to_owned(), destination.to_owned());
                    world.pf.states.push(fake_freebsd::State { source, destination, kind });
                }
            }),
            ["interface", name, group] => self.machine.change(|world| {
                let id = world.new_id();
                let (name, made_as, group) = (name.to_owned(), name.to_owned(), group.to_owned());
                let ether = "58:9c:fc:10:f1:78".to_owned();
                let hardware = ether.clone();
                let new = fake_freebsd::Interface {
                    id,
                    name,
                    made_as,
                    group,
                    ether,
                    hardware,
                    ..Default::default()
                };
                world.interfaces.push(new);
            }),
            ["run", ..] => {
                let said = self.run(action.strip_prefix("run ").unwrap());
                assert_eq!(said.code, 0, "{action}: {said:?}");
            }
            _ => panic!("@ {action}: unknown"),
        }
    }

    /// Compare two texts word by word.
    fn same(&mut self, recorded: &str, now: &str) -> Result<(), String> {
        let (recorded, now) = (sorted(recorded), sorted(now));
        if recorded.len() != now.len() {
            return Err(format!("{} lines became {}", recorded.len(), now.len()));
        }
        for (recorded, now) in recorded.iter().zip(&now) {
            let plain = |line: &str| without_date(&without_addresses(line));
            let (recorded, now) = (plain(recorded), plain(now));
            let (left, right) = (pieces(&recorded), pieces(&now));
            if left.len() != right.len() {
                return Err(format!("{recorded:?} became {now:?}"));
            }
            for (at, (left, right)) in left.iter().zip(&right).enumerate() {
                let (left, right) = (left.as_str(), right.as_str());
                let before = pieces(&recorded)[..at].concat();
                let alike = left == right
                    || (is_time(&before, left) && is_time(&before, right))
                    || (is_number(&before) && self.same_number(left, right));
                if !alike {
                    return Err(format!("{recorded:?} became {now:?}: {left:?} is not {right:?}"));
                }
            }
        }
        Ok(())
    }

    fn same_number(&mut self, recorded: &str, now: &str) -> bool {
        if recorded.parse::<u32>().is_err() || now.parse::<u32>().is_err() {
            return false;
        }
        let known = self.numbers.entry(recorded.to_owned()).or_insert_with(|| now.to_owned());
        known == now
    }
}

/// Lines; lists of dependent clones come in an order of the kernel's own, so they are put into ours.
fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut list = Vec::new();
    let mut in_list = false;
    for line in text.lines() {
        if in_list && line.starts_with("zroot/") {
            list.push(line.to_owned());
            continue;
        }
        list.sort();
        lines.append(&mut list);
        in_list = line.starts_with("use '-R'");
        let listed = line.split(',').filter(|part| part.starts_with("zroot/")).count() > 1;
        match listed {
            true => {
                let mut parts: Vec<&str> = line.split(',').collect();
                parts.sort_unstable();
                lines.push(parts.join(","));
            }
            false => lines.push(line.to_owned()),
        }
    }
    list.sort();
    lines.append(&mut list);
    lines
}

/// A line in pieces: runs of digits, of other letters, and every other sign alone.
fn pieces(line: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let kind = |letter: char| match letter {
        '0'..='9' => 0,
        'a'..='z' | 'A'..='Z' => 1,
        _ => 2,
    };
    for letter in line.chars() {
        match pieces.last_mut() {
            Some(last) if kind(letter) < 2 && kind(last.chars().next().unwrap()) == kind(letter) => {
                last.push(letter)
            }
            _ => pieces.push(letter.to_string()),
        }
    }
    pieces
}

/// Whether a piece is a part of a time: seconds since 1970, or anything behind these words.
fn is_time(before: &str, piece: &str) -> bool {
    let seconds =
        piece.len() == 10 && piece.starts_with('1') && piece.bytes().all(|byte| byte.is_ascii_digit());
    let behind = ["Cleared:", "Status: Enabled for", "Status: Disabled for"];
    seconds || behind.iter().any(|words| before.contains(words))
}

/// A line without the address that the system gave to a new interface, of which only the form is known, and without the
/// number of a bridge's port.
fn without_addresses(line: &str) -> String {
    for lead in ["\tether ", "\thwaddr "] {
        if let Some(address) = line.strip_prefix(lead) {
            let parts: Vec<&str> = address.split(':').collect();
            let given = parts[0] == "02" || address.starts_with("58:9c:fc:10:");
            if given && parts.len() == 6 && parts.iter().all(|part| u8::from_str_radix(part, 16).is_ok()) {
                return format!("{lead}<address ending in {}>", &address[address.len() - 1..]);
            }
        }
    }
    match line.split_once("ifmaxaddr 0 port ").and_then(|(lead, rest)| Some((lead, rest.split_once(' ')?))) {
        Some((lead, (_, rest))) => format!("{lead}ifmaxaddr 0 port <port> {rest}"),
        None => line.to_owned(),
    }
}

/// A line without the time since when a snapshot is held, as in `Mon Nov 16 00:45 2026` or `Sun Nov  1 23:59 2026`: another
/// day has as many letters, but not as many words.
fn without_date(line: &str) -> String {
    let form = "Aaa Aaa _9 99:99 9999";
    let fits = |date: &str| {
        date.len() == form.len()
            && date.bytes().zip(form.bytes()).all(|(is, shall)| match shall {
                b'A' => is.is_ascii_uppercase(),
                b'a' => is.is_ascii_lowercase(),
                b'9' => is.is_ascii_digit(),
                b'_' => is == b' ' || is.is_ascii_digit(),
                sign => is == sign,
            })
    };
    match line.rsplit_once("\tkeep\t") {
        Some((lead, date)) if fits(date) => format!("{lead}\tkeep\t<date>"),
        _ => line.to_owned(),
    }
}

/// Whether the next piece is the number of a jail or process.
fn is_number(before: &str) -> bool {
    let marks = [
        "jid=",
        "\"jid\":",
        "\"jid\":\"",
        "\"jid\": ",
        "\"JID\":\"",
        "as pid ",
        "(pid=",
        "PIDS: ",
        "jail_attach(",
    ];
    marks.iter().any(|words| before.ends_with(words))
}

/// Words of a recorded command; quotes hold them together.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (letter, quote) {
            (letter, Some(open)) if letter == open => quote = None,
            (letter, Some(_)) => word.get_or_insert_default().push(letter),
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (' ', None) => words.extend(word.take()),
            (letter, None) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}
