//! Lines that could not be written yet, in memory and bounded.

use std::collections::VecDeque;

/// How much memory the lines may take.
const MOST_BYTES: usize = 1 << 20;

/// The waiting lines, oldest first. When it is full, later lines are counted instead of kept: the first lines after the
/// disk failed tell most about why it did.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    lost: u64,
}

impl Reserve {
    /// Keep a line. False: there is no room, and it is lost.
    pub(super) fn keep(&mut self, line: Vec<u8>) -> bool {
        // A line after a lost one would hide the gap.
        let room = self.lost == 0 && self.bytes + line.len() <= MOST_BYTES;
        match room {
            true => {
                self.bytes += line.len();
                self.lines.push_back(line);
            }
            false => self.lost += 1,
        }
        room
    }

    pub(super) fn oldest(&self) -> Option<&[u8]> {
        self.lines.front().map(Vec::as_slice)
    }

    pub(super) fn remove_oldest(&mut self) {
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.len();
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn forget_lost(&mut self) {
        self.lost = 0;
    }
}
