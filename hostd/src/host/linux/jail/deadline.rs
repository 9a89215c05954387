//! A clone's deadline as its supervisor keeps it, so that no clone outlives its deadline while hostd does not run, or after
//! hostd's records were lost.
//!
//! The file `deadline` of the run folder has the milliseconds since boot, always in the same number of bytes. hostd makes it
//! before the supervisor starts and overwrites it in place: a supervisor keeps its descriptor, which refers to the same file
//! also after somebody has removed the state folder. It reads the file when its timer expires, so a renewal needs no message,
//! also to a supervisor that is frozen.

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// The file in the run folder.
pub(in crate::host::linux) const DEADLINE: &str = "deadline";
/// The digits of the largest number, and a line break.
const LENGTH: usize = 21;

/// Make the file of a jail that does not run yet.
pub(super) fn make(run: &Path, deadline: Duration) -> io::Result<()> {
    let path = run.join(DEADLINE);
    super::files::remove_file(&path)?;
    write(OpenOptions::new().create_new(true).mode(0o600), &path, deadline)
}

/// Change the deadline of a jail that runs. Its run folder must still exist: its supervisor reads no other file.
pub(in crate::host::linux) fn change(run: &Path, deadline: Duration) -> io::Result<()> {
    match write(&mut OpenOptions::new(), &run.join(DEADLINE), deadline) {
        // A supervisor of an earlier version has no such file and keeps no deadline.
        Err(error) if error.kind() == io::ErrorKind::NotFound && run.join(super::JAIL).exists() => Ok(()),
        result => result,
    }
}

fn write(how: &mut OpenOptions, path: &Path, deadline: Duration) -> io::Result<()> {
    let file = how.write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    let millis = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    file.write_all_at(format!("{millis:0digits$}\n", digits = LENGTH - 1).as_bytes(), 0)
}

/// The supervisor's timer for its clone's deadline.
#[derive(Debug)]
pub(in crate::host::linux) struct DeadlineTimer {
    file: File,
    timer: TimerFd,
}

impl DeadlineTimer {
    /// Start the timer of this run folder's jail.
    pub(in crate::host::linux) fn start(run: &Path) -> io::Result<DeadlineTimer> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(run.join(DEADLINE))?;
        // hostd's clock: it continues while the machine sleeps, and nobody can set it.
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)?;
        let timer = DeadlineTimer { file, timer };
        timer.set(timer.read()?)?;
        Ok(timer)
    }

    fn read(&self) -> io::Result<Duration> {
        let mut bytes = [0; LENGTH];
        self.file.read_exact_at(&mut bytes, 0)?;
        let millis = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim_end().parse().ok());
        millis.map(Duration::from_millis).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn set(&self, deadline: Duration) -> io::Result<()> {
        // A time of zero would stop the timer. One that has passed expires at once.
        let time = TimeSpec::from_duration(deadline.clamp(Duration::from_nanos(1), LONGEST) + GRACE);
        Ok(self.timer.set(Expiration::OneShot(time), TimerSetTimeFlags::TFD_TIMER_ABSTIME)?)
    }

    /// After the timer has expired: whether the deadline has passed. If it was renewed meanwhile, the timer is set again. A
    /// file that cannot be read any more has no later deadline.
    pub(in crate::host::linux) fn has_passed(&self, now: Duration) -> bool {
        match self.read() {
            Ok(deadline) if deadline + GRACE > now => self.set(deadline).is_err(),
            _ => true,
        }
    }
}

impl AsFd for DeadlineTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// A running hostd removes a clone at its deadline, so its supervisor waits for a moment.
const GRACE: Duration = Duration::from_secs(2);
/// Later deadlines do not fit into the kernel's clock.
const LONGEST: Duration = Duration::from_secs(1 << 32);

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn expires(timer: &DeadlineTimer) -> bool {
        poll(&mut [PollFd::new(timer.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn a_deadline_is_kept_without_its_file_and_renewed_in_place() {
        let run = tempfile::tempdir().unwrap();
        let run = run.path();
        let now = crate::platform::monotonic();
        let earlier = now.saturating_sub(GRACE);
        make(run, earlier).unwrap();
        let timer = DeadlineTimer::start(run).unwrap();
        assert!(expires(&timer));
        change(run, now + Duration::from_secs(600)).unwrap();
        assert!(!timer.has_passed(now), "it was renewed");
        assert!(!expires(&timer), "it is set to the new deadline");
        assert!(timer.has_passed(now + Duration::from_secs(603)));
        change(run, earlier).unwrap();
        std::fs::remove_file(run.join(DEADLINE)).unwrap();
        assert!(timer.has_passed(now), "the descriptor still refers to the file");
        assert!(change(run, now).is_err(), "nobody would read a new file");
        std::fs::write(run.join(super::super::JAIL), "{}").unwrap();
        change(run, now).unwrap();
        assert!(!run.join(DEADLINE).exists(), "an earlier version's supervisor");
    }

    #[test]
    fn a_deadline_of_any_size_is_a_time() {
        let run = tempfile::tempdir().unwrap();
        for (deadline, passed) in [(Duration::ZERO, true), (Duration::MAX, false)] {
            make(run.path(), deadline).unwrap();
            let timer = DeadlineTimer::start(run.path()).unwrap();
            let now = crate::platform::monotonic().max(GRACE);
            assert_eq!(timer.has_passed(now), passed, "{deadline:?}");
        }
        std::fs::write(run.path().join(DEADLINE), "soon").unwrap();
        assert!(DeadlineTimer::start(run.path()).is_err());
    }
}
