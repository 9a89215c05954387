//! The sections with the settings of the clones' browsers.

use crate::api::{BrowserSettings, SnapshotName, UserAgentPolicy};
use crate::config::Config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the clones' browsers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BrowserConfig {
    /// Maximum number of open tabs of one clone.
    #[schemars(range(min = 1, max = 1000))]
    pub max_tabs: u32,
    /// The window's size in CSS pixels.
    pub window: String,
    /// Languages that pages and servers see (BCP 47), the preferred one first.
    pub languages: Vec<String>,
    /// The timezone that pages see (IANA), such as Europe/Zurich. Empty: that of the host or jail.
    pub timezone: String,
    /// The browser's name in the user agent string and in client hints: `honest` contains the word Headless, `ordinary` is
    /// that of an ordinary Chromium of the same version.
    pub user_agent: UserAgentPolicy,
    /// Additional Chromium switches from the allowed list, such as --force-dark-mode. docs/browserd.md has the list.
    pub chromium_args: Vec<String>,
}

impl Default for BrowserConfig {
    fn default() -> Self {
        let usual = BrowserSettings::of_browserd();
        Self {
            max_tabs: usual.max_tabs.unwrap_or_default(),
            window: usual.window.unwrap_or_default(),
            languages: usual.languages.unwrap_or_default(),
            timezone: usual.timezone.unwrap_or_default(),
            user_agent: usual.user_agent.unwrap_or_default(),
            chromium_args: usual.chromium_args.unwrap_or_default(),
        }
    }
}

impl BrowserConfig {
    /// The same as settings.
    pub fn settings(&self) -> BrowserSettings {
        BrowserSettings {
            max_tabs: Some(self.max_tabs),
            window: Some(self.window.clone()),
            languages: Some(self.languages.clone()),
            timezone: Some(self.timezone.clone()).filter(|zone| !zone.is_empty()),
            user_agent: Some(self.user_agent),
            chromium_args: Some(self.chromium_args.clone()),
        }
    }
}

/// Settings of the browsers of clones that are made from one snapshot of the template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotBrowser {
    /// The snapshot.
    pub snapshot: String,
    /// Maximum number of open tabs of one clone. 0: as in `[browser]`.
    #[schemars(range(max = 1000))]
    pub max_tabs: u32,
    /// The window's size in CSS pixels. Empty: as in `[browser]`.
    pub window: String,
    /// Languages that pages and servers see. Empty: as in `[browser]`.
    pub languages: Vec<String>,
    /// The timezone that pages see. Empty: as in `[browser]`.
    pub timezone: String,
    /// `honest` or `ordinary`. Empty: as in `[browser]`.
    pub user_agent: String,
    /// Additional Chromium switches, instead of those of `[browser]`. Empty: as in `[browser]`.
    pub chromium_args: Vec<String>,
}

impl SnapshotBrowser {
    /// The same as settings.
    pub fn settings(&self) -> Result<BrowserSettings, (&'static str, String)> {
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let list = |list: &Vec<String>| Some(list.clone()).filter(|list| !list.is_empty());
        let user_agent = match self.user_agent.as_str() {
            "" => None,
            "honest" => Some(UserAgentPolicy::Honest),
            "ordinary" => Some(UserAgentPolicy::Ordinary),
            other => return Err(("user_agent", format!("{other:?} is neither honest nor ordinary"))),
        };
        let settings = BrowserSettings {
            max_tabs: Some(self.max_tabs).filter(|tabs| *tabs > 0),
            window: text(&self.window),
            languages: list(&self.languages),
            timezone: text(&self.timezone),
            user_agent,
            chromium_args: list(&self.chromium_args),
        };
        match settings.problem() {
            Some(problem) => Err(problem),
            None => Ok(settings),
        }
    }
}

impl Config {
    /// The settings of a clone's browser that differ from browserd's own: those of the request, of the snapshot, of
    /// `[browser]`, in this order.
    pub fn browser_settings(
        &self,
        snapshot: &SnapshotName,
        requested: Option<&BrowserSettings>,
    ) -> BrowserSettings {
        let of_snapshot = self.browser_snapshots.iter().find(|entry| entry.snapshot == snapshot.as_str());
        let of_snapshot = of_snapshot.and_then(|entry| entry.settings().ok()).unwrap_or_default();
        let requested = requested.cloned().unwrap_or_default();
        requested.or(&of_snapshot).or(&self.browser.settings()).only_different()
    }

    /// What is wrong with these sections: the key and why.
    pub(super) fn browser_problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        if let Some((name, why)) = self.browser.settings().problem() {
            problems.push((format!("browser.{name}"), why));
        }
        for (index, entry) in self.browser_snapshots.iter().enumerate() {
            let mut wrong = |why: String| {
                problems.push(("browser_snapshots".to_owned(), format!("entry {}: {why}", index + 1)));
            };
            if let Err(error) = SnapshotName::try_from(entry.snapshot.clone()) {
                wrong(format!("snapshot: {error}"));
            }
            if self.browser_snapshots[..index].iter().any(|other| other.snapshot == entry.snapshot) {
                wrong(format!("snapshot {:?} has an entry already", entry.snapshot));
            }
            if let Err((name, why)) = entry.settings() {
                wrong(format!("{name}: {why}"));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::settings::Settings as _;

    fn config(text: &str) -> Config {
        toml::from_str(text).unwrap()
    }

    fn settings(value: serde_json::Value) -> BrowserSettings {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_request_overrides_its_snapshot_which_overrides_the_default() {
        let config = config(
            "[browser]\nwindow = \"1600x900\"\nlanguages = [\"de\"]\nmax_tabs = 10\n\
             [[browser_snapshots]]\nsnapshot = \"full\"\nlanguages = [\"fr\", \"en\"]\nuser_agent = \"ordinary\"",
        );
        assert!(config.check().is_ok(), "{:?}", config.check());
        let (full, other) = ("full".parse().unwrap(), "default".parse().unwrap());
        let of_default = serde_json::json!({ "window": "1600x900", "languages": ["de"], "max_tabs": 10 });
        assert_eq!(config.browser_settings(&other, None), settings(of_default));
        let of_full = serde_json::json!({
            "window": "1600x900", "languages": ["fr", "en"], "max_tabs": 10, "user_agent": "ordinary"
        });
        assert_eq!(config.browser_settings(&full, None), settings(of_full));
        let requested =
            settings(serde_json::json!({ "max_tabs": 32, "timezone": "UTC", "languages": ["en-US"] }));
        let effective = config.browser_settings(&full, Some(&requested));
        let expected =
            serde_json::json!({ "window": "1600x900", "timezone": "UTC", "user_agent": "ordinary" });
        assert_eq!(effective, settings(expected), "browserd's own values are left out");
        assert_eq!(Config::default().browser_settings(&other, None), BrowserSettings::default());
    }

    #[test]
    fn invalid_settings_are_named_by_key_and_entry() {
        for (text, key, what) in [
            ("[browser]\nmax_tabs = 0", "browser.max_tabs", "too small"),
            ("[browser]\nwindow = \"big\"", "browser.window", "WIDTHxHEIGHT"),
            ("[browser]\nlanguages = []", "browser.languages", "at least one"),
            ("[browser]\ntimezone = \"Nowhere\"", "browser.timezone", "timezone"),
            ("[browser]\nchromium_args = [\"--no-sandbox\"]", "browser.chromium_args", "allowed"),
            ("[[browser_snapshots]]\nsnapshot = \"../x\"", "browser_snapshots", "entry 1: snapshot"),
            (
                "[[browser_snapshots]]\nsnapshot = \"a\"\nuser_agent = \"x\"",
                "browser_snapshots",
                "user_agent",
            ),
            (
                "[[browser_snapshots]]\nsnapshot = \"a\"\n[[browser_snapshots]]\nsnapshot = \"a\"",
                "browser_snapshots",
                "entry 2",
            ),
        ] {
            let problems = config(text).check().unwrap_err().problems;
            let found = problems.iter().any(|problem| problem.key == key && problem.what.contains(what));
            assert!(found, "{text}: {problems:?}");
        }
    }
}
