//! The exact commands of each operation.

use super::*;
use crate::host::zfs::layout::inner;

#[test]
fn the_commands_match_the_golden_file() {
    let (layout, spec, names) = (layout(), spec(), names());
    let [outer, root] = layout.clone(&spec, &[]);
    let [_, linux] = layout.clone(&spec, &["devices=off", "setuid=off"]);
    let [top, files] = layout.make_template();
    let all = [
        ("look at all", layout.look_all()),
        ("look at one", layout.look(&names)),
        ("look at the parent", layout.look_parent()),
        ("look at a template", layout.look_template(&snapshot("default"))),
        ("look at the templates", layout.look_templates()),
        ("clone 1", outer),
        ("clone 2", root),
        ("clone 2 on Linux", linux),
        ("complete 1", layout.mark_outer(&spec)),
        ("complete 2", layout.mark_inner(&spec)),
        ("mount", layout.mount(&names.dataset)),
        ("force unmount", layout.unmount(&inner(&names.dataset))),
        ("destroy", layout.destroy(&inner(&names.dataset))),
        ("destroy snapshots", layout.destroy_snapshots(&names.dataset, &["a", "b"])),
        ("move aside", layout.move_aside(&names, &id(ID))),
        ("make aside", layout.make_aside()),
        ("make template 1", top),
        ("make template 2", files),
        ("take snapshot", layout.take_snapshot(&snapshot("default"), "/usr/bin/chromium", "Chromium 1.2")),
    ];
    let mut text = String::new();
    for (what, arguments) in &all {
        let shown: Vec<String> = arguments
            .iter()
            .map(|word| if word.contains(' ') { format!("'{word}'") } else { word.clone() })
            .collect();
        text.push_str(&format!("{what:<22} zfs {}\n", shown.join(" ")));
    }
    golden("commands.txt", &text);

    for (what, arguments) in &all {
        let verb = arguments[0].as_str();
        let flags: Vec<&str> =
            arguments.iter().map(String::as_str).filter(|word| word.starts_with('-')).collect();
        match verb {
            "destroy" | "rename" | "set" | "mount" => assert!(flags.is_empty(), "{what}: {flags:?}"),
            "clone" | "create" => assert!(flags.iter().all(|flag| *flag == "-o"), "{what}: {flags:?}"),
            _ => {}
        }
    }
}

/// Compare with a committed file; `HOSTD_UPDATE_DOCS=1` writes it.
pub(super) fn golden(file: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/zfs").join(file);
    if std::env::var_os("HOSTD_UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{file} differs; HOSTD_UPDATE_DOCS=1 writes it anew");
}
