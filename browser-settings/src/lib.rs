//! The settings of a clone's browser: what hostd takes from its configuration and its callers, and browserd applies.
//!
//! Both use the same checks, so hostd accepts no setting with which browserd does not start.

#![warn(missing_docs)]

mod parse;

pub use parse::{parse_chromium_arg, parse_language, parse_timezone, parse_window};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most tabs that can be set.
pub const MOST_TABS: u32 = 1000;
/// Most languages, and most Chromium switches.
const MOST_ENTRIES: usize = 32;

/// Which name the browser tells in its user agent string and its client hints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UserAgentPolicy {
    /// Chromium's own name, which contains the word Headless.
    #[default]
    Honest,
    /// The name of an ordinary Chromium of the same version.
    Ordinary,
}

impl UserAgentPolicy {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Honest => "honest",
            Self::Ordinary => "ordinary",
        }
    }
}

/// Settings of a clone's browser. One that is left out is that of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BrowserSettings {
    /// Maximum number of open tabs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_TABS))]
    pub max_tabs: Option<u32>,
    /// The window's size in CSS pixels, such as 1280x720.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// Languages that pages and servers see (BCP 47), the preferred one first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub languages: Option<Vec<String>>,
    /// The timezone that pages see (IANA), such as Europe/Zurich.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The browser's name in the user agent string and in client hints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<UserAgentPolicy>,
    /// Additional Chromium switches, from the list of allowed ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chromium_args: Option<Vec<String>>,
}

impl BrowserSettings {
    /// What browserd does if it is told nothing. The timezone is then the system's.
    pub fn of_browserd() -> Self {
        Self {
            max_tabs: Some(32),
            window: Some("1280x720".into()),
            languages: Some(vec!["en-US".into()]),
            timezone: None,
            user_agent: Some(UserAgentPolicy::Honest),
            chromium_args: Some(Vec::new()),
        }
    }

    /// These settings, and `others` for those that are left out.
    pub fn or(self, others: &Self) -> Self {
        Self {
            max_tabs: self.max_tabs.or(others.max_tabs),
            window: self.window.or_else(|| others.window.clone()),
            languages: self.languages.or_else(|| others.languages.clone()),
            timezone: self.timezone.or_else(|| others.timezone.clone()),
            user_agent: self.user_agent.or(others.user_agent),
            chromium_args: self.chromium_args.or_else(|| others.chromium_args.clone()),
        }
    }

    /// Without those that say what browserd does anyway. Equal settings are then equal values.
    #[must_use]
    pub fn only_different(self) -> Self {
        fn keep<T: PartialEq>(value: Option<T>, default: &Option<T>) -> Option<T> {
            value.filter(|value| Some(value) != default.as_ref())
        }
        let usual = Self::of_browserd();
        Self {
            max_tabs: keep(self.max_tabs, &usual.max_tabs),
            window: keep(self.window, &usual.window),
            languages: keep(self.languages, &usual.languages),
            timezone: self.timezone,
            user_agent: keep(self.user_agent, &usual.user_agent),
            chromium_args: keep(self.chromium_args, &usual.chromium_args),
        }
    }

    /// Whether every setting that is given here is in effect with `others`.
    pub fn agree_with(&self, others: &Self) -> bool {
        let effective = |settings: &Self| settings.clone().or(&Self::of_browserd());
        effective(&self.clone().or(others)) == effective(others)
    }

    /// What is wrong with a setting: its name and why.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let list =
            |name: &'static str, values: &Option<Vec<String>>, parse: fn(&str) -> Result<String, String>| {
                let values = values.as_ref()?;
                if values.len() > MOST_ENTRIES {
                    return Some((name, format!("has more than {MOST_ENTRIES} entries")));
                }
                values.iter().find_map(|value| parse(value).err()).map(|why| (name, why))
            };
        if let Some(tabs) = self.max_tabs.filter(|tabs| !(1..=MOST_TABS).contains(tabs)) {
            return Some(("max_tabs", format!("{tabs} is not from 1 to {MOST_TABS}")));
        }
        if let Some(Err(why)) = self.window.as_deref().map(parse_window) {
            return Some(("window", why));
        }
        if self.languages.as_ref().is_some_and(Vec::is_empty) {
            return Some(("languages", "is empty: give at least one".into()));
        }
        if let Some(problem) = list("languages", &self.languages, parse_language) {
            return Some(problem);
        }
        if let Some(Err(why)) = self.timezone.as_deref().map(parse_timezone) {
            return Some(("timezone", why));
        }
        let switch = |text: &str| match text.bytes().all(is_plain) {
            true => parse_chromium_arg(text),
            // FreeBSD's rc.conf has them as words of one variable.
            false => Err("a switch may have letters, digits and = _ . , : / @ % + - only".into()),
        };
        list("chromium_args", &self.chromium_args, switch)
    }

    /// browserd's arguments. None contains a blank or a character that a shell interprets.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |flag: &str, value: Option<String>| {
            arguments.extend(value.map(|value| format!("--{flag}={value}")));
        };
        add("max-tabs", self.max_tabs.map(|tabs| tabs.to_string()));
        add("window", self.window.clone());
        add("languages", self.languages.as_ref().map(|languages| languages.join(",")));
        add("timezone", self.timezone.clone());
        add("user-agent", self.user_agent.map(|policy| policy.as_str().to_owned()));
        for switch in self.chromium_args.iter().flatten() {
            add("chromium-arg", Some(switch.clone()));
        }
        arguments
    }
}

/// A character that is the same in a shell, in rc.conf and in an argument.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"=_.,:/@%+-".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(value: serde_json::Value) -> BrowserSettings {
        serde_json::from_value(value).unwrap()
    }

    fn full() -> BrowserSettings {
        settings(json!({
            "max_tabs": 5, "window": "1600x900", "languages": ["de-CH", "de"], "timezone": "UTC",
            "user_agent": "ordinary", "chromium_args": ["--disable-gpu", "--force-device-scale-factor=2"],
        }))
    }

    #[test]
    fn settings_are_browserds_arguments() {
        assert_eq!(full().problem(), None);
        assert_eq!(
            full().arguments(),
            [
                "--max-tabs=5",
                "--window=1600x900",
                "--languages=de-CH,de",
                "--timezone=UTC",
                "--user-agent=ordinary",
                "--chromium-arg=--disable-gpu",
                "--chromium-arg=--force-device-scale-factor=2",
            ]
        );
        assert!(BrowserSettings::default().arguments().is_empty());
        assert!(full().arguments().iter().all(|argument| argument.bytes().all(is_plain)));
    }

    #[test]
    fn invalid_settings_are_named() {
        for (value, name) in [
            (json!({ "max_tabs": 0 }), "max_tabs"),
            (json!({ "max_tabs": 1001 }), "max_tabs"),
            (json!({ "window": "1280" }), "window"),
            (json!({ "window": "1x1; reboot" }), "window"),
            (json!({ "languages": [] }), "languages"),
            (json!({ "languages": ["de_CH"] }), "languages"),
            (json!({ "languages": vec!["de"; 33] }), "languages"),
            (json!({ "timezone": "../etc/passwd" }), "timezone"),
            (json!({ "chromium_args": ["--no-sandbox"] }), "chromium_args"),
            (json!({ "chromium_args": ["--disable-gpu $(reboot)"] }), "chromium_args"),
            (json!({ "chromium_args": ["--host-resolver-rules=MAP *"] }), "chromium_args"),
        ] {
            assert_eq!(settings(value.clone()).problem().map(|(name, _)| name), Some(name), "{value}");
        }
        assert!(serde_json::from_value::<BrowserSettings>(json!({ "other": 1 })).is_err());
        assert!(serde_json::from_value::<BrowserSettings>(json!({ "user_agent": "firefox" })).is_err());
    }

    #[test]
    fn settings_are_combined_and_compared_by_their_effect() {
        let german = settings(json!({ "languages": ["de"] }));
        let wide = settings(json!({ "window": "1600x900", "languages": ["fr"] }));
        let both = german.clone().or(&wide);
        assert_eq!(both, settings(json!({ "window": "1600x900", "languages": ["de"] })));
        let usual = settings(json!({ "max_tabs": 32, "languages": ["en-US"], "chromium_args": [] }));
        assert_eq!(usual.clone().only_different(), BrowserSettings::default());
        assert_eq!(full().only_different(), full());
        assert!(usual.agree_with(&BrowserSettings::default()));
        assert!(german.agree_with(&both) && !german.agree_with(&wide));
        assert!(BrowserSettings::default().agree_with(&full()));
    }
}
