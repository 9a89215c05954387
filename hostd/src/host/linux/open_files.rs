//! Whether all clones together can use up the host's open files. Then no other process of the host could open one.

use super::checks::{finding, good};
use crate::api::{Finding, Severity};
use crate::config::Config;

const FILE_MAX: &str = "/proc/sys/fs/file-max";

/// What doctor says about open files.
pub(super) fn check(config: &Config) -> Finding {
    let text = std::fs::read_to_string(FILE_MAX).unwrap_or_default();
    match text.trim().parse() {
        Ok(file_max) => judge(config, file_max),
        Err(error) => finding("open-files", Severity::Warning, format!("{FILE_MAX}: {error}"), "mount /proc"),
    }
}

fn judge(config: &Config, file_max: u64) -> Finding {
    let (limits, clones) = (&config.clone_limits, config.server.max_clones);
    let of_one = limits.open_files.saturating_mul(limits.processes);
    let of_all = of_one.saturating_mul(clones);
    // The host's own programs need some too.
    let wanted = of_all.saturating_add(of_all / 8);
    let message = format!(
        "{clones} clones with {} processes and {} open files in each can open {of_all}; fs.file-max is {file_max}",
        limits.processes, limits.open_files
    );
    let fix = format!(
        "sysctl -w fs.file-max={wanted} (it reserves nothing), or lower clone_limits.open_files, clone_limits.processes or \
         server.max_clones"
    );
    if file_max >= wanted {
        good("open-files", message)
    } else if file_max > of_one {
        finding("open-files", Severity::Warning, message, &fix)
    } else {
        finding("open-files", Severity::Error, format!("one clone can stop the host: {message}"), &fix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clones_open_files_are_compared_with_the_hosts() {
        let mut config = Config::default();
        config.server.max_clones = 10;
        config.clone_limits.processes = 100;
        config.clone_limits.open_files = 1000;
        let severity = |file_max| judge(&config, file_max).severity;
        assert_eq!(severity(u64::MAX), Severity::Ok);
        assert_eq!(severity(1_125_000), Severity::Ok);
        assert_eq!(severity(1_124_999), Severity::Warning);
        assert_eq!(severity(100_001), Severity::Warning);
        assert_eq!(severity(100_000), Severity::Error);
        let fix = judge(&config, 100_000).fix;
        assert!(fix.contains("fs.file-max=1125000"), "{fix}");
    }

    /// One clone with the default limits cannot use up the files of a machine with 16 GiB of memory, whose kernel allows
    /// about 1.6 million. Kernels with systemd allow 2^63.
    #[test]
    fn the_default_limits_of_one_clone_are_safe() {
        let limits = Config::default().clone_limits;
        assert!(limits.open_files * limits.processes <= 1_600_000);
    }
}
