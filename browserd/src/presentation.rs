//! What pages see of the browser: languages, timezone, window and screen, user agent.
//!
//! Switches and environment variables apply to every page, popup and worker from its first request on. CDP overrides are
//! used only for what Chromium has no switch for (see [`Overrides`]).

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The screen, unless the window is larger.
const SCREEN: (u32, u32) = (1920, 1080);
/// How long `chromium --version` may take.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Chromium could not tell its version.
#[derive(Debug, thiserror::Error)]
#[error("{} --version: {reason}", program.display())]
pub(crate) struct VersionError {
    program: PathBuf,
    reason: String,
}

/// Chromium's version, without starting a browser.
pub(crate) async fn chromium_version(program: &Path) -> Result<String, VersionError> {
    let failed = |reason: String| VersionError { program: program.to_owned(), reason };
    let output = tokio::process::Command::new(program)
        .arg("--version")
        .env_clear()
        .current_dir("/")
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(VERSION_TIMEOUT, output)
        .await
        .map_err(|_| failed(format!("no answer within {} s", VERSION_TIMEOUT.as_secs())))?
        .map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let is_version =
        |word: &&str| word.split('.').count() == 4 && word.split('.').all(|part| part.parse::<u32>().is_ok());
    let version = text.split_whitespace().find(is_version).map(str::to_owned);
    version.ok_or_else(|| failed("it wrote no version".into()))
}

/// The settings of one browser.
#[derive(Debug, Clone)]
pub(crate) struct Presentation {
    pub(crate) languages: Vec<String>,
    pub(crate) timezone: Option<String>,
    pub(crate) window: (u32, u32),
    /// The version that an ordinary Chromium tells; none: honest.
    pub(crate) ordinary: Option<String>,
}

impl Presentation {
    /// Chromium's switches.
    pub(crate) fn switches(&self) -> Vec<String> {
        let (width, height) = self.window;
        let (screen_width, screen_height) = (SCREEN.0.max(width), SCREEN.1.max(height));
        let mut switches = vec![
            format!("--window-size={width},{height}"),
            format!("--screen-info={{{screen_width}x{screen_height}}}"),
            format!("--lang={}", self.languages[0]),
            format!("--accept-lang={}", self.languages.join(",")),
            // A mouse, as browserd's clicks and moves are. Headless Chromium finds no input device.
            "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"
                .to_owned(),
        ];
        if let Some(version) = &self.ordinary {
            switches.push(format!("--user-agent={}", ordinary_user_agent(version)));
        }
        switches
    }

    /// What must be set by CDP in each page, frame and worker, for a browser with this user agent string.
    pub(crate) fn overrides(&self, user_agent: &str, version: &str) -> Overrides {
        let is_default = self.languages == ["en-US"];
        if is_default && self.ordinary.is_none() {
            return Overrides::default();
        }
        let mut calls = vec![(
            "Emulation.setUserAgentOverride",
            json!({
                "userAgent": user_agent,
                "acceptLanguage": self.languages.join(","),
                "userAgentMetadata": client_hints(version, self.ordinary.is_none() && is_shell(user_agent)),
            }),
        )];
        if !is_default {
            calls.push(("Emulation.setLocaleOverride", json!({ "locale": self.languages[0] })));
        }
        Overrides { calls }
    }
}

/// The calls that make a page, frame or worker consistent. There are none with the default settings.
///
/// - Client hints: no switch changes the brands, and `--user-agent` removes the full versions.
/// - `navigator.languages` of shared and service workers: the headless shell ignores `--accept-lang` there.
/// - The locale of `Intl`: Chromium takes it from its installed translations, which are mostly missing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) calls: Vec<(&'static str, Value)>,
}

impl Overrides {
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

/// Chromium's user agent string has only the major version.
fn ordinary_user_agent(version: &str) -> String {
    let system = match std::env::consts::OS {
        "freebsd" => "FreeBSD",
        _ => "Linux",
    };
    let architecture = match (system, std::env::consts::ARCH) {
        ("FreeBSD", "x86_64") => "amd64",
        // Chromium tells this one on every processor.
        (_, _) => "x86_64",
    };
    let major = major(version);
    format!(
        "Mozilla/5.0 (X11; {system} {architecture}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{major}.0.0.0 Safari/537.36"
    )
}

/// The headless shell's user agent string has the full version, and its brands contain HeadlessChrome.
fn is_shell(user_agent: &str) -> bool {
    user_agent.contains("HeadlessChrome/") && !user_agent.contains(".0.0.0 ")
}

fn major(version: &str) -> u32 {
    version.split('.').next().and_then(|part| part.parse().ok()).unwrap_or_default()
}

/// The client hints that Chromium itself would send, with or without the brand HeadlessChrome.
fn client_hints(version: &str, headless: bool) -> Value {
    let brands = |grease: &str, version: &str| -> Vec<Value> {
        let mut list =
            vec![(grease_brand(version), grease.to_owned()), ("Chromium".into(), version.to_owned())];
        if headless {
            list.push(("HeadlessChrome".into(), version.to_owned()));
        }
        let places = places(major(version), list.len());
        let mut ordered = vec![Value::Null; list.len()];
        for ((brand, version), place) in list.into_iter().zip(places) {
            ordered[place] = json!({ "brand": brand, "version": version });
        }
        ordered
    };
    let major = major(version);
    let grease = ["8", "99", "24"][major as usize % 3];
    json!({
        "brands": brands(grease, &major.to_string()),
        "fullVersionList": brands(&format!("{grease}.0.0.0"), version),
        "fullVersion": version,
        "platform": if cfg!(target_os = "freebsd") { "FreeBSD" } else { "Linux" },
        "platformVersion": "",
        "architecture": match std::env::consts::ARCH { "aarch64" => "arm", _ => "x86" },
        "bitness": "64",
        "model": "",
        "mobile": false,
        "wow64": false,
        "formFactors": ["Desktop"],
    })
}

/// The meaningless brand that Chromium adds, which depends on its major version.
fn grease_brand(version: &str) -> String {
    const SIGNS: [&str; 11] = [" ", "(", ":", "-", ".", "/", ")", ";", "=", "?", "_"];
    let seed = major(version) as usize;
    format!("Not{}A{}Brand", SIGNS[seed % 11], SIGNS[(seed + 1) % 11])
}

/// The places of the brands in Chromium's list, which depend on its major version.
fn places(seed: u32, count: usize) -> Vec<usize> {
    const OF_THREE: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    match count {
        3 => OF_THREE[seed as usize % 6].to_vec(),
        _ => vec![seed as usize % 2, (seed as usize + 1) % 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_screen_is_never_smaller_than_the_window() {
        let mut settings = Presentation {
            languages: vec!["en-US".into()],
            timezone: None,
            window: (1280, 720),
            ordinary: None,
        };
        assert!(settings.switches().contains(&"--screen-info={1920x1080}".to_owned()));
        assert!(settings.overrides("x", "156.0.1.2").is_empty());
        settings.window = (2560, 600);
        assert!(settings.switches().contains(&"--screen-info={2560x1080}".to_owned()));
    }
}
