//! The drop-in executable: what it refuses, how it ends, and that nothing starts if a layer is missing.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use launcher::Launcher;
use launcher::chromium::Flavor;
use launcher::config::OnMissing;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Every process whose command line contains `mark`, which only this test uses.
fn processes_with(mark: &str) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc")
        .expect("proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_mark = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        text(&line).contains(mark) && *pid != std::process::id()
    };
    pids.filter(has_mark).collect()
}

/// A port client's view: the drop-in is started and its announcement read.
fn start_with_port(setup: &Setup, arguments: &[&str]) -> (Child, String) {
    start_with_port_in(setup, arguments, &std::env::temp_dir())
}

fn start_with_port_in(setup: &Setup, arguments: &[&str], temporary: &Path) -> (Child, String) {
    let mut command = setup.drop_in();
    command.env("TMPDIR", temporary);
    command.args(["--headless", "--remote-debugging-port=0"]).args(arguments);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("spawn");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let deadline = Instant::now() + LIMIT;
    let endpoint = loop {
        let line = lines.next().expect("an announcement before the end").expect("text");
        if let Some(endpoint) = line.strip_prefix("DevTools listening on ") {
            break endpoint.to_owned();
        }
        assert!(Instant::now() < deadline);
    };
    // Keep reading, because a full pipe would block the browser.
    std::thread::spawn(move || lines.for_each(drop));
    (child, endpoint)
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect to the relay");
    stream.set_read_timeout(Some(LIMIT)).expect("timeout");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n")
        .expect("ask");
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    // Chromium keeps the connection open; the end of the JSON text is the end of the answer.
    while !text(&answer).trim_end().ends_with(['}', ']']) {
        let length = stream.read(&mut chunk).expect("read");
        assert!(length > 0, "closed: {}", text(&answer));
        answer.extend_from_slice(&chunk[..length]);
    }
    text(&answer)
}

#[test]
fn a_port_client_reaches_the_browser_through_the_relay() {
    as_root_and_as_user("a_port_client_reaches_the_browser_through_the_relay", || {
        let setup = Setup::new();
        let profile = setup.folder.path().join("profile");
        let (mut child, endpoint) =
            start_with_port(&setup, &[&format!("--user-data-dir={}", profile.display())]);
        let address = endpoint.strip_prefix("ws://127.0.0.1:").expect("a loopback address");
        let (port, path) = address.split_once('/').expect("a path");
        let port: u16 = port.parse().expect("a port");
        let file = std::fs::read_to_string(profile.join("DevToolsActivePort")).expect("the file");
        assert_eq!(file, format!("{port}\n/{path}"));
        for _ in 0..3 {
            let version = get(port, "/json/version");
            assert!(version.contains("Chrome/") && version.contains(&endpoint), "{version}");
        }
        if is_root() {
            // The relay refuses another user of the machine.
            let script = format!(
                "import socket;s=socket.create_connection(('127.0.0.1',{port}));s.settimeout(20);s.sendall(b'GET /json/version HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n');print(len(s.recv(100)))"
            );
            let mut stranger = Command::new("/usr/bin/python3");
            stranger.args(["-c", &script]).uid(ordinary()).gid(ordinary());
            let output = finish(stranger);
            assert!(
                text(&output.stdout).trim() == "0" || text(&output.stderr).contains("ConnectionReset"),
                "{output:?}"
            );
        }
        // The browser's own port is in its namespace: on the host only the launcher listens.
        let listening = std::fs::read_to_string("/proc/net/tcp").expect("sockets");
        assert_eq!(
            listening
                .lines()
                .filter(|line| line.contains(&format!("0100007F:{port:04X} 00000000:0000 0A")))
                .count(),
            1
        );
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).expect("TERM");
        child.wait().expect("wait");
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the relay is gone");
    });
}

#[test]
fn the_browser_ends_with_the_launcher() {
    as_root_and_as_user("the_browser_ends_with_the_launcher", || {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL] {
            let setup = Setup::new();
            let mark = format!("--x-mark={}-{signal}", std::process::id());
            let (mut child, _) = start_with_port(&setup, &[&mark]);
            assert!(processes_with(&mark).len() >= 2, "the launcher and the browser");
            kill(Pid::from_raw(child.id().cast_signed()), signal).expect("signal");
            child.wait().expect("wait");
            eventually(&format!("nothing is left after {signal}"), || processes_with(&mark).is_empty());
        }
    });
}

/// A client with a port has no pipe that closes when it is killed. It starts the browser in a session of its own, like
/// Puppeteer and chrome-launcher, directly or through a shell that waits for it.
#[test]
fn the_browser_ends_with_a_port_client_that_is_killed() {
    as_root_and_as_user("the_browser_ends_with_a_port_client_that_is_killed", || {
        let script = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True); sys.stdin.read()";
        for (number, shell) in [None, Some("\"$0\" \"$@\"; true")].into_iter().enumerate() {
            let setup = Setup::new();
            let profile = setup.folder.path().join("profile");
            let mark = format!("--x-mark={}-killed-{number}", std::process::id());
            let drop_in = setup.drop_in();
            let mut client = Command::new("/usr/bin/python3");
            client.args(["-c", script]);
            if let Some(shell) = shell {
                client.args(["/bin/sh", "-c", shell]);
            }
            client.arg(drop_in.get_program()).args(["--headless", "--remote-debugging-port=0", &mark]);
            client.arg(format!("--user-data-dir={}", profile.display()));
            client.env("BROWSER_LAUNCHER_CONFIG", setup.file());
            client.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut client = client.spawn().expect("python3");
            eventually("the browser announces itself", || profile.join("DevToolsActivePort").exists());
            client.kill().expect("KILL");
            client.wait().expect("wait");
            eventually("nothing is left", || processes_with(&mark).is_empty());
        }
    });
}

/// go-rod cannot be installed by the tests. These are its arguments in a container (`lib/launcher/launcher.go`), and the file
/// that it writes into the profile first.
#[test]
fn the_arguments_of_go_rod_start_a_browser() {
    as_root_and_as_user("the_arguments_of_go_rod_start_a_browser", || {
        let setup = Setup::new();
        let profile = setup.folder.path().join("rod/user-data/0123456789abcdef");
        std::fs::create_dir_all(profile.join("Default")).expect("mkdir");
        let preferences = r#"{"plugins":{"always_open_pdf_externally": true}}"#;
        std::fs::write(profile.join("Default/Preferences"), preferences).expect("write");
        let (mut child, endpoint) = start_with_port(
            &setup,
            &[
                "--disable-background-networking",
                "--disable-background-timer-throttling",
                "--disable-backgrounding-occluded-windows",
                "--disable-breakpad",
                "--disable-client-side-phishing-detection",
                "--disable-component-extensions-with-background-pages",
                "--disable-default-apps",
                "--disable-dev-shm-usage",
                "--disable-features=site-per-process,TranslateUI",
                "--disable-hang-monitor",
                "--disable-ipc-flooding-protection",
                "--disable-popup-blocking",
                "--disable-prompt-on-repost",
                "--disable-renderer-backgrounding",
                "--disable-sync",
                "--enable-automation",
                "--enable-features=NetworkService,NetworkServiceInProcess",
                "--force-color-profile=srgb",
                "--metrics-recording-only",
                "--no-first-run",
                "--no-sandbox",
                "--no-startup-window",
                "--use-mock-keychain",
                &format!("--user-data-dir={}", profile.display()),
            ],
        );
        let port = endpoint.strip_prefix("ws://127.0.0.1:").and_then(|rest| rest.split('/').next());
        let version = get(port.expect("a port").parse().expect("a number"), "/json/version");
        assert!(version.contains(&endpoint), "{version}");
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).expect("TERM");
        child.wait().expect("wait");
    });
}

/// The folder of the profile is below one that only root can enter, like `/root`.
#[test]
fn a_profile_in_a_closed_home_works() {
    as_root_and_as_user("a_profile_in_a_closed_home_works", || {
        let setup = Setup::new();
        let home = setup.folder.path().join("home");
        let profile = home.join(".cache/client/profile");
        std::fs::create_dir_all(&profile).expect("mkdir");
        let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&home, closed).expect("chmod");
        let argument = format!("--user-data-dir={}", profile.display());
        let output = setup.run(&["--headless", &argument, "--dump-dom", "data:text/html,<p>inside</p>"]);
        assert!(text(&output.stdout).contains("inside"), "{}", text(&output.stderr));
        assert!(profile.join("Default").is_dir(), "the profile is on the host");
    });
}

#[test]
fn dangerous_switches_and_folders_are_refused_with_the_reason() {
    as_root_and_as_user("dangerous_switches_and_folders_are_refused_with_the_reason", || {
        let setup = Setup::new();
        let mark = format!("--x-mark={}-refused", std::process::id());
        for (argument, reason) in [
            ("--no-sandbox", "turns off Chromium's own sandbox"),
            ("-No-Sandbox", "turns off Chromium's own sandbox"),
            ("--disable-features=Translate,IsolateOrigins", "site isolation"),
            ("--remote-allow-origins=*", "use the debugging port"),
            ("--remote-debugging-address=0.0.0.0", "opens the debugging channel"),
            ("--proxy-server=http://127.0.0.1:8080", "add \"127.0.0.1:8080\" to `allow`"),
            ("--proxy-server=https://proxy.example", "use http or socks5"),
            ("--user-data-dir=/etc", "belongs to the system"),
            ("--user-data-dir=/", "holds the folders of others"),
            ("--remote-debugging-port=99999", "not a port number"),
            ("--load-extension=/srv/secret", "extra_ro_bind"),
        ] {
            let output = setup.run(&["--headless", &mark, argument]);
            assert_eq!(output.status.code(), Some(2), "{argument}: {}", text(&output.stderr));
            assert!(text(&output.stderr).contains(reason), "{argument}: {}", text(&output.stderr));
        }
        assert_eq!(processes_with(&mark), [] as [u32; 0]);
    });
}

#[test]
fn client_defaults_are_removed_with_a_notice() {
    as_root_and_as_user("client_defaults_are_removed_with_a_notice", || {
        let setup = Setup::new();
        let mut command = setup.drop_in();
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-features=site-per-process",
            "--dump-dom",
            "data:text/html,<p>still confined</p>",
        ]);
        let output = finish(command);
        let said = text(&output.stderr);
        assert!(text(&output.stdout).contains("still confined"), "{said}");
        assert!(
            said.contains("`--no-sandbox` was left out") && said.contains("`site-per-process` was left out"),
            "{said}"
        );
    });
}

#[test]
fn a_missing_layer_starts_nothing_and_names_the_fix() {
    as_root_and_as_user("a_missing_layer_starts_nothing_and_names_the_fix", || {
        let mut setup = Setup::new();
        setup.config.bwrap_path = Some(setup.folder.path().join("no-bwrap"));
        let mark = format!("--x-mark={}-missing", std::process::id());
        let output = setup.run(&["--headless", &mark, "--dump-dom", "data:text/html,x"]);
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("bubblewrap"), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "");
        let error = Launcher::new(setup.config.clone())
            .flavor(Flavor::HeadlessShell)
            .launch()
            .expect_err("no bubblewrap");
        assert_eq!(error.missing_layer(), Some(sandbox::Layer::Bubblewrap));
        assert_eq!(processes_with(&mark), [] as [u32; 0]);
    });
}

#[test]
fn continuing_without_the_sandbox_must_be_configured() {
    only_as_user("continuing_without_the_sandbox_must_be_configured", || {
        let mut setup = Setup::new();
        setup.config.bwrap_path = Some(setup.folder.path().join("no-bwrap"));
        setup.config.on_missing = OnMissing::Warn;
        let arguments = ["--headless", "--dump-dom", "data:text/html,<p>bare</p>"];
        let output = setup.run(&arguments);
        assert!(text(&output.stdout).contains("bare"), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("WITHOUT this sandbox"), "{}", text(&output.stderr));
        setup.config = launcher::Config { enabled: false, ..setup.config };
        let output = setup.run(&arguments);
        assert!(
            text(&output.stdout).contains("bare") && text(&output.stderr).contains("enabled = false"),
            "{}",
            text(&output.stderr)
        );
        // The pipe of a pipe client still works.
        let said = client_over_pipe(&setup);
        assert!(said.contains("\"product\":\"Chrome/"), "{said}");
        // Switches are still filtered.
        assert_eq!(setup.run(&["--headless", "--no-sandbox"]).status.code(), Some(2));
    });
}

#[test]
fn a_pipe_client_without_a_pipe_is_refused() {
    as_root_and_as_user("a_pipe_client_without_a_pipe_is_refused", || {
        let setup = Setup::new();
        let mut command = setup.drop_in();
        command.args(["--headless", "--remote-debugging-pipe"]);
        let output = finish(command);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("descriptors 3 and 4"), "{}", text(&output.stderr));
    });
}

#[test]
fn version_explain_probe_and_doctor_work() {
    as_root_and_as_user("version_explain_probe_and_doctor_work", || {
        let setup = Setup::new();
        let mut command = setup.drop_in();
        command.arg("--version");
        assert!(text(&finish(command).stdout).contains("Chromium 1"));

        let mut command = Command::new(LAUNCHER);
        command.arg("--config").arg(setup.file()).args(["explain", "--", "--headless"]);
        let output = finish(command);
        let said = text(&output.stdout);
        assert!(
            output.status.success()
                && said.contains("--unshare-user")
                && said.contains(&setup.media().display().to_string()),
            "{said}{}",
            text(&output.stderr)
        );

        let mut command = Command::new(LAUNCHER);
        command.args(["probe", "--json"]);
        let output = finish(command);
        let report: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        assert_eq!(report["data"]["open"], 0, "{report}");
        assert!(
            report["data"]["battery"]["findings"].as_array().is_some_and(|list| list.len() >= 40),
            "{report}"
        );

        let mut command = Command::new(LAUNCHER);
        command.args(["doctor", "--json"]);
        let output = finish(command);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["success"], true, "{report}");
        assert_eq!(report["data"]["browsers"][0]["flavor"], "full");
        assert!(
            report["data"]["browsers"][0]["version"]
                .as_str()
                .is_some_and(|version| version.contains("Chromium"))
        );
    });
}

/// A pipe client as a shell script: one request, one response.
fn client_over_pipe(setup: &Setup) -> String {
    let program = setup.drop_in();
    let script = r#"dir=$(mktemp -d) && mkfifo "$dir/a" "$dir/b" && { "$0" --headless --remote-debugging-pipe 3<"$dir/a" 4>"$dir/b" & exec 5>"$dir/a" 6<"$dir/b"; printf '{"id":1,"method":"Browser.getVersion"}\0' >&5; head -c 120 <&6; printf '{"id":2,"method":"Browser.close"}\0' >&5; wait; rm -r "$dir"; }"#;
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).arg(program.get_program()).env("BROWSER_LAUNCHER_CONFIG", setup.file());
    let output = finish(command);
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// A private display.
struct Xvfb {
    child: Child,
    display: String,
    _folder: tempfile::TempDir,
    authority: std::path::PathBuf,
}

impl Xvfb {
    fn start() -> Xvfb {
        let folder = tempfile::tempdir().expect("folder");
        let authority = folder.path().join("authority");
        // One entry for any display: family "wild", empty address and number, a cookie of 16 bytes.
        let mut entry = vec![0xff, 0xff, 0, 0, 0, 0, 0, 18];
        entry.extend_from_slice(b"MIT-MAGIC-COOKIE-1\x00\x10");
        entry.extend(
            (0..16).map(|n| std::process::id().to_le_bytes()[n % 4] ^ u8::try_from(n).expect("small")),
        );
        std::fs::write(&authority, entry).expect("write");
        let (read, write) = nix::unistd::pipe().expect("pipe");
        let mut command = Command::new("/usr/bin/Xvfb");
        command
            .args(["-displayfd", "1", "-screen", "0", "800x600x24", "-nolisten", "tcp", "-auth"])
            .arg(&authority);
        let child = command
            .stdin(Stdio::null())
            .stdout(write)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("Xvfb");
        drop(command);
        let mut number = String::new();
        BufReader::new(std::fs::File::from(read)).read_line(&mut number).expect("a display number");
        Xvfb { child, display: format!(":{}", number.trim()), _folder: folder, authority }
    }
}

impl Drop for Xvfb {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

#[test]
fn a_headed_browser_shows_its_window_on_x11() {
    as_root_and_as_user("a_headed_browser_shows_its_window_on_x11", || {
        let display = Xvfb::start();
        let setup = Setup::new();
        let profile = setup.folder.path().join("profile");
        let mut command = setup.drop_in();
        command
            .env("DISPLAY", &display.display)
            .env("XAUTHORITY", &display.authority)
            .env_remove("WAYLAND_DISPLAY");
        command.args([
            "--remote-debugging-port=0",
            &format!("--user-data-dir={}", profile.display()),
            "data:text/html,<title>headed</title>",
        ]);
        let log = std::fs::File::create(setup.folder.path().join("log")).expect("log");
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("spawn");
        let said = || std::fs::read_to_string(setup.folder.path().join("log")).unwrap_or_default();
        eventually("the browser announces itself", || {
            assert!(child.try_wait().expect("wait").is_none(), "{}", said());
            profile.join("DevToolsActivePort").exists()
        });
        let file = std::fs::read_to_string(profile.join("DevToolsActivePort")).expect("file");
        let port = file.lines().next().expect("port").parse().expect("number");
        let mut pages = String::new();
        eventually("the page is open", || {
            pages = get(port, "/json/list");
            pages.contains("headed")
        });
        assert!(!get(port, "/json/version").contains("HeadlessChrome"));
        assert!(said().contains("X11 lets every window see the others"), "{}", said());
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).expect("TERM");
        child.wait().expect("wait");
        // Without a display a headed browser is refused with a hint.
        let mut command = setup.drop_in();
        command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY").arg("about:blank");
        let output = finish(command);
        assert_eq!(output.status.code(), Some(7));
        assert!(text(&output.stderr).contains("--headless"), "{}", text(&output.stderr));
    });
}

#[test]
fn no_folder_is_left_behind() {
    as_root_and_as_user("no_folder_is_left_behind", || {
        let setup = Setup::new();
        let temporary = setup.folder.path().join("tmp");
        std::fs::create_dir(&temporary).expect("mkdir");
        let entries = || std::fs::read_dir(&temporary).expect("list").count();
        let (mut child, _) = start_with_port_in(&setup, &[], &temporary);
        assert_eq!(entries(), 1, "the folder of the run");
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).expect("TERM");
        child.wait().expect("wait");
        assert_eq!(entries(), 0);
        assert!(!Path::new("/tmp/.org.chromium.Chromium").exists());
    });
}

#[test]
fn limits_are_enforced_or_nothing_starts() {
    as_root_and_as_user("limits_are_enforced_or_nothing_starts", || {
        let mut setup = Setup::new();
        setup.config.memory_mib = Some(2048);
        let launch =
            |setup: &Setup| Launcher::new(setup.config.clone()).flavor(Flavor::HeadlessShell).launch();
        // The machine decides which of the two happens; ignoring the limits silently is a failure.
        match launch(&setup) {
            Ok(browser) => {
                assert!(matches!(
                    browser.limits(),
                    sandbox::LimitEnforcer::Cgroup(_) | sandbox::LimitEnforcer::Scope(_)
                ));
                stop(browser);
            }
            Err(error) => {
                assert_eq!(error.missing_layer(), Some(sandbox::Layer::Limits), "{error}");
                setup.config.on_missing = OnMissing::Warn;
                let browser = launch(&setup).expect("limits are optional");
                let state = browser
                    .layers()
                    .into_iter()
                    .find(|(layer, _)| *layer == sandbox::Layer::Limits)
                    .expect("limits")
                    .1;
                assert!(matches!(state, sandbox::LayerState::Missing(_)), "{state:?}");
                stop(browser);
            }
        }
    });
}

/// Only root can use a prepared network namespace.
#[test]
fn the_browser_joins_a_prepared_network_namespace() {
    let _alone = alone();
    require_tools();
    let launch = |namespace| {
        Launcher::new(launcher::Config::default())
            .flavor(Flavor::HeadlessShell)
            .network_namespace(namespace)
            .launch()
    };
    let own: std::os::fd::OwnedFd = std::fs::File::open("/proc/self/ns/net").expect("open").into();
    if !is_root() {
        return assert!(launch(own).is_err(), "an ordinary user may not do this");
    }
    let prepared = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace");
        std::fs::File::open("/proc/thread-self/ns/net").expect("open")
    });
    let prepared = prepared.join().expect("thread");
    let inode = std::os::unix::fs::MetadataExt::ino(&prepared.metadata().expect("meta"));
    let browser = launch(prepared.into()).unwrap_or_else(|error| panic!("{error}"));
    let of_browser =
        std::fs::metadata(format!("/proc/{}/ns/net", browser.pid())).expect("the browser's namespace");
    assert_eq!(std::os::unix::fs::MetadataExt::ino(&of_browser), inode);
    stop(browser);
}

#[test]
fn a_profile_is_exclusive_and_reusable_after_a_kill() {
    as_root_and_as_user("a_profile_is_exclusive_and_reusable_after_a_kill", || {
        let setup = Setup::new();
        let profile = format!("--user-data-dir={}", setup.folder.path().join("profile").display());
        let (mut first, _) = start_with_port(&setup, &[&profile]);
        let output = setup.run(&["--headless", &profile, "--dump-dom", "about:blank"]);
        assert!(
            text(&output.stderr).contains("in use by another confined browser"),
            "{}",
            text(&output.stderr)
        );
        first.kill().expect("KILL");
        first.wait().expect("wait");
        // Chromium's lock file stays in the profile after a kill; it must not delay the next browser.
        let started = Instant::now();
        let (mut second, _) = loop {
            // The kernel needs some time to end the processes of the killed launcher.
            match folder_is_free(&setup.folder.path().join("profile")) {
                true => break start_with_port(&setup, &[&profile]),
                false => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
        kill(Pid::from_raw(second.id().cast_signed()), Signal::SIGTERM).expect("TERM");
        second.wait().expect("wait");
    });
}

fn folder_is_free(folder: &Path) -> bool {
    let folder = std::fs::File::open(folder).expect("open");
    nix::fcntl::Flock::lock(folder, nix::fcntl::FlockArg::LockExclusiveNonblock).is_ok()
}
