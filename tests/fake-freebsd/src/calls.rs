//! Who was called when: every run of a tool writes a line at its start and one at its end.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Began { pid: u32, tool: String, arguments: Vec<String>, at: u64 },
    Ended { pid: u32, code: i32, at: u64 },
}

/// One run of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Which.
    pub tool: String,
    /// With what.
    pub arguments: Vec<String>,
    /// Its exit code; none if it did not end by itself.
    pub code: Option<i32>,
    /// When, in nanoseconds.
    pub began: u64,
    /// Until when; its beginning if it did not end by itself.
    pub ended: u64,
}

impl Run {
    /// Its command line.
    pub fn line(&self) -> String {
        std::iter::once(&self.tool).chain(&self.arguments).cloned().collect::<Vec<_>>().join(" ")
    }
}

fn at() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn write(file: &Path, line: &Line) {
    let mut text = serde_json::to_string(line).expect("plain data");
    text.push('\n');
    let file = OpenOptions::new().append(true).create(true).open(file);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("the list of calls can be written");
}

pub(crate) fn began(file: &Path, tool: &str, arguments: &[String]) {
    let (tool, arguments) = (tool.to_owned(), arguments.to_vec());
    write(file, &Line::Began { pid: std::process::id(), tool, arguments, at: at() });
}

pub(crate) fn ended(file: &Path, code: i32) {
    write(file, &Line::Ended { pid: std::process::id(), code, at: at() });
}

/// All runs so far, in the order in which they began.
pub(crate) fn read(file: &Path) -> Vec<Run> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut runs: Vec<Run> = Vec::new();
    let mut open = BTreeMap::new();
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(Line::Began { pid, tool, arguments, at }) => {
                open.insert(pid, runs.len());
                runs.push(Run { tool, arguments, code: None, began: at, ended: at });
            }
            Ok(Line::Ended { pid, code, at }) => {
                if let Some(run) = open.remove(&pid) {
                    (runs[run].code, runs[run].ended) = (Some(code), at);
                }
            }
            // The last line of a tool that was killed while it wrote.
            Err(_) => {}
        }
    }
    runs
}

/// How many runs follow one another at most: each begins after the one before has ended.
pub fn depth(runs: &[Run]) -> usize {
    let mut runs: Vec<&Run> = runs.iter().collect();
    runs.sort_by_key(|run| run.began);
    let mut depths: Vec<usize> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let before =
            (0..at).filter(|earlier| runs[*earlier].ended <= run.began).map(|earlier| depths[earlier]);
        let deepest = before.max().unwrap_or(0) + 1;
        depths.push(deepest);
    }
    depths.into_iter().max().unwrap_or(0)
}
