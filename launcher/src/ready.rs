//! Proves that Chromium's own sandbox is active: a renderer must be observed in its own user namespace, with more
//! system call filters than the browser process.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

/// How much of a process's command line is read. Chromium's are a few kilobytes long.
const LONGEST_COMMAND_LINE: u64 = 64 << 10;

/// What was observed of a confined renderer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RendererProof {
    /// Its process id on the host.
    pub pid: u32,
    /// Its user namespace, which differs from that of the browser process.
    pub user_namespace: u64,
    /// The number of filters in addition to those of the browser process.
    pub own_seccomp_filters: u32,
}

/// Waits until a descendant renderer of the process `browser` is confined by Chromium's own sandbox. For browsers that
/// another program controls. The error is the last observation.
pub fn prove_renderer(browser: u32, limit: Duration) -> Result<RendererProof, String> {
    let observer = Observer::new(browser).map_err(|error| format!("process {browser}: {error}"))?;
    observer.wait(limit)
}

/// The result of inspecting the renderers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RendererState {
    /// No renderer exists yet, or it has not entered its sandbox yet.
    NotConfined(String),
    Confined(RendererProof),
}

/// Inspects the descendants of a browser process.
#[derive(Debug)]
pub(crate) struct Observer {
    browser: Process,
    own_namespace: u64,
    own_filters: u32,
}

impl Observer {
    pub(crate) fn new(browser_pid: u32) -> std::io::Result<Observer> {
        let browser = Process(browser_pid);
        Ok(Observer {
            own_namespace: browser.user_namespace()?,
            own_filters: browser.seccomp_filters()?,
            browser,
        })
    }

    /// Inspects every renderer once.
    pub(crate) fn inspect(&self) -> RendererState {
        // Zygotes and their children are children of main threads, so the fast walk finds the renderers. The full walk
        // over dozens of threads is only for a Chromium that behaves differently.
        let state = self.inspect_below(Walk::MainThreads).or_else(|| self.inspect_below(Walk::AllThreads));
        state.unwrap_or_else(|| RendererState::NotConfined("no renderer process was seen".to_owned()))
    }

    /// `None` if there is no renderer.
    fn inspect_below(&self, walk: Walk) -> Option<RendererState> {
        let mut seen = None;
        for process in self.browser.descendants(walk) {
            if !process.is_renderer() {
                continue;
            }
            // A process that has ended or is being set up proves nothing.
            let (Ok(namespace), Ok(filters)) = (process.user_namespace(), process.seccomp_filters()) else {
                continue;
            };
            let own_filters = filters.saturating_sub(self.own_filters);
            if namespace != self.own_namespace && own_filters > 0 {
                return Some(RendererState::Confined(RendererProof {
                    pid: process.0,
                    user_namespace: namespace,
                    own_seccomp_filters: own_filters,
                }));
            }
            let what = if namespace == self.own_namespace {
                "in the user namespace of the browser process"
            } else {
                "without a system call filter of its own"
            };
            seen = Some(RendererState::NotConfined(format!("renderer {} was seen {what}", process.0)));
        }
        seen
    }

    /// Inspects until a renderer is confined; the error is the last observation.
    pub(crate) fn wait(&self, limit: Duration) -> Result<RendererProof, String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.inspect() {
                RendererState::Confined(proof) => return Ok(proof),
                RendererState::NotConfined(seen) if Instant::now() >= deadline => return Err(seen),
                RendererState::NotConfined(_) => std::thread::sleep(Duration::from_millis(4)),
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Process(u32);

impl Process {
    fn file(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.0))
    }

    fn user_namespace(self) -> std::io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        Ok(fs::metadata(self.file("ns/user"))?.ino())
    }

    fn seccomp_filters(self) -> std::io::Result<u32> {
        let status = fs::read_to_string(self.file("status"))?;
        let count = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"));
        // Linux 5.9 and later; Landlock, which is required anyway, came with 5.13.
        count
            .and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| std::io::Error::other("this kernel does not count seccomp filters"))
    }

    fn is_renderer(self) -> bool {
        // Chromium rewrites its children's command lines with spaces instead of zero bytes. A process can make the kernel
        // report any amount of its memory as its command line (PR_SET_MM_MAP), so only the beginning is read.
        let mut line = Vec::new();
        if let Ok(file) = fs::File::open(self.file("cmdline")) {
            // A process that has ended has no command line.
            let _ = file.take(LONGEST_COMMAND_LINE).read_to_end(&mut line);
        }
        line.split(|byte| matches!(byte, 0 | b' ')).any(|word| word == b"--type=renderer")
    }

    fn children(self, walk: Walk) -> Vec<Process> {
        let parse = |list: String| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok().map(Process)).collect::<Vec<_>>()
        };
        let of_thread =
            |folder: PathBuf| fs::read_to_string(folder.join("children")).map(parse).unwrap_or_default();
        match walk {
            Walk::MainThreads => of_thread(self.file(&format!("task/{}", self.0))),
            Walk::AllThreads => {
                let threads = fs::read_dir(self.file("task")).into_iter().flatten().flatten();
                threads.flat_map(|thread| of_thread(thread.path())).collect()
            }
        }
    }

    fn descendants(self, walk: Walk) -> Vec<Process> {
        let mut seen = HashSet::from([self]);
        let mut found = self.children(walk);
        let mut next = 0;
        while next < found.len() {
            if seen.insert(found[next]) {
                let below = found[next].children(walk);
                found.extend(below);
            }
            next += 1;
        }
        found
    }
}

/// The threads whose children are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    MainThreads,
    AllThreads,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    /// A process with a renderer's command line that is not confined.
    fn false_renderer() -> Child {
        let mut command = Command::new("/bin/sleep");
        command.arg0("chromium --type=renderer").arg("30").stdin(Stdio::null());
        command.spawn().expect("sleep")
    }

    #[test]
    fn an_unconfined_renderer_is_not_accepted() {
        let mut child = false_renderer();
        let observer = Observer::new(std::process::id()).expect("own process");
        let error = observer.wait(Duration::from_millis(200)).expect_err("not confined");
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(error.contains("in the user namespace of the browser process"), "{error}");
    }

    #[test]
    fn a_missing_renderer_is_reported() {
        let mut child = Command::new("/bin/sleep").arg("30").spawn().expect("sleep");
        let error = Observer::new(child.id())
            .expect("process")
            .wait(Duration::from_millis(20))
            .expect_err("nothing there");
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(error.contains("no renderer"), "{error}");
    }
}
