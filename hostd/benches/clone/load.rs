//! How busy the machine is, and how much of that is ours.

use std::fs;

/// The kernel's count of processor time so far.
#[derive(Clone, Copy)]
pub(crate) struct Busy {
    idle: f64,
    all: f64,
}

impl Busy {
    pub(crate) fn now() -> Busy {
        let text = fs::read_to_string("/proc/stat").unwrap();
        let line = text.lines().next().unwrap();
        let times: Vec<f64> =
            line.split_whitespace().skip(1).take(8).map(|time| time.parse().unwrap()).collect();
        // user nice system idle iowait irq softirq steal
        Busy { idle: times[3] + times[4], all: times.iter().sum() }
    }

    /// Which share of the processors nobody used since then.
    pub(crate) fn idle_share(self) -> f64 {
        let now = Busy::now();
        let all = now.all - self.all;
        if all > 0.0 { (now.idle - self.idle) / all } else { 0.0 }
    }
}

/// Processor time of all processes in this private machine, those included that ended and were waited for.
pub(crate) fn own_seconds() -> f64 {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).unwrap().unwrap() as f64;
    let mut sum = 0.0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        // utime, stime, cutime, cstime
        sum +=
            rest.split_whitespace().skip(11).take(4).filter_map(|time| time.parse::<f64>().ok()).sum::<f64>();
    }
    sum / ticks
}
