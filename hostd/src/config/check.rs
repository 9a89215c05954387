//! What the types alone cannot say: ranges, relations between keys, usable paths.

use super::load::{ConfigError, Origin, Problem};
use super::types::Config;
use crate::slot::Pool;
use std::path::Path;

/// `sun_path` is 104 bytes on FreeBSD and 108 on Linux; some are kept for a temporary name.
const LONGEST_SOCKET_PATH: usize = 100;
/// A line must have room for the largest valid request.
const SHORTEST_LINE: usize = 4096;
/// A year. Longer times are mistakes of unit, and sums of such times cannot overflow.
const LONGEST_SECONDS: u64 = 366 * 24 * 3600;

impl Config {
    /// Everything that is wrong, or nothing: validated before the first effect.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, what: String| {
            problems.push(Problem { origin: Origin::Value, key: key.to_owned(), what });
        };

        for (key, path) in [
            ("paths.socket", &self.paths.socket),
            ("paths.state", &self.paths.state),
            ("paths.audit", &self.paths.audit),
            ("pool.clones_dir", &self.pool.clones_dir),
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
        if let Err(error) = Pool::new(&self.pool)
            && error.key != "clones_dir"
        {
            wrong(&format!("pool.{}", error.key), error.why);
        }

        let template = &self.host.template;
        let plain = template.starts_with(|c: char| c.is_ascii_alphanumeric())
            && template.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if !plain || template.len() > 64 {
            wrong("host.template", format!("{template:?} is no template's name: letters, digits and . _ -"));
        }

        let lifecycle = &self.lifecycle;
        let server = &self.server;
        let limits = &self.clone_limits;
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        const ANY: u64 = i64::MAX as u64;
        for (key, value, least, most) in [
            ("lifecycle.default_deadline_seconds", lifecycle.default_deadline_seconds, 1, LONGEST_SECONDS),
            ("lifecycle.max_deadline_seconds", lifecycle.max_deadline_seconds, 1, LONGEST_SECONDS),
            ("lifecycle.step_timeout_seconds", lifecycle.step_timeout_seconds, 1, 3600),
            ("lifecycle.busy_patience_ms", lifecycle.busy_patience_ms, 0, 3_600_000),
            ("lifecycle.quarantine_seconds", lifecycle.quarantine_seconds, 0, LONGEST_SECONDS),
            ("lifecycle.orphan_grace_seconds", lifecycle.orphan_grace_seconds, 0, LONGEST_SECONDS),
            ("lifecycle.reap_cap", count(lifecycle.reap_cap), 1, 999),
            ("lifecycle.reconcile_interval_ms", lifecycle.reconcile_interval_ms, 10, 3_600_000),
            ("lifecycle.shutdown_grace_seconds", lifecycle.shutdown_grace_seconds, 0, 3600),
            ("clone_limits.memory_bytes", limits.memory_bytes, 64 << 20, ANY),
            ("clone_limits.processes", limits.processes, 16, ANY),
            ("clone_limits.open_files", limits.open_files, 64, ANY),
            ("clone_limits.cpu_percent", limits.cpu_percent, 1, 100_000),
            ("clone_limits.disk_bytes", limits.disk_bytes, 1 << 20, ANY),
            ("clone_limits.read_bytes_per_second", limits.read_bytes_per_second, 0, ANY),
            ("clone_limits.write_bytes_per_second", limits.write_bytes_per_second, 0, ANY),
            ("server.max_clones", server.max_clones, 1, 999),
            ("server.max_clones_per_tenant", server.max_clones_per_tenant, 1, 999),
            ("server.creates_per_minute", server.creates_per_minute.into(), 1, 1_000_000),
            ("server.create_burst", server.create_burst.into(), 1, 1_000_000),
            ("server.max_connections", count(server.max_connections), 1, 100_000),
            ("server.max_connections_per_user", count(server.max_connections_per_user), 1, 100_000),
            ("server.max_requests_per_connection", count(server.max_requests_per_connection), 1, 100_000),
            ("server.max_operations", count(server.max_operations), 1, 999),
            ("server.max_line_bytes", count(server.max_line_bytes), count(SHORTEST_LINE), 16 << 20),
            ("server.line_timeout_seconds", server.line_timeout_seconds, 1, 3600),
        ] {
            if value < least {
                wrong(key, format!("{value} is too small: at least {least}"));
            } else if value > most {
                wrong(key, format!("{value} is too large: at most {most}"));
            }
        }
        let (default, max) = (lifecycle.default_deadline_seconds, lifecycle.max_deadline_seconds);
        if default > max {
            wrong(
                "lifecycle.default_deadline_seconds",
                format!("{default} is above lifecycle.max_deadline_seconds, which is {max}"),
            );
        }

        if let Err(error) = self.log.filter.parse::<tracing_subscriber::EnvFilter>() {
            wrong("log.filter", format!("{:?} is not a filter ({error}): try \"info\"", self.log.filter));
        }
        if let Some(listen) = self.metrics.listen
            && !listen.ip().is_loopback()
        {
            wrong("metrics.listen", format!("{listen} is not loopback: use 127.0.0.1:9469 or [::1]:9469"));
        }

        if self.access.is_empty() {
            wrong(
                "access",
                "has no rule, so nobody could call hostd; leave it out for the default rules".into(),
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
        return Some(format!("\"{shown}\" contains `..`: write the path it stands for"));
    }
    if path.file_name().is_none() {
        return Some(format!("\"{shown}\" is the root folder"));
    }
    if path.to_str().is_none_or(|text| text.chars().any(char::is_control)) {
        return Some(format!("{path:?} contains control characters"));
    }
    None
}
