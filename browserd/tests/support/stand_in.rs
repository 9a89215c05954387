//! A program that runs in Chromium's place and attacks browserd. hostd's tests use it too.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes the program to this path.
pub fn write(path: &Path) {
    let text = include_str!("stand-in.pl").replace("@ARCH@", std::env::consts::ARCH);
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Its report, from the text with which browserd says that its browser does not start.
pub fn parse(text: &str) -> BTreeMap<String, String> {
    let lines = text.trim_end().split("; ").filter_map(|line| line.split_once(' '));
    let mut report = BTreeMap::new();
    for (name, rest) in lines {
        // An error or a log may repeat a line and cut it: the longest one is complete.
        let known = report.entry(name.to_owned()).or_insert_with(String::new);
        if rest.len() > known.len() {
            *known = rest.to_owned();
        }
    }
    for name in ["browserd", "child", "descriptors"] {
        assert!(report.contains_key(name), "no line {name} in {text}");
    }
    report
}

/// The attempts of a line that were allowed.
pub fn worked(line: &str) -> Vec<&str> {
    line.split(' ').filter_map(|attempt| attempt.strip_suffix("=ok")).collect()
}

/// Asserts that every attempt on browserd was refused with EPERM or EACCES, and returns their number.
pub fn assert_refused(report: &BTreeMap<String, String>) -> usize {
    let attempts: Vec<&str> = report["browserd"].split(' ').collect();
    let refused = |attempt: &&&str| attempt.ends_with("=1") || attempt.ends_with("=13");
    let others: Vec<&&str> = attempts.iter().filter(|attempt| !refused(attempt)).collect();
    assert!(others.is_empty() && attempts.len() > 30, "not refused: {others:?} of {report:?}");
    attempts.len()
}
