//! Damaged output.

use super::network::{PRIVATE, pair};
use super::runs;
use crate::host::freebsd::errors::{Complaint, classify};
use crate::host::freebsd::{conf, interfaces, jails, mounts, processes, rctl};
use proptest::prelude::*;
use std::path::Path;

/// Recorded output with one kind of damage.
fn damaged() -> impl Strategy<Value = String> {
    let texts: Vec<String> = runs()
        .into_iter()
        .map(|run| run.stdout)
        .filter(|text| !text.is_empty() && text.len() < 4000)
        .collect();
    (proptest::sample::select(texts), any::<prop::sample::Index>(), 0..6u8).prop_map(|(text, at, kind)| {
        let at = (0..=at.index(text.len() + 1)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        match kind {
            0 => text[..at].to_owned(),
            1 => format!("{}\u{fc}{}", &text[..at], &text[at..]),
            2 => text.replace(' ', "\t"),
            3 => text.lines().map(|line| format!("{line} mehr\n")).collect(),
            4 => format!("{}\n{}", &text[..at], &text[at..]),
            _ => text.to_uppercase(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn damage_is_an_error_and_never_a_panic(text in damaged()) {
        let _ = jails::read(&text);
        let _ = interfaces::read(&text, "");
        let _ = rctl::read(&text);
        let _ = classify(&text);
        let _ = conf::clone_id(&text);
        if let Ok(found) = processes::read(&text) {
            prop_assert!(found.len() < text.lines().count());
        }
        if let Ok(found) = mounts::read(&text, Path::new("/usr/local/bastille/jails")) {
            for mount in found {
                prop_assert!(text.contains(&mount.at) && mount.at.starts_with('/'));
            }
        }
    }

    #[test]
    fn arbitrary_text_causes_no_panic(text in ".{0,300}") {
        let _ = jails::read(&text);
        let _ = interfaces::read(&text, "");
        let _ = rctl::read(&text);
        let _ = processes::read(&text);
        let _ = mounts::read(&text, Path::new("/usr"));
        prop_assert_eq!(classify(&text), Complaint::Unknown);
    }

    #[test]
    fn a_list_with_a_truncated_line_is_refused(at in 1usize..200) {
        let whole = pair(Some("hostd:x"), PRIVATE);
        let cut = &whole[..whole.len() - at.min(whole.len() - 1)];
        if !cut.ends_with('\n') {
            prop_assert!(interfaces::read(cut, "").is_err());
        }
    }
}
