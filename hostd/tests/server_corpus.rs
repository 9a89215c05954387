//! Replays the fuzzer's corpus with the stable compiler: what the fuzzer once found stays found.

#![allow(clippy::unwrap_used)]

use hostd::api::Method;
use hostd::server::fuzzing::{CallerKind, line, outcome};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn corpus() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/line");
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn every_seed_keeps_the_promises() {
    let corpus = corpus();
    assert!(corpus.len() >= 40, "only {} seeds", corpus.len());
    for (path, bytes) in &corpus {
        println!("{}", path.display());
        line(bytes);
    }
}

/// A corpus that only knows refusals tests little.
#[test]
fn the_seeds_reach_every_operation_and_many_refusals() {
    let mut reached = BTreeSet::new();
    let mut refusals = BTreeSet::new();
    for (_, bytes) in corpus() {
        let outcome = outcome(CallerKind::Operator, &bytes);
        reached.extend(outcome.reached);
        if let Some(line) = outcome.refused {
            let answer: serde_json::Value = serde_json::from_str(&line).unwrap();
            if let Some(code) = answer["error"]["data"]["code"].as_str() {
                refusals.insert(code.to_owned());
            }
        }
    }
    let expected: BTreeSet<Method> = Method::ALL.into_iter().collect();
    assert_eq!(reached, expected);
    for code in ["parse_error", "invalid_request", "method_not_found", "invalid_params"] {
        assert!(refusals.contains(code), "no seed is refused with {code}");
    }
}

/// What a seed is called is what it must do.
#[test]
fn seeds_with_a_flaw_reach_nothing() {
    let flaws = [
        "twice",
        "unknown",
        "without",
        "by-position",
        "option-like",
        "path-like",
        "nul",
        "newline",
        "invalid",
        "batch",
        "deep",
        "notification",
        "version-",
        "near",
        "case",
    ];
    let mut flawed = 0;
    for (path, bytes) in corpus() {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if flaws.iter().any(|flaw| name.contains(flaw))
            && name != "destroy-upper-case-id"
            && !name.contains("null")
        {
            flawed += 1;
            assert_eq!(outcome(CallerKind::Operator, &bytes).reached, None, "{name}");
        }
    }
    assert!(flawed >= 20, "only {flawed} flawed seeds");
}
