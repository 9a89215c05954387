//! A second, independent reading of a browser command line, used only to judge the filter in tests and in the fuzz
//! target: it shares the tables with the filter and nothing else.

use crate::flags::{REFUSED_FEATURES, REFUSED_SWITCHES};

/// Panics when Chromium would read a refused switch or feature out of these arguments.
pub fn assert_harmless(arguments: &[String]) {
    for argument in arguments {
        let bytes = argument.as_bytes();
        let start = bytes
            .iter()
            .position(|byte| !is_space(*byte))
            .unwrap_or(bytes.len());
        let end = bytes
            .iter()
            .rposition(|byte| !is_space(*byte))
            .map_or(start, |last| last + 1);
        let word = &argument[start..end];
        if word == "--" {
            return;
        }
        if !word.starts_with('-') {
            continue;
        }
        let after = word
            .get(if word.starts_with("--") { 2 } else { 1 }..)
            .unwrap_or_default();
        let (name, value) = after
            .find('=')
            .map_or((after, ""), |at| (&after[..at], &after[at + 1..]));
        for rule in REFUSED_SWITCHES {
            assert!(
                !name.eq_ignore_ascii_case(rule.name),
                "refused switch came out: {argument:?}"
            );
        }
        if name.eq_ignore_ascii_case("disable-features") {
            for member in value.split(',') {
                let member = member.trim().trim_start_matches('*').to_ascii_lowercase();
                for rule in REFUSED_FEATURES {
                    let name = rule.name.to_ascii_lowercase();
                    let whole_word = member
                        .strip_prefix(&name)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['<', ':', '.']));
                    assert!(!whole_word, "refused feature came out: {argument:?}");
                }
            }
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, 9..=13 | 32)
}
