//! The checks of single values.

use std::path::Path;

const ZONEINFO: &str = "/usr/share/zoneinfo";

/// A language tag (BCP 47): a language of two or three letters, then subtags of two to eight letters or digits.
pub fn parse_language(text: &str) -> Result<String, String> {
    let mut parts = text.split('-');
    let language = parts.next().unwrap_or_default();
    let valid = (2..=3).contains(&language.len())
        && language.bytes().all(|byte| byte.is_ascii_alphabetic())
        && parts.all(|part| {
            (2..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
        })
        && text.len() <= 35;
    match valid {
        true => Ok(text.to_owned()),
        false => Err("expected a language tag (BCP 47), for example en-US or de".into()),
    }
}

/// The name of a timezone that exists in the system's zoneinfo.
pub fn parse_timezone(text: &str) -> Result<String, String> {
    let example = "for example UTC or Europe/Zurich";
    let valid = text.len() <= 64
        && text.split('/').all(|part| {
            part.starts_with(|first: char| first.is_ascii_alphabetic())
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+-".contains(&byte))
        });
    if !valid {
        return Err(format!("expected the name of a timezone (IANA), {example}"));
    }
    let zoneinfo = Path::new(ZONEINFO);
    if zoneinfo.is_dir() && !zoneinfo.join(text).is_file() {
        return Err(format!("there is no such timezone in {ZONEINFO}; expected an IANA name, {example}"));
    }
    Ok(text.to_owned())
}

/// A window's size, such as 1280x720.
pub fn parse_window(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let parsed = text.split_once('x').and_then(|(w, h)| Some((number(w)?, number(h)?)));
    match parsed {
        Some((w, h)) if (1..=8192).contains(&w) && (1..=8192).contains(&h) => Ok((w, h)),
        _ => Err("expected WIDTHxHEIGHT, each from 1 to 8192, for example 1280x720".into()),
    }
}

/// Additional Chromium arguments that can be set. None of them opens a port, weakens the sandbox, reads or writes files, or
/// contradicts another setting of browserd.
const ALLOWED: [&str; 13] = [
    "autoplay-policy",
    "disable-gpu",
    "disable-popup-blocking",
    "disable-remote-fonts",
    "disable-smooth-scrolling",
    "disable-webgl",
    "font-render-hinting",
    "force-dark-mode",
    "force-device-scale-factor",
    "force-prefers-reduced-motion",
    "host-resolver-rules",
    "use-fake-device-for-media-stream",
    "use-fake-ui-for-media-stream",
];

/// An additional Chromium argument from the list of allowed ones.
pub fn parse_chromium_arg(text: &str) -> Result<String, String> {
    let Some(argument) = text.strip_prefix("--") else {
        return Err("a Chromium argument starts with --".into());
    };
    let name = argument.split_once('=').map_or(argument, |(name, _)| name);
    if !ALLOWED.contains(&name) {
        return Err(format!("--{name} is not one of the allowed arguments: {}", ALLOWED.join(", ")));
    }
    match text.len() > 1024 || text.chars().any(char::is_control) {
        true => Err(format!("--{name} is too long or contains control characters")),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_and_timezones_are_validated() {
        for good in ["en", "en-US", "zh-Hans-CN", "gsw", "es-419"] {
            assert_eq!(parse_language(good).unwrap(), good);
        }
        for bad in
            ["", "e", "english", "en_US", "en-", "en-US;q=1", "en,de", "-en", "de-CH --no-sandbox", "en-u"]
        {
            assert!(parse_language(bad).is_err(), "{bad:?}");
        }
        for good in ["UTC", "Europe/Zurich", "America/Argentina/Buenos_Aires", "Etc/GMT+3"] {
            assert_eq!(parse_timezone(good).unwrap(), good);
        }
        for bad in ["", "/etc/passwd", "Europe/../x", "Europe/Nowhere", "Europe", "Europe/Zurich\n", ":UTC"] {
            assert!(parse_timezone(bad).is_err(), "{bad:?}");
        }
    }
}
