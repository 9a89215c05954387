//! Filters the command line switches that a caller passes to the browser.
//!
//! The filter is a deny list: Chromium has more than a thousand switches, and clients send dozens of harmless ones and
//! new ones with every release. Refused are switches that weaken Chromium's own sandbox, site isolation or the privacy
//! of the debugging channel, or that change the executed program.
//!
//! Switches are parsed like Chromium does (`base::CommandLine`): white space around an argument is trimmed, `-x` and
//! `--x` are the same, the first `=` ends the name, a lone `--` ends the switches. Names are compared case-insensitively
//! although Chromium on Linux is case-sensitive: refusing a switch that Chromium ignores is harmless.

use std::fmt;

mod refused;
pub use refused::{REFUSED_FEATURES, REFUSED_SWITCHES, Refused};

/// How to treat refused switches that well-known clients send by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Every refused switch is an error. For callers who write their own arguments.
    Refuse,
    /// Switches that clients send by default (Playwright `--no-sandbox`, chromedp and go-rod
    /// `--disable-features=site-per-process`) are removed with a notice, so that these clients work unchanged.
    /// Removing them only makes the browser safer. All others are errors.
    DropClientDefaults,
}

/// One switch, with its name in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    pub name: String,
    pub value: Option<String>,
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "--{}={value}", self.name),
            None => write!(f, "--{}", self.name),
        }
    }
}

/// A command line that passed the filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    pub switches: Vec<Switch>,
    /// Addresses to open: all arguments that are not switches.
    pub positional: Vec<String>,
    /// Notices for the user: what was removed and why.
    pub notices: Vec<String>,
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum FlagError {
    #[error("browser argument `{argument}` is refused: {reason}")]
    Refused { argument: String, reason: &'static str },
    #[error("browser argument `{argument}` is refused: `{feature}` in it: {reason}")]
    RefusedFeature { argument: String, feature: String, reason: &'static str },
}

impl Flags {
    /// Reads and filters a caller's arguments (without the program name).
    pub fn parse<S: AsRef<str>>(arguments: &[S], strictness: Strictness) -> Result<Flags, FlagError> {
        let mut flags = Flags::default();
        let mut only_positional = false;
        for argument in arguments {
            let argument = argument.as_ref();
            // The characters that base::TrimWhitespaceASCII removes.
            let trimmed = argument.trim_matches(['\t', '\n', '\x0b', '\x0c', '\r', ' ']);
            if !only_positional && trimmed == "--" {
                only_positional = true;
                continue;
            }
            match split_switch(trimmed).filter(|_| !only_positional) {
                Some(switch) => flags.admit(argument, switch, strictness)?,
                None => flags.positional.push(argument.to_owned()),
            }
        }
        Ok(flags)
    }

    fn admit(&mut self, argument: &str, mut switch: Switch, strictness: Strictness) -> Result<(), FlagError> {
        if let Some(rule) = REFUSED_SWITCHES.iter().find(|rule| rule.name == switch.name) {
            if strictness == Strictness::DropClientDefaults && rule.sent_by_clients {
                self.notices.push(format!("`{argument}` was left out: {}", rule.reason));
                return Ok(());
            }
            return Err(FlagError::Refused { argument: argument.to_owned(), reason: rule.reason });
        }
        if is_disable_list(&switch.name) {
            let mut kept = Vec::new();
            for feature in switch.value.as_deref().unwrap_or_default().split(',') {
                match refused_feature(feature) {
                    None => kept.push(feature),
                    Some(rule) if strictness == Strictness::DropClientDefaults && rule.sent_by_clients => {
                        self.notices.push(format!(
                            "`{feature}` was left out of `--{}`: {}",
                            switch.name, rule.reason
                        ));
                    }
                    Some(rule) => {
                        return Err(FlagError::RefusedFeature {
                            argument: argument.to_owned(),
                            feature: feature.to_owned(),
                            reason: rule.reason,
                        });
                    }
                }
            }
            switch.value = Some(kept.join(","));
        }
        self.switches.push(switch);
        Ok(())
    }

    /// The value of the last occurrence of a switch, as in Chromium. `Some("")` for a switch without a value.
    pub fn value(&self, name: &str) -> Option<&str> {
        let last = self.switches.iter().rev().find(|switch| switch.name == name)?;
        Some(last.value.as_deref().unwrap_or_default())
    }

    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Removes every occurrence of a switch and returns its effective value.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let value = self.value(name).map(str::to_owned);
        self.switches.retain(|switch| switch.name != name);
        value
    }

    /// Sets a switch and overrides the caller's value.
    pub fn set(&mut self, name: &str, value: Option<&str>) {
        self.switches.retain(|switch| switch.name != name);
        self.switches.push(Switch { name: name.to_owned(), value: value.map(str::to_owned) });
    }

    /// Adds a switch unless the caller set it.
    pub fn set_default(&mut self, name: &str, value: Option<&str>) {
        if !self.has(name) {
            self.set(name, value);
        }
    }

    /// Adds a member to a comma-separated list switch. Chromium reads only the last occurrence, so all are joined.
    pub fn add_to_list(&mut self, name: &str, member: &str) {
        let mut members: Vec<String> = Vec::new();
        for switch in self.switches.iter().filter(|switch| switch.name == name) {
            let list = switch.value.as_deref().unwrap_or_default();
            members.extend(list.split(',').filter(|member| !member.is_empty()).map(str::to_owned));
        }
        if !members.iter().any(|known| known == member) {
            members.push(member.to_owned());
        }
        self.set(name, Some(&members.join(",")));
    }

    /// The arguments for the browser. A `--` keeps addresses that begin with a dash from being read as switches.
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = self.switches.iter().map(Switch::to_string).collect();
        if self
            .positional
            .iter()
            .any(|address| split_switch(address.trim()).is_some() || address.trim() == "--")
        {
            arguments.push("--".to_owned());
        }
        arguments.extend(self.positional.iter().cloned());
        arguments
    }
}

/// `--name=value`, `-name=value`, `--name`, `-name`; `None` for anything else (a lone dash or two included).
fn split_switch(argument: &str) -> Option<Switch> {
    let body = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'))?;
    if body.is_empty() {
        return None;
    }
    let (name, value) = match body.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (body, None),
    };
    Some(Switch { name: name.to_ascii_lowercase(), value })
}

fn is_disable_list(name: &str) -> bool {
    matches!(name, "disable-features" | "disable-blink-features")
}

/// A list member may carry a field trial (`Feature<Trial`) or parameters (`Feature:key/value`), and a leading `*`.
fn refused_feature(member: &str) -> Option<&'static Refused> {
    let bare = member.split(['<', ':', '.']).next().unwrap_or_default();
    let bare = bare.trim().trim_start_matches('*');
    REFUSED_FEATURES.iter().find(|rule| rule.name.eq_ignore_ascii_case(bare))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(argument: &str) -> bool {
        Flags::parse(&[argument], Strictness::Refuse).is_err()
    }

    #[test]
    fn every_refused_switch_is_refused_in_every_spelling() {
        for rule in REFUSED_SWITCHES {
            for spelling in [
                format!("--{}", rule.name),
                format!("-{}", rule.name),
                format!("--{}=1", rule.name),
                format!("--{}=", rule.name),
                format!(" --{}\t", rule.name),
                format!("--{}", rule.name.to_uppercase()),
            ] {
                let error = Flags::parse(&[&spelling], Strictness::Refuse).expect_err(&spelling);
                assert!(error.to_string().contains(rule.reason), "{spelling}: {error}");
            }
        }
    }

    #[test]
    fn every_refused_feature_is_refused_at_any_position() {
        for rule in REFUSED_FEATURES {
            for list in [
                rule.name.to_owned(),
                format!("Translate,{}", rule.name),
                format!("{},Translate", rule.name),
                format!("{}<Trial", rule.name),
                format!("*{}", rule.name.to_lowercase()),
                format!(" {} ", rule.name),
            ] {
                assert!(refused(&format!("--disable-features={list}")), "{list}");
            }
        }
        assert!(!refused("--disable-features=Translate,MediaRouter"));
    }

    #[test]
    fn table_names_are_lower_case_unique_and_have_a_reason() {
        for (index, rule) in REFUSED_SWITCHES.iter().enumerate() {
            assert_eq!(rule.name, rule.name.to_ascii_lowercase());
            assert!(rule.reason.len() > 10, "{}", rule.name);
            assert!(
                REFUSED_SWITCHES[index + 1..].iter().all(|other| other.name != rule.name),
                "{} twice",
                rule.name
            );
        }
    }

    #[test]
    fn the_drop_in_accepts_client_defaults() {
        // The defaults of Playwright, chromedp and go-rod that touch confinement.
        let arguments = [
            "--no-sandbox",
            "--disable-site-isolation-trials",
            "--disable-features=site-per-process,Translate,BlinkGenPropertyTrees",
            "--headless",
            "about:blank",
        ];
        let flags = Flags::parse(&arguments, Strictness::DropClientDefaults).expect("client defaults pass");
        assert_eq!(
            flags.to_arguments(),
            ["--disable-features=Translate,BlinkGenPropertyTrees", "--headless", "about:blank"]
        );
        assert_eq!(flags.notices.len(), 3);
        assert!(Flags::parse(&["--remote-allow-origins=*"], Strictness::DropClientDefaults).is_err());
    }

    #[test]
    fn after_a_double_dash_everything_is_an_address() {
        let flags =
            Flags::parse(&["--headless", "--", "--no-sandbox"], Strictness::Refuse).expect("positional");
        assert_eq!(flags.to_arguments(), ["--headless", "--", "--no-sandbox"]);
    }

    #[test]
    fn lists_are_joined_because_chromium_reads_only_the_last() {
        let mut flags = Flags::parse(&["--disable-features=A,B", "--disable-features=C"], Strictness::Refuse)
            .expect("ok");
        flags.add_to_list("disable-features", "D");
        assert_eq!(flags.to_arguments(), ["--disable-features=A,B,C,D"]);
    }

    proptest! {
        /// The output never contains an argument that Chromium would read as a refused switch.
        #[test]
        fn the_output_contains_no_refused_switch(arguments in proptest::collection::vec(any_argument(), 0..12)) {
            for strictness in [Strictness::Refuse, Strictness::DropClientDefaults] {
                if let Ok(flags) = Flags::parse(&arguments, strictness) {
                    crate::fuzzing::assert_harmless(&flags.to_arguments());
                }
            }
        }

        /// A second pass changes nothing.
        #[test]
        fn filtering_is_idempotent(arguments in proptest::collection::vec(any_argument(), 0..12)) {
            if let Ok(flags) = Flags::parse(&arguments, Strictness::DropClientDefaults) {
                let again = Flags::parse(&flags.to_arguments(), Strictness::Refuse).expect("what passed once passes again");
                prop_assert_eq!(again.to_arguments(), flags.to_arguments());
            }
        }

        #[test]
        fn harmless_switches_pass_unchanged(name in "x-[a-z]{3,10}", value in "[a-zA-Z0-9/:.]{0,12}") {
            let argument = format!("--{name}={value}");
            let flags = Flags::parse(&[&argument], Strictness::Refuse).expect("harmless");
            prop_assert_eq!(flags.to_arguments(), vec![argument]);
        }
    }

    fn any_argument() -> impl Strategy<Value = String> {
        let refused = prop::sample::select(REFUSED_SWITCHES).prop_map(|rule| rule.name.to_owned());
        let feature = prop::sample::select(REFUSED_FEATURES)
            .prop_map(|rule| format!("disable-features=Translate,{}", rule.name));
        let name = prop_oneof![refused, feature, "[a-zA-Z-]{0,12}", Just("headless".to_owned())];
        let prefix = prop::sample::select(vec!["--", "-", "", " --", "\t-", "---", "\u{b}--"]);
        let suffix = prop::sample::select(vec!["", "=", "=1", " ", "==", "\n"]);
        prop_oneof![
            (prefix, name, suffix).prop_map(|(prefix, name, suffix)| format!("{prefix}{name}{suffix}")),
            Just("--".to_owned()),
            "\\PC{0,16}",
        ]
    }
}
