//! Checks beyond the types: ranges, relations between keys, valid paths.

use super::lifecycle::PoolConfig;
use super::types::Config;
use crate::api::LimitRange;
use crate::slot::Slots;
use settings::{ConfigError, ConfigProblem, SettingOrigin, out_of_range};
use std::collections::BTreeSet;
use std::path::Path;

/// `sun_path` has 104 bytes on FreeBSD and 108 on Linux; a few are reserved for a temporary name.
const LONGEST_SOCKET_PATH: usize = 100;

impl Config {
    pub(super) fn problems(&self) -> Result<(), ConfigError> {
        let mut problems = out_of_range(self);
        // Names and addresses are checked only if all numbers are in range.
        let pool = problems.is_empty().then(|| Slots::new(&self.pool));
        let mut wrong = |key: &str, what: String| {
            problems.push(ConfigProblem { origin: SettingOrigin::Value, key: key.to_owned(), what });
        };

        for (key, path) in [
            ("paths.socket", &self.paths.socket),
            ("paths.state", &self.paths.state),
            ("paths.audit", &self.paths.audit),
            ("pool.clones_dir", &self.pool.clones_dir),
            ("linux.templates", &self.linux.templates),
            ("freebsd.bastille_prefix", &self.freebsd.bastille_prefix),
            ("freebsd.console_logs", &self.freebsd.console_logs),
        ] {
            if let Some(what) = path_problem(path) {
                wrong(key, what);
            }
        }
        let socket = self.paths.socket.as_os_str().len();
        if socket > LONGEST_SOCKET_PATH {
            wrong(
                "paths.socket",
                format!("is {socket} bytes long: a socket's path may have at most {LONGEST_SOCKET_PATH}"),
            );
        }
        // These are written to a jail's configuration file, between quotes.
        for (key, path) in
            [("freebsd.console_logs", &self.freebsd.console_logs), ("pool.clones_dir", &self.pool.clones_dir)]
        {
            if path.to_string_lossy().contains(['"', '\'', '\\', '$', ';']) {
                wrong(key, format!("\"{}\" contains a quote, a backslash, $ or ;", path.display()));
            }
        }
        if let (Some(ip), Some(Ok(pool))) = (self.freebsd.template_ip, &pool)
            && let Some(slot) = pool.slot_of_address(ip)
        {
            wrong(
                "freebsd.template_ip",
                format!(
                    "{ip} is the address of {}: change the template's address or pool.subnet",
                    pool.name(slot)
                ),
            );
        }
        if let Some(Err(error)) = &pool
            && error.key != "clones_dir"
        {
            wrong(&format!("pool.{}", error.key), error.why.clone());
        }

        let PoolConfig { size, flavors, first_slot, last_slot, .. } = &self.pool;
        if *size > 0 && (flavors.is_empty() || flavors.iter().collect::<BTreeSet<_>>().len() < flavors.len())
        {
            wrong("pool.flavors", "must list each flavour at most once, and at least one".into());
        }
        let (members, slots) =
            (usize::from(*size) * flavors.len(), usize::from(last_slot.saturating_sub(*first_slot)) + 1);
        if members >= slots {
            wrong(
                "pool.size",
                format!(
                    "{members} members of the warm pool leave none of the {slots} slots for other clones"
                ),
            );
        }

        for (key, path) in [("linux.cgroup", &self.linux.cgroup), ("linux.browserd", &self.linux.browserd)] {
            if let Some(what) = path_problem(path).filter(|_| !path.as_os_str().is_empty()) {
                wrong(key, what);
            }
        }

        for folder in &self.host.tool_folders {
            if let Some(what) = path_problem(folder) {
                wrong("host.tool_folders", what);
            } else if folder.to_string_lossy().contains(':') {
                wrong("host.tool_folders", format!("\"{}\" contains a colon", folder.display()));
            }
        }

        let template = &self.host.template;
        let plain = template.starts_with(|c: char| c.is_ascii_alphanumeric())
            && template.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if let Some(Ok(pool)) = &pool
            && (pool.slot_of_name(template).is_some() || *template == format!("{}-aside", pool.prefix()))
        {
            wrong("host.template", format!("{template:?} is the name of a clone"));
        }
        if !plain || template.len() > 64 {
            wrong(
                "host.template",
                format!("{template:?} is not a valid name: use letters, digits and . _ -"),
            );
        }

        let deadlines = &self.lifecycle;
        let (default, max) = (deadlines.default_deadline_seconds, deadlines.max_deadline_seconds);
        if default > max {
            wrong(
                "lifecycle.default_deadline_seconds",
                format!("{default} is above lifecycle.max_deadline_seconds, which is {max}"),
            );
        }

        if let Err(error) = self.log.filter.parse::<tracing_subscriber::filter::Targets>() {
            wrong("log.filter", format!("{:?} is not a filter ({error}): try \"info\"", self.log.filter));
        }
        if let Some(listen) = self.metrics.listen {
            let usual = "use 127.0.0.1:9469 or [::1]:9469";
            if !listen.ip().is_loopback() {
                wrong("metrics.listen", format!("{listen} is not loopback: {usual}"));
            } else if listen.port() == 0 {
                wrong("metrics.listen", format!("{listen} has no port: {usual}"));
            }
        }
        // chown(2) and netfilter take this number for "no user".
        if self.egress.control_users.contains(&u32::MAX) {
            wrong("egress.control_users", format!("{} is not a user id", u32::MAX));
        }
        for (key, rate) in [
            ("clone_limits.read_bytes_per_second", self.clone_limits.read_bytes_per_second),
            ("clone_limits.write_bytes_per_second", self.clone_limits.write_bytes_per_second),
        ] {
            let least = LimitRange::BYTES_PER_SECOND.least;
            if (1..least).contains(&rate) {
                wrong(key, format!("{rate} is too small: at least {least}, or 0 for no limit"));
            }
        }

        if self.access.is_empty() {
            wrong(
                "access",
                "has no rule, so every caller would be refused; omit it for the default rules".into(),
            );
        }
        for (index, rule) in self.access.iter().enumerate() {
            if let Some(problem) = rule.problem() {
                wrong("access", format!("rule {}: {problem}", index + 1));
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(ConfigError { problems }) }
    }
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
