//! The bare browser in a bare bubblewrap.

use launcher::cdp::Connection;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use serde_json::json;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// Chromium refuses to run as root; nobody else has this number here.
const USER: u32 = 61_900;

pub(crate) struct Bare {
    child: Child,
    /// Every process of the browser holds the other end.
    leash: File,
    _cdp: Connection,
}

impl Bare {
    /// Start it and wait until a page ran script, as browserd does before it calls itself ready.
    pub(crate) fn start(folder: &Path) -> Bare {
        fs::create_dir(folder).unwrap();
        chown(folder, Some(USER), Some(USER)).unwrap();
        let browser =
            launcher::chromium::Chromium::find(None, launcher::chromium::Flavor::HeadlessShell).unwrap();
        let pipe = || pipe2(OFlag::O_CLOEXEC).unwrap();
        let ((browser_in, to_browser), (from_browser, browser_out), (leash, held)) = (pipe(), pipe(), pipe());
        let mut command = Command::new("/bin/sh");
        // The shell puts the pipe where Chromium looks for it.
        command
            .args(["-c", "exec \"$@\" 3<&0 4>&1", "sh", "/usr/bin/bwrap", "--ro-bind", "/", "/"])
            .args(["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--bind"])
            .arg(folder)
            .arg("/tmp")
            .args(["--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--"])
            .arg(browser.executable)
            .args(["--headless", "--remote-debugging-pipe", "--no-startup-window", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args([
                "--disable-breakpad",
                "--disable-crash-reporter",
                "--disable-extensions",
                "--user-data-dir=/tmp/profile",
            ])
            .env_clear()
            .env("HOME", "/tmp")
            .current_dir("/")
            .uid(USER)
            .gid(USER)
            .stdin(Stdio::from(browser_in))
            .stdout(Stdio::from(browser_out))
            .stderr(Stdio::from(held));
        let child = command.spawn().unwrap();
        // The command holds copies of our ends.
        drop(command);
        let mut cdp = Connection::new(from_browser, to_browser);
        cdp.call("Browser.getVersion", json!({}), LIMIT).unwrap();
        let target = cdp.call("Target.createTarget", json!({ "url": "about:blank" }), LIMIT).unwrap();
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = cdp.call("Target.attachToTarget", attach, LIMIT).unwrap();
        let session = session["sessionId"].as_str().unwrap().to_owned();
        let one =
            cdp.call_in(Some(&session), "Runtime.evaluate", json!({ "expression": "1" }), LIMIT).unwrap();
        assert_eq!(one["result"]["value"], 1);
        Bare { child, leash: File::from(leash), _cdp: cdp }
    }

    /// Kill it and wait until none of its processes is left.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut said = Vec::new();
        self.leash.read_to_end(&mut said).unwrap();
    }
}
