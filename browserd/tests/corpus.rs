//! The fuzz target's work on its committed corpus, with the stable compiler.
#![allow(clippy::unwrap_used)]

use std::path::Path;

#[test]
fn the_corpus_is_handled_without_a_panic_and_in_the_expected_way() {
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
        // The file's name says what it is for.
        let name = name.to_string_lossy();
        assert_eq!(ok, !name.starts_with("bad-"), "{name}: {results:?}");
    }
    assert!(accepted >= 15 && refused >= 15, "{accepted} accepted, {refused} refused");
    // Every body of every operation also goes through every other one.
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/request")).unwrap()
    {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for operation in &operations {
            let _ = operation.check(&bytes);
        }
    }
}
