//! Shared by the fuzz targets and the replay of their corpus. Not part of the public interface.
//!
//! The filter is checked by an independent parser of the command line, which shares only the tables with it.

use std::path::Path;

use crate::config::Config;
use crate::flags::{
    BLINK_SETTINGS, DISABLE_WORDS, ENABLE_BLINK_FEATURES, ENABLE_FEATURES, Flags, JS_FLAGS, REFUSED_SWITCHES,
    Strictness,
};

/// One command line, its arguments separated by zero bytes.
pub fn flags(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let arguments: Vec<&str> = text.split('\0').collect();
    for strictness in [Strictness::Refuse, Strictness::DropClientDefaults] {
        if let Ok(flags) = Flags::parse(&arguments, strictness) {
            let out = flags.to_arguments();
            assert_harmless(&out);
            let again = Flags::parse(&out, Strictness::Refuse).expect("filtered arguments pass again");
            assert_eq!(again.to_arguments(), out, "filtering is idempotent");
        }
    }
}

/// One configuration file.
pub fn config(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(config) = Config::from_toml(text, Path::new("fuzz.toml")) {
        let written = toml::to_string(&config).expect("a configuration can be written");
        let again =
            Config::from_toml(&written, Path::new("fuzz.toml")).expect("what was written can be read");
        assert_eq!(again, config);
    }
}

/// Panics if Chromium would read a refused switch or feature from these arguments.
pub fn assert_harmless(arguments: &[String]) {
    for argument in arguments {
        let bytes = argument.as_bytes();
        let start = bytes.iter().position(|byte| !is_space(*byte)).unwrap_or(bytes.len());
        let end = bytes.iter().rposition(|byte| !is_space(*byte)).map_or(start, |last| last + 1);
        let word = &argument[start..end];
        if word == "--" {
            return;
        }
        if !word.starts_with('-') {
            continue;
        }
        let after = word.get(if word.starts_with("--") { 2 } else { 1 }..).unwrap_or_default();
        let (name, value) = after.find('=').map_or((after, ""), |at| (&after[..at], &after[at + 1..]));
        for rule in REFUSED_SWITCHES {
            assert!(!name.eq_ignore_ascii_case(rule.name), "refused switch came out: {argument:?}");
        }
        let only = |allowed: &[&str], member: &str| {
            assert!(allowed.contains(&member), "{member:?} is not allowed: {argument:?}");
        };
        let members =
            || value.split(',').map(|member| member.trim_matches(|c: char| c.is_ascii_whitespace()));
        match name.to_ascii_lowercase().as_str() {
            "disable-features" | "disable-blink-features" => members().for_each(harmless_to_disable),
            "enable-features" => members().for_each(|member| only(ENABLE_FEATURES, member)),
            "enable-blink-features" => members().for_each(|member| only(ENABLE_BLINK_FEATURES, member)),
            "blink-settings" => members().for_each(|member| {
                only(BLINK_SETTINGS, member.split_once('=').map_or(member, |(name, _)| name));
            }),
            "js-flags" => {
                for flag in value.split([' ', ',', '\t', '\n']) {
                    let flag = flag.trim_start_matches('-').replace('_', "-");
                    let flag = flag.split_once('=').map_or(flag.as_str(), |(name, _)| name);
                    only(JS_FLAGS, flag.strip_prefix("no-").unwrap_or(flag));
                }
            }
            _ => {}
        }
    }
}

fn harmless_to_disable(member: &str) {
    let member = member.trim_start_matches('*').to_ascii_lowercase();
    if member.starts_with("isolatesandboxediframes")
        || member.starts_with("privacysandbox")
        || member.starts_with("isolatedwebapp")
    {
        return;
    }
    for rule in DISABLE_WORDS {
        assert!(!member.contains(rule.name), "`{}` came out in {member:?}", rule.name);
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, 9..=13 | 32)
}
