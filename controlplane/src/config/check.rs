//! Checks beyond the types: ranges, relations between keys, valid paths and addresses.

use super::Config;
use settings::{ConfigError, ConfigProblem, SettingOrigin, out_of_range};
use std::net::SocketAddr;
use std::path::Path;

/// `sun_path` has 104 bytes on FreeBSD and 108 on Linux; a few are reserved for a temporary name.
const LONGEST_SOCKET_PATH: usize = 100;

pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let mut problems = out_of_range(config);
    let mut wrong = |key: &str, what: String| {
        problems.push(ConfigProblem { origin: SettingOrigin::Value, key: key.to_owned(), what });
    };
    for (key, path) in [
        ("paths.socket", &config.paths.socket),
        ("paths.hostd", &config.paths.hostd),
        ("paths.state", &config.paths.state),
        ("recording.folder", &config.recording.folder),
    ] {
        if let Some(what) = path_problem(path) {
            wrong(key, what);
        }
    }
    for (key, path) in [("paths.socket", &config.paths.socket), ("paths.hostd", &config.paths.hostd)] {
        let length = path.as_os_str().len();
        if length > LONGEST_SOCKET_PATH {
            wrong(
                key,
                format!(
                    "has {length} bytes, but a socket's path has at most {LONGEST_SOCKET_PATH}: choose a shorter one"
                ),
            );
        }
    }
    if !config.http.listen.is_empty() {
        match config.http.listen.parse::<SocketAddr>() {
            Err(_) => wrong(
                "http.listen",
                format!(
                    "{:?} is not an address and a port: use 127.0.0.1:9480, or \"\" for no listener",
                    config.http.listen
                ),
            ),
            Ok(address) if !address.ip().is_loopback() && !config.http.allow_unencrypted => wrong(
                "http.listen",
                format!(
                    "{address} is not loopback: keys would cross the network unencrypted. Use 127.0.0.1:9480 and a proxy that ends TLS, or set http.allow_unencrypted"
                ),
            ),
            Ok(_) => {}
        }
    }
    for host in &config.http.allowed_hosts {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        if host.is_empty() || !host.bytes().all(valid) {
            wrong(
                "http.allowed_hosts",
                format!("{host:?} is not a host name: write it without scheme and port"),
            );
        }
    }
    let public = &config.http.public_url;
    if !public.is_empty() && public_url_problem(public) {
        wrong(
            "http.public_url",
            // It may contain a password, so it is not shown.
            "is not a URL such as https://browsers.example.com: no user, no path, no slash at the end".into(),
        );
    }
    let url = &config.store.url;
    if !url.is_empty() && !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        // The value may contain a password, so it is not shown.
        wrong(
            "store.url",
            "is not a Postgres address: use postgres://user@host/database, or \"\" for SQLite".into(),
        );
    }
    for (key, default, most_key, most) in [
        (
            "sessions.deadline_seconds",
            config.sessions.deadline_seconds,
            "sessions.max_deadline_seconds",
            config.sessions.max_deadline_seconds,
        ),
        (
            "sessions.idle_seconds",
            config.sessions.idle_seconds,
            "sessions.max_idle_seconds",
            config.sessions.max_idle_seconds,
        ),
    ] {
        if default > most {
            wrong(key, format!("{default} is above {most_key}, which is {most}"));
        }
    }
    if let Err(error) = config.log.filter.parse::<tracing_subscriber::EnvFilter>() {
        wrong("log.filter", format!("{:?} is not a filter ({error}): try \"info\"", config.log.filter));
    }
    for (index, rule) in config.access.iter().enumerate() {
        if rule.users.is_empty() && rule.groups.is_empty() {
            wrong("access", format!("rule {}: name at least one user or group", index + 1));
        }
        if rule.scopes.is_empty() {
            wrong("access", format!("rule {}: name at least one scope", index + 1));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(ConfigError { problems }) }
}

fn public_url_problem(url: &str) -> bool {
    let Ok(uri) = url.parse::<axum::http::Uri>() else { return true };
    let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    let authority = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    !scheme
        || !authority
        || uri.path_and_query().is_some_and(|path| path.as_str() != "/")
        || url.ends_with('/')
}

fn path_problem(path: &Path) -> Option<String> {
    use std::path::Component;
    let shown = path.display();
    if !path.is_absolute() {
        return Some(format!("\"{shown}\" is not an absolute path"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Some(format!("\"{shown}\" contains `..`: write the resolved path"));
    }
    if path.file_name().is_none() {
        return Some(format!("\"{shown}\" is the root folder"));
    }
    if path.to_str().is_none_or(|text| text.chars().any(char::is_control)) {
        return Some(format!("{path:?} contains control characters"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::Settings as _;

    fn set(key: &str, value: &str) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        settings::load(Some(file.path()), std::iter::empty(), &[(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn the_defaults_are_valid_on_both_systems() {
        for system in [settings::System::Linux, settings::System::Freebsd] {
            Config::defaults(system).check().expect("valid");
        }
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_key() {
        let long = format!("/{}", "x".repeat(101));
        for (key, value) in [
            ("paths.socket", "relative.sock"),
            ("paths.socket", long.as_str()),
            ("paths.state", "/"),
            ("recording.folder", "/a/../b"),
            ("http.listen", "localhost"),
            ("http.listen", "0.0.0.0:9480"),
            ("http.allowed_hosts", "[\"http://x\"]"),
            ("http.public_url", "browsers.example.com"),
            ("http.public_url", "https://user:secret@example.com"),
            ("http.public_url", "https://example.com/"),
            ("http.max_body_bytes", "1"),
            ("store.url", "mysql://user:hunter2@host/db"),
            ("store.connections", "0"),
            ("sessions.deadline_seconds", "90000"),
            ("sessions.idle_seconds", "90000"),
            ("limits.sessions", "0"),
            ("log.filter", "controlplane=loud"),
            ("access", "[{tenant=\"t\", scopes=[\"read\"]}]"),
            ("access", "[{users=[\"root\"], tenant=\"t\", scopes=[]}]"),
            ("access", "[{users=[\"root\"], tenant=\"not valid\", scopes=[\"read\"]}]"),
        ] {
            let error = set(key, value).expect_err(key);
            assert_eq!(error.problems.len(), 1, "{error}");
            let problem = &error.problems[0];
            assert!(problem.key.starts_with(key), "{key} {value}: {error}");
            assert!(
                !error.to_string().contains("hunter2") && !error.to_string().contains("secret@"),
                "{error}"
            );
        }
    }

    #[test]
    fn access_rules_can_be_given() {
        let rule = "[{users=[\"root\"], tenant=\"t\", scopes=[\"read\"]}]";
        let config = set("access", rule).expect("a valid rule");
        assert_eq!(config.access.len(), 1);
        let error = set("access", "[{users=[\"root\"], scopes=[\"read\"]}]").expect_err("no tenant");
        assert!(error.to_string().contains("missing field `tenant`"), "{error}");
    }

    #[test]
    fn every_key_can_be_set_to_its_default_and_has_a_description() {
        for section in settings::sections::<Config>() {
            assert!(!section.doc.is_empty(), "{}", section.name);
            for key in section.keys.iter().filter(|_| !section.list) {
                let path = format!("{}.{}", section.name, key.name);
                assert!(!key.doc.is_empty(), "{path}");
                let value = key.default.as_str().map_or_else(|| key.default.to_string(), str::to_owned);
                let config = set(&path, &value).unwrap_or_else(|error| panic!("{path}={value}: {error}"));
                assert_eq!(config, Config::default(), "{path}");
            }
        }
    }

    #[test]
    fn database_url_sets_the_store_and_the_own_variable_wins() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let load = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            settings::load::<Config>(Some(file.path()), variables, &[])
        };
        let other = ("DATABASE_URL", "postgres://a/b");
        assert_eq!(load(&[other]).expect("valid").store.url, other.1);
        let own = ("CONTROLPLANE_STORE_URL", "postgres://c/d");
        assert_eq!(load(&[own, other]).expect("valid").store.url, own.1);
        let error = load(&[("CONTROLPLANE_LIMITS_SESIONS", "3")]).expect_err("unknown");
        assert!(error.to_string().contains("did you mean CONTROLPLANE_LIMITS_SESSIONS?"), "{error}");
        load(&[("CONTROLPLANE_KEY", "cpk_x")]).expect("not a setting");
    }
}
