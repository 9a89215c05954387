//! Measures the cost of confinement: `scripts/bench launch` runs this and documents its output.
//!
//! Every round starts the bare and the confined browser with the same switches, in alternating order, each with a new
//! profile on the same file system. The result of a round is the ratio of the two. Both run as the same ordinary user,
//! because the bare browser refuses to run as root.
#![allow(unsafe_code)]

use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use launcher::cdp::Connection;
use launcher::chromium::{Chromium, Flavor};
use launcher::{Config, Launcher};
use serde_json::json;

const ORDINARY: u32 = 54321;
const LIMIT: Duration = Duration::from_secs(60);
/// The switches that the launcher would add anyway.
const SWITCHES: &[&str] = &[
    "--headless",
    "--no-startup-window",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--metrics-recording-only",
    "--no-pings",
    "--use-mock-keychain",
    "--password-store=basic",
    "--enable-unsafe-swiftshader",
    "--disable-features=MediaRouter,NetworkTimeServiceQuerying,OptimizationHints",
];

/// One start, until a blank page was opened and closed (for the confined browser, until the renderer is verified).
struct Start {
    answer: f64,
    page: f64,
    /// Processor time of all its processes until then; other load on the machine hardly affects it.
    cpu: f64,
    /// The sandbox's own share, from spawn to exec.
    own: f64,
}

struct Round {
    bare: Start,
    confined: Start,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let rounds: usize = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(15);
    if nix::unistd::geteuid().is_root() {
        return as_ordinary_user(rounds);
    }
    println!("bench launch: rounds={rounds} uid={} load={}", nix::unistd::geteuid(), load());
    line("case", "bare ms", "conf. ms", "ratio", "quartiles", "min/min", "target");
    let only = arguments.get(2);
    let mut own = Vec::new();
    for (name, flavor) in [("headless-shell", Flavor::HeadlessShell), ("chromium", Flavor::Full)] {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let chromium = Chromium::find(None, flavor).expect("a browser");
        assert_eq!(chromium.flavor, flavor, "{name} is not installed: run scripts/install-deps");
        // One unmeasured start each, to fill the page cache.
        bare(&chromium);
        confined(flavor);
        let measured: Vec<Round> =
            (0..rounds).map(|number| round(&chromium, flavor, number % 2 == 0)).collect();
        own.extend(measured.iter().map(|round| round.confined.own));
        row(&format!("{name} cdp-ready"), &measured, |start| start.answer, "<= 1.10");
        row(&format!("{name} blank-page"), &measured, |start| start.page, "-");
        row(&format!("{name} blank-page-cpu"), &measured, |start| start.cpu, "-");
    }
    let fastest = format!("min {:.1}", quantile(&own, 0.0));
    line("own-cost spawn-to-exec ms", "-", &one(quantile(&own, 0.5)), "-", &fastest, "-", "< 12");
}

/// Root measures memory, because it may read every process, and runs the rest as an ordinary user.
fn as_ordinary_user(rounds: usize) {
    let own = std::env::current_exe().expect("own path");
    let home = tempfile::tempdir().expect("a home");
    chown(home.path(), Some(ORDINARY), Some(ORDINARY)).expect("chown");
    let mut command = Command::new(&own);
    command
        .arg(rounds.to_string())
        .env_clear()
        .env("HOME", home.path())
        .current_dir("/")
        .uid(ORDINARY)
        .gid(ORDINARY);
    assert!(command.status().expect("run as an ordinary user").success());
    let kib = memory_beside_browser(home.path());
    line(
        "memory-beside-browser MiB",
        "-",
        &format!("{:.2}", f64::from(kib) / 1024.0),
        "-",
        "PSS",
        "-",
        "< 6",
    );
}

fn round(chromium: &Chromium, flavor: Flavor, bare_first: bool) -> Round {
    if bare_first {
        let bare = bare(chromium);
        Round { bare, confined: confined(flavor) }
    } else {
        let confined = confined(flavor);
        Round { bare: bare(chromium), confined }
    }
}

/// Processor time in milliseconds of a process, its threads and all its running descendants.
fn cpu_of(pid: u32) -> f64 {
    let mut sum = 0.0;
    let mut open = vec![pid];
    while let Some(pid) = open.pop() {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let nanoseconds = read("schedstat").split(' ').next().and_then(|text| text.parse::<f64>().ok());
            sum += nanoseconds.unwrap_or(0.0) / 1e6;
            open.extend(read("children").split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    sum
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The bare browser, from before its spawn.
fn bare(chromium: &Chromium) -> Start {
    let profile = tempfile::tempdir().expect("profile");
    let pipe = || nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).expect("pipe");
    let started = Instant::now();
    let ((browser_in, to_browser), (from_browser, browser_out)) = (pipe(), pipe());
    let mut command = Command::new(&chromium.executable);
    command
        .args(SWITCHES)
        .arg("--remote-debugging-pipe")
        .arg(format!("--user-data-dir={}", profile.path().display()));
    command.env_clear().env("HOME", profile.path()).env("LANG", "C.UTF-8").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    give_pipe(&mut command, &browser_in, &browser_out);
    let mut child = command.spawn().expect("the bare browser");
    drop((browser_in, browser_out));
    let mut cdp = Connection::new(from_browser, to_browser);
    cdp.call("Browser.getVersion", json!({}), LIMIT).expect("an answer");
    let answer = millis(started.elapsed());
    let page =
        cdp.call("Target.createTarget", json!({ "url": "about:blank" }), LIMIT).expect("a page")["targetId"]
            .clone();
    cdp.call("Target.closeTarget", json!({ "targetId": page }), LIMIT).expect("closed");
    let page = millis(started.elapsed());
    let cpu = cpu_of(child.id());
    cdp.call("Browser.close", json!({}), LIMIT).expect("the end");
    child.wait().expect("wait");
    Start { answer, page, cpu, own: 0.0 }
}

fn give_pipe(command: &mut Command, input: &OwnedFd, output: &OwnedFd) {
    let (input, output) = (input.as_raw_fd(), output.as_raw_fd());
    let check = |result| {
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
    };
    // SAFETY: fcntl on a number, allowed between fork and exec.
    let raise = move |fd| check(unsafe { nix::libc::fcntl(fd, nix::libc::F_DUPFD_CLOEXEC, 50) });
    // SAFETY: dup2 on numbers, allowed between fork and exec.
    let duplicate = move |from, to| check(unsafe { nix::libc::dup2(from, to) }).map(drop);
    let both = move || {
        // First above the two targets, so that neither is overwritten before it was copied.
        let (high_input, high_output) = (raise(input)?, raise(output)?);
        duplicate(high_input, 3)?;
        duplicate(high_output, 4)
    };
    // SAFETY: the closure only makes the calls above.
    unsafe { command.pre_exec(both) };
}

/// The confined browser, including the search for its executable.
fn confined(flavor: Flavor) -> Start {
    let profile = tempfile::tempdir().expect("profile");
    let launcher = Launcher::new(Config::default()).flavor(flavor).profile(profile.path());
    let mut browser =
        launcher.arguments(SWITCHES).and_then(Launcher::launch).unwrap_or_else(|error| panic!("{error}"));
    let cpu = cpu_of(browser.guard_pid());
    let (timings, own) = (browser.timings(), browser.sandbox_timings());
    browser.stop(Duration::from_secs(5)).expect("stop");
    Start { answer: millis(timings.answer), page: millis(timings.verify), cpu, own: millis(own.total()) }
}

fn row(name: &str, rounds: &[Round], figure: fn(&Start) -> f64, target: &str) {
    let bare: Vec<f64> = rounds.iter().map(|round| figure(&round.bare)).collect();
    let confined: Vec<f64> = rounds.iter().map(|round| figure(&round.confined)).collect();
    let ratios: Vec<f64> = confined.iter().zip(&bare).map(|(confined, bare)| confined / bare).collect();
    let quartiles = format!("{:.2}..{:.2}", quantile(&ratios, 0.25), quantile(&ratios, 0.75));
    let best = quantile(&confined, 0.0) / quantile(&bare, 0.0);
    let (bare, confined, ratio) = (quantile(&bare, 0.5), quantile(&confined, 0.5), quantile(&ratios, 0.5));
    line(name, &one(bare), &one(confined), &three(ratio), &quartiles, &three(best), target);
}

fn one(value: f64) -> String {
    format!("{value:.1}")
}

fn three(value: f64) -> String {
    format!("{value:.3}")
}

fn line(case: &str, bare: &str, confined: &str, ratio: &str, quartiles: &str, best: &str, target: &str) {
    println!("{case:<32} {bare:>9} {confined:>9} {ratio:>7} {quartiles:>12} {best:>10} {target:>8}");
    std::io::stdout().flush().expect("stdout");
}

fn quantile(values: &[f64], at: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    sorted[((sorted.len() - 1) as f64 * at).round() as usize]
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg")
        .unwrap_or_default()
        .split(' ')
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// KiB (PSS) of the drop-in executable and everything that it started, except the browser's own processes.
fn memory_beside_browser(home: &Path) -> u32 {
    let own = std::env::current_exe().expect("own path");
    let launcher = own.parent().and_then(Path::parent).expect("target folder").join("browser-launcher");
    assert!(launcher.exists(), "{} is missing: use scripts/bench launch", launcher.display());
    let mut command = Command::new(launcher);
    command.args(["--headless", "--remote-debugging-port=0"]).env_clear().env("HOME", home).current_dir("/");
    if nix::unistd::geteuid().is_root() {
        command.uid(ORDINARY).gid(ORDINARY);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the drop-in");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().expect("piped")));
    assert!(
        lines.any(|line| line.is_ok_and(|line| line.starts_with("DevTools listening"))),
        "the browser did not start"
    );
    let mut sum = 0;
    let mut open = vec![child.id()];
    while let Some(pid) = open.pop() {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        // All descendants of the browser's first process belong to the browser.
        if program.starts_with("/usr/lib/chromium") {
            continue;
        }
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
            .expect("memory of a process (needs root)");
        let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).expect("Pss");
        sum += pss.trim().trim_end_matches(" kB").parse::<u32>().expect("a number");
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
        for task in tasks.flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            open.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.id().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .expect("TERM");
    child.wait().expect("wait");
    sum
}
