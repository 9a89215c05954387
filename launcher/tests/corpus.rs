//! Replays the committed inputs of the fuzz targets in every test run.

use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the corpus is committed") {
        let path = entry.expect("entry").path();
        let input = std::fs::read(&path).expect("readable");
        println!("{}", path.display());
        run(&input);
        count += 1;
    }
    assert!(count >= 9, "{target}: only {count} inputs in {}", folder.display());
}

#[test]
fn the_flag_filter_passes_its_corpus() {
    replay("flags", launcher::fuzzing::flags);
}

#[test]
fn the_configuration_parser_passes_its_corpus() {
    replay("config", launcher::fuzzing::config);
}
