//! Resource limits of a clone, and the values that work.
//!
//! One table of ranges serves the schema of a request, the schema of the configuration and the check of both.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The smallest and the largest value of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitRange {
    /// A clone with less does not start its browser or cannot load a page.
    pub least: u64,
    /// No host enforces more. It also keeps every conversion (bytes to pages, percent to microseconds) from overflowing.
    pub most: u64,
}

/// The smallest values were measured with a headless Chromium that shows one blank page: it has 77 threads, 79 open files in
/// one process, 75 MiB of its own memory and 1 MiB of files, and it does not start with 64 threads or 64 open files.
/// browserd and the sandbox need a few more of each. The smallest processor time and disk rate are not measured; they let a
/// browser start within the default step timeout.
impl LimitRange {
    /// The range of memory, in bytes.
    pub const MEMORY_BYTES: LimitRange = LimitRange { least: 128 << 20, most: 1 << 50 };
    /// The range of processes (threads on Linux). Linux has at most 2^22.
    pub const PROCESSES: LimitRange = LimitRange { least: 128, most: 1 << 22 };
    /// The range of open files. Linux allows no more without a change of `fs.nr_open`.
    pub const OPEN_FILES: LimitRange = LimitRange { least: 256, most: 1 << 20 };
    /// The range of processor time, in percent of one core.
    pub const CPU_PERCENT: LimitRange = LimitRange { least: 5, most: 1_000_000 };
    /// The range of disk space, in bytes.
    pub const DISK_BYTES: LimitRange = LimitRange { least: 16 << 20, most: 1 << 50 };
    /// The range of a disk rate, in bytes per second.
    pub const BYTES_PER_SECOND: LimitRange = LimitRange { least: 64 << 10, most: 1 << 50 };

    /// What is wrong with a value.
    pub fn problem(self, value: u64) -> Option<String> {
        match value {
            _ if value < self.least => Some(format!("{value} is too small: at least {}", self.least)),
            _ if value > self.most => Some(format!("{value} is too large: at most {}", self.most)),
            _ => None,
        }
    }
}

/// Resource limits of a clone. In a request each must be at most the configured limit, and a limit that is left out is the
/// configured one. In a result they are the limits in effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of all its processes, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = LimitRange::MEMORY_BYTES.least, max = LimitRange::MEMORY_BYTES.most))]
    pub memory_bytes: Option<u64>,
    /// Number of processes (threads on Linux).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = LimitRange::PROCESSES.least, max = LimitRange::PROCESSES.most))]
    pub processes: Option<u64>,
    /// Open files of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = LimitRange::OPEN_FILES.least, max = LimitRange::OPEN_FILES.most))]
    pub open_files: Option<u64>,
    /// Processor time: 100 is one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = LimitRange::CPU_PERCENT.least, max = LimitRange::CPU_PERCENT.most))]
    pub cpu_percent: Option<u64>,
    /// Disk space beyond the template, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = LimitRange::DISK_BYTES.least, max = LimitRange::DISK_BYTES.most))]
    pub disk_bytes: Option<u64>,
    /// Bytes read from disk per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = LimitRange::BYTES_PER_SECOND.least, max = LimitRange::BYTES_PER_SECOND.most))]
    pub read_bytes_per_second: Option<u64>,
    /// Bytes written to disk per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = LimitRange::BYTES_PER_SECOND.least, max = LimitRange::BYTES_PER_SECOND.most))]
    pub write_bytes_per_second: Option<u64>,
}

impl Limits {
    /// Every limit with its name and its range.
    pub fn each(&self) -> [(&'static str, Option<u64>, LimitRange); 7] {
        [
            ("memory_bytes", self.memory_bytes, LimitRange::MEMORY_BYTES),
            ("processes", self.processes, LimitRange::PROCESSES),
            ("open_files", self.open_files, LimitRange::OPEN_FILES),
            ("cpu_percent", self.cpu_percent, LimitRange::CPU_PERCENT),
            ("disk_bytes", self.disk_bytes, LimitRange::DISK_BYTES),
            ("read_bytes_per_second", self.read_bytes_per_second, LimitRange::BYTES_PER_SECOND),
            ("write_bytes_per_second", self.write_bytes_per_second, LimitRange::BYTES_PER_SECOND),
        ]
    }

    /// Whether every limit that is given here is the same in `granted`.
    pub fn agree_with(&self, granted: &Limits) -> bool {
        let pairs = self.each().into_iter().zip(granted.each());
        pairs.into_iter().all(|((_, asked, _), (_, has, _))| asked.is_none() || asked == has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_in_the_table_under_its_own_name() {
        for (index, (name, _, range)) in Limits::default().each().into_iter().enumerate() {
            let one: Limits = serde_json::from_value(serde_json::json!({ name: range.least })).unwrap();
            let given: Vec<_> = one.each().map(|(_, value, _)| value).into();
            let expected: Vec<_> = (0..7).map(|at| (at == index).then_some(range.least)).collect();
            assert_eq!(given, expected, "{name}");
        }
    }

    #[test]
    fn the_schema_has_the_ranges_of_the_table() {
        let schema = schemars::schema_for!(Limits).to_value();
        for (name, _, range) in Limits::default().each() {
            let field = &schema["properties"][name];
            assert_eq!(
                (&field["minimum"], &field["maximum"]),
                (&range.least.into(), &range.most.into()),
                "{name}"
            );
        }
        assert_eq!(schema["properties"].as_object().unwrap().len(), 7);
    }

    #[test]
    fn a_range_says_what_is_wrong() {
        let range = LimitRange { least: 2, most: 9 };
        assert_eq!((range.problem(2), range.problem(9)), (None, None));
        assert_eq!(range.problem(0).unwrap(), "0 is too small: at least 2");
        assert_eq!(range.problem(u64::MAX).unwrap(), "18446744073709551615 is too large: at most 9");
    }

    #[test]
    fn limits_agree_if_the_given_ones_are_the_same() {
        let granted = Limits { memory_bytes: Some(1 << 30), processes: Some(512), ..Limits::default() };
        assert!(Limits::default().agree_with(&granted));
        assert!(Limits { processes: Some(512), ..Limits::default() }.agree_with(&granted));
        assert!(!Limits { processes: Some(511), ..Limits::default() }.agree_with(&granted));
        assert!(!Limits { disk_bytes: Some(1 << 30), ..Limits::default() }.agree_with(&granted));
    }
}
