//! What an operation costs: the processes that the daemon starts for it.
//!
//! After a change the daemon looks at the whole host once more, on its own account. Such a look is always the same set of
//! commands, so it can be told apart: it is measured once, and as often as its first command was run, all of it is
//! taken off.

use super::{Daemon, Lab};
use fake_freebsd::Run;
use serde_json::json;
use std::time::Duration;

/// Settings under which nothing happens on the host but what is asked for.
pub const QUIET: &str = "lifecycle.reconcile_interval_ms = 3600000";

/// The one command that is in every look at the whole host and in nothing else.
const WHOLE: &str = "-r -d 2 -t filesystem";

/// Counts the commands of operations.
pub struct Costs<'a> {
    lab: &'a Lab,
    daemon: &'a Daemon,
    look: Vec<String>,
}

impl<'a> Costs<'a> {
    pub fn new(lab: &'a Lab, daemon: &'a Daemon) -> Costs<'a> {
        let mut costs = Costs { lab, daemon, look: Vec::new() };
        costs.look = costs.look_at_the_host();
        assert_eq!(costs.look.iter().filter(|line| line.contains(WHOLE)).count(), 1, "{:#?}", costs.look);
        costs
    }

    /// The commands of a look at the whole host, in the order of their words.
    pub fn look_at_the_host(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.looked().iter().map(Run::line).collect();
        lines.sort();
        lines
    }

    /// The commands of a look at the whole host. A dry run of the reaper is one, and does nothing.
    pub fn looked(&self) -> Vec<Run> {
        self.rest();
        let seen = self.daemon.call("browser-clone-reap", json!({"dry_run": true}));
        assert_eq!(seen["reaped"], json!([]), "{seen}");
        self.rest()
    }

    /// The commands of one operation.
    pub fn of<T>(&self, operation: impl FnOnce() -> T) -> (T, Vec<Run>) {
        self.rest();
        let answer = operation();
        let mut runs = self.rest();
        let looks = runs.iter().filter(|run| run.line().contains(WHOLE)).count();
        for line in self.look.iter().flat_map(|line| std::iter::repeat_n(line, looks)) {
            let last = runs.iter().rposition(|run| run.line() == *line);
            runs.remove(last.unwrap_or_else(|| panic!("{line} belongs to a look and is not there")));
        }
        (answer, runs)
    }

    /// Wait until the daemon does nothing by itself any more; answers what it ran since the last time.
    fn rest(&self) -> Vec<Run> {
        let mut seen = usize::MAX;
        let runs = self.lab.until("the daemon rests", || {
            std::thread::sleep(Duration::from_millis(400));
            let runs = self.lab.machine.calls();
            let resting = runs.len() == seen && runs.iter().all(|run| run.code.is_some());
            seen = runs.len();
            resting.then_some(runs)
        });
        self.lab.machine.forget_calls();
        runs
    }
}

/// The commands, one a line.
pub fn shown(runs: &[Run]) -> String {
    runs.iter().map(|run| format!("  {}\n", run.line())).collect()
}
