//! No terminal reaches the browser, and no control character of the browser reaches a terminal. `script` gives the
//! launcher a terminal, as a user has one.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use common::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A command for `script`, which runs it on a new terminal and copies the terminal's output to its standard output.
fn on_terminal(command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted: Vec<String> =
        words.map(|word| format!("'{}'", word.to_str().expect("text").replace('\'', r"'\''"))).collect();
    let mut script = Command::new("/usr/bin/script");
    script.args(["--quiet", "--return", "--command", &quoted.join(" "), "/dev/null"]).env("TERM", "xterm");
    for (name, value) in command.get_envs() {
        script.env(name, value.expect("set"));
    }
    script
}

/// All descendants of a process.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", found[next])).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        next += 1;
    }
    found
}

/// The descendants in another PID namespace: the processes in the sandbox.
fn inside(pid: u32) -> Vec<u32> {
    let namespace = |pid: u32| std::fs::metadata(format!("/proc/{pid}/ns/pid")).map(|meta| meta.ino()).ok();
    let own = namespace(std::process::id());
    descendants(pid)
        .into_iter()
        .filter(|pid| namespace(*pid).is_some_and(|found| Some(found) != own))
        .collect()
}

/// Why a process can reach a terminal; `None` if it cannot.
fn terminal_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name: state, parent, group, session, terminal.
    let terminal = stat.rsplit_once(')')?.1.split_whitespace().nth(4)?.to_owned();
    if terminal != "0" {
        return Some(format!("process {pid} has the controlling terminal {terminal}"));
    }
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.starts_with("/dev/pts") || target.starts_with("/dev/tty") || target.ends_with("ptmx") {
            let number = entry.file_name().to_string_lossy().into_owned();
            return Some(format!("descriptor {number} of process {pid} is {}", target.display()));
        }
    }
    None
}

/// Starts a command on a terminal and waits for the announcement of its debugging port.
fn start(command: &Command) -> (Child, Vec<String>) {
    let mut script = on_terminal(command);
    let mut child =
        script.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("script");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut seen = Vec::new();
    loop {
        let Some(line) = lines.next() else { panic!("it ended before the announcement: {seen:#?}") };
        seen.push(line.expect("text"));
        if seen.last().is_some_and(|line| line.starts_with("DevTools listening on ws://127.0.0.1:")) {
            break;
        }
    }
    std::thread::spawn(move || lines.for_each(drop));
    (child, seen)
}

#[test]
fn no_process_of_the_browser_has_a_terminal() {
    as_root_and_as_user("no_process_of_the_browser_has_a_terminal", || {
        let setup = Setup::new();
        let mut run = Command::new(LAUNCHER);
        run.arg("--config").arg(setup.file()).args(["run", "--", "--headless", "--remote-debugging-port=0"]);
        let mut drop_in = setup.drop_in();
        drop_in.args(["--headless", "--remote-debugging-port=0"]);
        for command in [run, drop_in] {
            let (mut script, _) = start(&command);
            let launcher = descendants(script.id())
                .into_iter()
                .find(|pid| {
                    let name = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    let program = text(&name).split('\0').next().unwrap_or_default().to_owned();
                    program.ends_with("browser-launcher") || program.ends_with("chromium-sandboxed")
                })
                .expect("the launcher");
            assert!(terminal_of(launcher).is_some(), "the launcher itself has a terminal");
            let processes = inside(launcher);
            assert!(processes.len() >= 3, "the browser and its children: {processes:?}");
            for pid in processes {
                assert_eq!(terminal_of(pid), None);
            }
            kill(Pid::from_raw(launcher.cast_signed()), Signal::SIGTERM).expect("TERM");
            script.wait().expect("wait");
        }
    });
}

#[test]
fn a_page_cannot_control_the_terminal() {
    as_root_and_as_user("a_page_cannot_control_the_terminal", || {
        let setup = Setup::new();
        let page = "data:text/html,<p>start&%23x1b;]0;title&%23x7;&%23x202e;end</p><script>console.error('said \\x1b[2J \\u202e by the page')</script>";
        let mut command = Command::new(LAUNCHER);
        command.arg("--config").arg(setup.file()).args(["run", "--", "--headless"]);
        command.args(["--enable-logging=stderr", "--dump-dom", page]);
        let shown = text(&finish(on_terminal(&command)).stdout);
        assert!(shown.contains(r"start\u{1b}]0;title\u{7}") && shown.contains(r"\u{202e}end"), "{shown:?}");
        assert!(shown.contains("by the page"), "{shown:?}");
        // The terminal itself turns line ends into CR LF.
        let hidden = |c: char| safe_text::is_hidden(c) && !matches!(c, '\r' | '\n' | '\t');
        assert!(!shown.contains(hidden), "{shown:?}");

        // A file gets the document unchanged.
        let output = finish(command);
        assert!(text(&output.stdout).contains("start\u{1b}]0;title\u{7}"), "{:?}", text(&output.stdout));
        assert!(text(&output.stdout).contains("\u{202e}end"), "{:?}", text(&output.stdout));
        assert!(!text(&output.stderr).contains(hidden), "{:?}", text(&output.stderr));
    });
}

#[test]
fn the_whole_output_of_a_command_arrives() {
    as_root_and_as_user("the_whole_output_of_a_command_arrives", || {
        let setup = Setup::new();
        let page = "data:text/html,<p id=p></p><script>document.getElementById('p').textContent='Q'.repeat(3000000)</script>";
        let output = setup.run(&["--headless", "--dump-dom", page]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        assert_eq!(shown.matches('Q').count() - shown.matches("'Q'").count(), 3_000_000);
        assert!(shown.trim_end().ends_with("</html>"), "{}", &shown[shown.len() - 100..]);
    });
}
