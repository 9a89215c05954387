//! The section of the clones' resource limits, and what a request may have of them.

use crate::api::{ErrorCode, LimitRange, Limits, RpcError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Resource limits of one clone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CloneLimits {
    /// Memory of all its processes, in bytes.
    #[schemars(range(min = LimitRange::MEMORY_BYTES.least, max = LimitRange::MEMORY_BYTES.most))]
    pub memory_bytes: u64,
    /// Number of processes (threads on Linux).
    #[schemars(range(min = LimitRange::PROCESSES.least, max = LimitRange::PROCESSES.most))]
    pub processes: u64,
    /// Open files of one process. All clones together can open this many times processes times server.max_clones; doctor
    /// compares that with fs.file-max.
    #[schemars(range(min = LimitRange::OPEN_FILES.least, max = LimitRange::OPEN_FILES.most))]
    pub open_files: u64,
    /// Processor time: 100 is one core.
    #[schemars(range(min = LimitRange::CPU_PERCENT.least, max = LimitRange::CPU_PERCENT.most))]
    pub cpu_percent: u64,
    /// Disk space beyond the template, in bytes.
    #[schemars(range(min = LimitRange::DISK_BYTES.least, max = LimitRange::DISK_BYTES.most))]
    pub disk_bytes: u64,
    /// Bytes read from disk per second, at least 65536; 0 is no limit. Not enforced on Linux: see linux.limits.
    #[schemars(range(max = LimitRange::BYTES_PER_SECOND.most))]
    pub read_bytes_per_second: u64,
    /// Bytes written to disk per second, at least 65536; 0 is no limit. Not enforced on Linux: see linux.limits.
    #[schemars(range(max = LimitRange::BYTES_PER_SECOND.most))]
    pub write_bytes_per_second: u64,
}

impl Default for CloneLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 2 << 30,
            processes: 1024,
            open_files: 1024,
            cpu_percent: 200,
            disk_bytes: 10 << 30,
            read_bytes_per_second: 0,
            write_bytes_per_second: 0,
        }
    }
}

impl CloneLimits {
    /// The limits of a clone whose request asks for none. A rate of 0 is no limit.
    pub fn all(&self) -> Limits {
        let rate = |rate: u64| (rate > 0).then_some(rate);
        Limits {
            memory_bytes: Some(self.memory_bytes),
            processes: Some(self.processes),
            open_files: Some(self.open_files),
            cpu_percent: Some(self.cpu_percent),
            disk_bytes: Some(self.disk_bytes),
            read_bytes_per_second: rate(self.read_bytes_per_second),
            write_bytes_per_second: rate(self.write_bytes_per_second),
        }
    }

    /// The limits of a request's clone: the requested ones, and the configured ones for those that are left out.
    pub fn grant(&self, requested: Option<&Limits>) -> Result<Limits, RpcError> {
        let (configured, requested) = (self.all(), requested.copied().unwrap_or_default());
        for ((name, asked, range), (_, allowed, _)) in requested.each().into_iter().zip(configured.each()) {
            let Some(asked) = asked else { continue };
            if let Some(problem) = range.problem(asked) {
                let message = format!("limits.{name}: {problem}");
                let hint = "leave it out for the configured limit";
                return Err(RpcError::new(ErrorCode::InvalidParams, message, hint));
            }
            if let Some(allowed) = allowed.filter(|allowed| asked > *allowed) {
                let message =
                    format!("limits.{name}: {asked} is above clone_limits.{name}, which is {allowed}");
                let hint = "ask for less, or leave it out for the configured limit";
                return Err(RpcError::new(ErrorCode::LimitExceeded, message, hint));
            }
        }
        Ok(Limits {
            memory_bytes: requested.memory_bytes.or(configured.memory_bytes),
            processes: requested.processes.or(configured.processes),
            open_files: requested.open_files.or(configured.open_files),
            cpu_percent: requested.cpu_percent.or(configured.cpu_percent),
            disk_bytes: requested.disk_bytes.or(configured.disk_bytes),
            read_bytes_per_second: requested.read_bytes_per_second.or(configured.read_bytes_per_second),
            write_bytes_per_second: requested.write_bytes_per_second.or(configured.write_bytes_per_second),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: u64) -> Limits {
        serde_json::from_value(serde_json::json!({ name: value })).unwrap()
    }

    fn value(limits: &Limits, name: &str) -> Option<u64> {
        limits.each().into_iter().find(|(other, _, _)| *other == name).unwrap().1
    }

    #[test]
    fn a_request_may_ask_for_less() {
        let configured = CloneLimits::default();
        assert_eq!(configured.grant(None).unwrap(), configured.all());
        assert_eq!(configured.grant(Some(&Limits::default())).unwrap(), configured.all());
        for (name, most, range) in configured.all().each() {
            for asked in [Some(range.least), most].into_iter().flatten() {
                let granted = configured.grant(Some(&one(name, asked))).unwrap();
                assert_eq!(value(&granted, name), Some(asked));
                for (other, has, _) in granted.each() {
                    assert!(
                        other == name || has == value(&configured.all(), other),
                        "{name} changed {other}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_request_for_more_is_refused() {
        let configured = CloneLimits {
            read_bytes_per_second: 1 << 20,
            write_bytes_per_second: 1 << 20,
            ..CloneLimits::default()
        };
        for (name, most, _) in configured.all().each() {
            let most = most.unwrap();
            let error = configured.grant(Some(&one(name, most + 1))).unwrap_err();
            assert_eq!(error.code(), ErrorCode::LimitExceeded, "{name}");
            let expected =
                format!("limits.{name}: {} is above clone_limits.{name}, which is {most}", most + 1);
            assert_eq!(error.message, expected);
        }
    }

    #[test]
    fn values_that_cannot_work_are_refused() {
        for (name, _, range) in Limits::default().each() {
            for bad in [0, 1, range.least - 1, range.most + 1, u64::MAX] {
                let error = CloneLimits::default().grant(Some(&one(name, bad))).unwrap_err();
                assert_eq!(error.code(), ErrorCode::InvalidParams, "{name} {bad}");
                let words = [format!("limits.{name}: {bad} is too "), " at ".to_owned()];
                assert!(words.iter().all(|word| error.message.contains(word)), "{error}");
            }
        }
    }
}
