//! Proof that Chromium's own sandbox is alive inside ours: a renderer that was *seen* in a user namespace of its own,
//! with a system call filter of its own on top of the one that every process here has.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

/// What was seen of a renderer process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RendererProof {
    /// Its pid, in the host's numbering.
    pub pid: u32,
    /// Its user namespace, another one than the browser process has.
    pub user_namespace: u64,
    /// The filters that it has beyond those of the browser process.
    pub own_seccomp_filters: u32,
}

/// Proof for a browser that somebody else drives: waits until a renderer below this process is seen in a sandbox of its
/// own, compared with the process itself. The error says what was seen last.
pub fn prove_renderer(browser: u32, limit: Duration) -> Result<RendererProof, String> {
    let observer = Observer::new(browser).map_err(|error| format!("process {browser}: {error}"))?;
    observer.wait(limit)
}

/// What a look at the renderers showed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// None there yet, or still on its way into its sandbox.
    NothingYet(String),
    Confined(RendererProof),
}

/// The process whose children are looked at.
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

    /// Looks once at every renderer.
    pub(crate) fn look(&self) -> Sight {
        // Zygotes and their children are children of first threads, and a browser has dozens of threads: the short walk
        // finds the renderers, the long one is for a Chromium that does it differently.
        let seen = self.look_below(Walk::FirstThreads).or_else(|| self.look_below(Walk::AllThreads));
        seen.unwrap_or_else(|| Sight::NothingYet("no renderer process was seen".to_owned()))
    }

    /// `None` when there is no renderer.
    fn look_below(&self, walk: Walk) -> Option<Sight> {
        let mut seen = None;
        for process in self.browser.descendants(walk) {
            if !process.is_renderer() {
                continue;
            }
            // A process that is gone again, or is being set up, is no proof either way.
            let (Ok(namespace), Ok(filters)) = (process.user_namespace(), process.seccomp_filters()) else {
                continue;
            };
            let own_filters = filters.saturating_sub(self.own_filters);
            if namespace != self.own_namespace && own_filters > 0 {
                return Some(Sight::Confined(RendererProof {
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
            seen = Some(Sight::NothingYet(format!("renderer {} was seen {what}", process.0)));
        }
        seen
    }

    /// Looks until a confined renderer is seen; the error says what was seen last.
    pub(crate) fn wait(&self, limit: Duration) -> Result<RendererProof, String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.look() {
                Sight::Confined(proof) => return Ok(proof),
                Sight::NothingYet(seen) if Instant::now() >= deadline => return Err(seen),
                Sight::NothingYet(_) => std::thread::sleep(Duration::from_millis(4)),
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
        // Chromium rewrites its children's command lines, with spaces in the place of zero bytes.
        let line = fs::read(self.file("cmdline")).unwrap_or_default();
        line.split(|byte| matches!(byte, 0 | b' ')).any(|word| word == b"--type=renderer")
    }

    fn children(self, walk: Walk) -> Vec<Process> {
        let parse = |list: String| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok().map(Process)).collect::<Vec<_>>()
        };
        let of_thread =
            |folder: PathBuf| fs::read_to_string(folder.join("children")).map(parse).unwrap_or_default();
        match walk {
            Walk::FirstThreads => of_thread(self.file(&format!("task/{}", self.0))),
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

/// Whose children are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    FirstThreads,
    AllThreads,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    /// A process that calls itself a renderer but is not confined at all.
    fn false_renderer() -> Child {
        let mut command = Command::new("/bin/sleep");
        command.arg0("chromium --type=renderer").arg("30").stdin(Stdio::null());
        command.spawn().expect("sleep")
    }

    #[test]
    fn an_unconfined_renderer_is_no_proof() {
        let mut child = false_renderer();
        let observer = Observer::new(std::process::id()).expect("own process");
        let error = observer.wait(Duration::from_millis(200)).expect_err("not confined");
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(error.contains("in the user namespace of the browser process"), "{error}");
    }

    #[test]
    fn no_renderer_is_no_proof() {
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
