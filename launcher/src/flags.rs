//! Filters the command line switches that a caller passes to the browser.
//!
//! Names of switches are filtered by a deny list ([`refused`]): Chromium has more than a thousand switches, and clients
//! send dozens of harmless ones and new ones with every release. Refused are switches that weaken Chromium's own sandbox,
//! site isolation, the privacy of the debugging channel or the control of the network, or that change the executed program.
//! Lists of features and settings are filtered by allow lists ([`lists`]).
//!
//! Switches are parsed like Chromium does (`base::CommandLine`): white space around an argument is trimmed, `-x` and
//! `--x` are the same, the first `=` ends the name, a lone `--` ends the switches. Names are compared case-insensitively
//! although Chromium on Linux is case-sensitive: refusing a switch that Chromium ignores is harmless.

use std::fmt;

mod lists;
mod refused;
use lists::Decision;
pub use lists::{BLINK_SETTINGS, DISABLE_WORDS, ENABLE_BLINK_FEATURES, ENABLE_FEATURES, JS_FLAGS};
pub use refused::{REFUSED_SWITCHES, Refused};

/// How to treat refused switches that well-known clients send by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Every refused switch is an error. For callers who write their own arguments.
    Refuse,
    /// Switches that clients send by default (Playwright `--no-sandbox`, chromedp and go-rod
    /// `--disable-features=site-per-process`) and unknown features are removed with a notice, so that these clients and
    /// their next versions work unchanged. Removing them only makes the browser safer. All others are errors.
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
    /// The names of the switches that were removed.
    pub left_out: Vec<String>,
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
        let lenient = strictness == Strictness::DropClientDefaults;
        if let Some(rule) = refused::rule_for(&switch.name) {
            if lenient && (rule.sent_by_clients || refused::is_client_value(&switch)) {
                self.notices.push(format!("`{argument}` was left out: {}", rule.reason));
                self.left_out.push(switch.name);
                return Ok(());
            }
            return Err(FlagError::Refused { argument: argument.to_owned(), reason: rule.reason });
        }
        let Some(judge) = lists::judge(&switch.name) else {
            self.switches.push(switch);
            return Ok(());
        };
        let value = switch.value.take().unwrap_or_default();
        let members = lists::members(&switch.name, &value);
        let mut kept = Vec::new();
        for member in &members {
            match judge(member) {
                Decision::Keep => kept.push(*member),
                Decision::LeaveOut(reason) if lenient => {
                    self.notices.push(format!("`{member}` was left out of `--{}`: {reason}", switch.name));
                }
                Decision::LeaveOut(reason) | Decision::Refuse(reason) => {
                    return Err(FlagError::RefusedFeature {
                        argument: argument.to_owned(),
                        feature: (*member).to_owned(),
                        reason,
                    });
                }
            }
        }
        // A list without members has no effect.
        if !kept.is_empty() {
            let separator = if switch.name == "js-flags" { " " } else { "," };
            switch.value = Some(kept.join(separator));
            self.switches.push(switch);
        }
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

#[cfg(test)]
mod tests;
