//! Replays the committed corpus of the fuzz target with the stable compiler.
#![allow(clippy::unwrap_used)]

use std::path::Path;

#[test]
fn every_corpus_file_is_accepted_or_refused_according_to_its_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/request");
    let operations = browserd::api::operations::operations();
    let (mut accepted, mut refused) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        let (results, name) = (browserd::api::check_any(&bytes), entry.file_name());
        let ok = results.is_ok();
        if ok {
            accepted += 1
        } else {
            refused += 1
        }
        // Files whose names start with `bad-` must be refused.
        let name = name.to_string_lossy();
        assert_eq!(ok, !name.starts_with("bad-"), "{name}: {results:?}");
    }
    assert!(accepted >= 15 && refused >= 15, "{accepted} accepted, {refused} refused");
    // Every operation checks every file without a panic.
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/request")).unwrap()
    {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for operation in &operations {
            let _ = operation.check(&bytes);
        }
    }
}
