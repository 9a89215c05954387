//! Every test and every probe that `SECURITY.md` names exists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether `source` has a test of this name: a function that follows a test attribute.
fn has_test(source: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    source.match_indices(&function).any(|(at, _)| {
        let before = &source[..at];
        // Attributes, comments and `async` are between the attribute and the name.
        // The nearest of the two.
        before
            .rfind("test]")
            .max(before.rfind("test("))
            .is_some_and(|attribute| !before[attribute..].contains('{'))
    })
}

#[test]
fn every_named_test_exists() {
    let document = read(&root().join("SECURITY.md"));
    let named: BTreeSet<(&str, &str)> =
        quoted(&document).filter_map(|word| word.split_once(".rs::")).collect();
    assert!(named.len() > 40, "only {} tests are named", named.len());
    let mut missing = Vec::new();
    for (file, test) in named {
        let path = root().join(format!("{file}.rs"));
        if !path.is_file() || !has_test(&read(&path), test) {
            missing.push(format!("{file}.rs::{test}"));
        }
    }
    assert!(missing.is_empty(), "SECURITY.md names tests that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn every_named_probe_exists() {
    let folder = root().join("sandbox/inside/src/probe");
    let sources: String =
        std::fs::read_dir(folder).expect("the probes").flatten().map(|entry| read(&entry.path())).collect();
    let document = read(&root().join("SECURITY.md"));
    let mut named = 0;
    for line in document.lines().filter(|line| line.starts_with('|')) {
        // "probe `a`" or "probes `a`, `b`".
        let lists = line.split("probe").skip(1).map(|part| part.trim_start_matches('s'));
        for part in lists.filter(|part| part.starts_with(" `")) {
            let list = part.split(['.', ';', '|']).next().unwrap_or_default();
            for probe in quoted(list) {
                named += 1;
                assert!(
                    sources.contains(&format!("name: \"{probe}\"")),
                    "SECURITY.md: no probe is called {probe:?}"
                );
            }
        }
    }
    assert!(named > 25, "only {named} probes are named");
}

#[test]
fn a_missing_test_is_noticed() {
    let source =
        "#[test]\nfn here() {\n    helper();\n}\nfn helper() {}\n#[tokio::test]\nasync fn later() {}\n";
    assert!(has_test(source, "here") && has_test(source, "later"));
    assert!(!has_test(source, "helper") && !has_test(source, "gone"));
}
