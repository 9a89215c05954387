//! Reads and writes lines with limits on size and time.
//!
//! The limits are checked while a line arrives, so at most one line of maximum length is in memory. An idle connection
//! holds no buffer.

use crate::api::{ErrorCode, RpcError};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

/// The first read of a line; longer lines double it.
const FIRST_READ: usize = 2048;

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The line is longer than allowed.
    #[error("a line longer than {0} bytes")]
    TooLong(usize),
    /// The line did not end in time.
    #[error("a line that did not end within {} seconds", .0.as_secs_f32())]
    Slow(Duration),
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl LineError {
    /// The error to send to the peer, if the connection still works.
    pub fn refusal(&self) -> Option<RpcError> {
        let (code, hint) = match self {
            LineError::TooLong(_) => (ErrorCode::LineTooLong, "no valid request has this length"),
            LineError::Slow(_) => {
                (ErrorCode::SlowLine, "write each request at once and end it with a newline")
            }
            LineError::Io(_) => return None,
        };
        Some(RpcError::new(code, format!("{self}; the connection is closed"), hint))
    }
}

/// Reads lines.
#[derive(Debug)]
pub struct LineReader<R> {
    stream: R,
    longest: usize,
    timeout_after: Duration,
    buffer: Vec<u8>,
    /// Bytes at the front of the buffer that were already returned.
    done: usize,
    /// Bytes after those that hold no newline.
    scanned: usize,
    /// When the current line must be complete.
    deadline: Option<Instant>,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Lines of at most `longest` bytes, each complete within `timeout_after` of its first byte.
    pub fn new(stream: R, longest: usize, timeout_after: Duration) -> Self {
        Self { stream, longest, timeout_after, buffer: Vec::new(), done: 0, scanned: 0, deadline: None }
    }

    /// The next line without its newline; `None` at the end. Bytes after the last newline are dropped.
    /// Cancel-safe: nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, LineError> {
        loop {
            let unseen = self.done + self.scanned;
            if let Some(length) = self.buffer[unseen..].iter().position(|byte| *byte == b'\n') {
                let line = self.done..unseen + length;
                if line.len() > self.longest {
                    return Err(LineError::TooLong(self.longest));
                }
                self.done = line.end + 1;
                self.scanned = 0;
                self.deadline = None;
                return Ok(Some(&self.buffer[line]));
            }
            self.scanned = self.buffer.len() - self.done;
            if self.scanned > self.longest {
                return Err(LineError::TooLong(self.longest));
            }
            self.make_room();
            let read = self.stream.read_buf(&mut self.buffer);
            let count = if self.scanned == 0 {
                read.await?
            } else {
                let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + self.timeout_after);
                timeout_at(deadline, read).await.map_err(|_| LineError::Slow(self.timeout_after))??
            };
            if count == 0 {
                return Ok(None);
            }
        }
    }

    fn make_room(&mut self) {
        self.buffer.drain(..self.done);
        self.done = 0;
        if self.buffer.capacity() > FIRST_READ && self.buffer.is_empty() {
            self.buffer = Vec::new();
        }
        if self.buffer.len() == self.buffer.capacity() {
            let more = self.buffer.len().max(FIRST_READ).min(self.longest + 1);
            self.buffer.reserve_exact(more);
        }
    }
}

/// Writes lines, each with a timeout.
#[derive(Debug)]
pub struct LineWriter<W> {
    stream: W,
    timeout_after: Duration,
}

impl<W: AsyncWrite + Unpin> LineWriter<W> {
    /// The peer must read each line within `timeout_after`.
    pub fn new(stream: W, timeout_after: Duration) -> Self {
        Self { stream, timeout_after }
    }

    /// Write a line with its newline. An error means that the peer closed the connection or does not read.
    pub async fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match timeout(self.timeout_after, self.stream.write_all(line)).await {
            Ok(written) => written,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read its answers")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    const TIMEOUT: Duration = Duration::from_secs(10);

    async fn lines(chunks: &[&[u8]], longest: usize) -> Vec<String> {
        let (mut near, far) = duplex(1 << 20);
        let mut reader = LineReader::new(far, longest, TIMEOUT);
        let mut seen = Vec::new();
        for chunk in chunks {
            near.write_all(chunk).await.unwrap();
            // Dropping a pending read must not lose bytes.
            while let Ok(line) = timeout(Duration::from_millis(1), reader.next()).await {
                match line {
                    Ok(Some(line)) => seen.push(String::from_utf8_lossy(line).into_owned()),
                    Ok(None) => seen.push("END".into()),
                    Err(error) => {
                        seen.push(error.to_string());
                        return seen;
                    }
                }
            }
        }
        drop(near);
        while let Ok(Some(line)) = reader.next().await {
            seen.push(String::from_utf8_lossy(line).into_owned());
        }
        seen
    }

    #[tokio::test]
    async fn lines_arrive_however_they_are_split() {
        assert_eq!(lines(&[b"a\nbc\n"], 10).await, ["a", "bc"]);
        assert_eq!(lines(&[b"a", b"b", b"\n", b"\n", b"c\nd"], 10).await, ["ab", "", "c"]);
        assert_eq!(lines(&[b"x\ny", b"z\n"], 10).await, ["x", "yz"]);
        let long = [b"1".repeat(9_000), b"\n2\n".to_vec()].concat();
        let seen = lines(&[&long[..5_000], &long[5_000..]], 10_000).await;
        assert_eq!((seen[0].len(), seen[1].as_str(), seen.len()), (9_000, "2", 2));
    }

    #[tokio::test]
    async fn the_length_limit_is_exact() {
        assert_eq!(lines(&[b"12345\n"], 5).await, ["12345"]);
        assert_eq!(lines(&[b"1234", b"5\n"], 5).await, ["12345"]);
        assert_eq!(lines(&[b"ok\n123456\n"], 5).await, ["ok", "a line longer than 5 bytes"]);
        assert_eq!(lines(&[b"123456"], 5).await, ["a line longer than 5 bytes"]);
    }

    #[tokio::test]
    async fn an_endless_line_is_refused_early_with_little_memory() {
        let (mut near, far) = duplex(4096);
        let mut reader = LineReader::new(far, 64 * 1024, TIMEOUT);
        let writer = tokio::spawn(async move {
            let mut written = 0u64;
            while near.write_all(&[b'x'; 4096]).await.is_ok() {
                written += 4096;
            }
            written
        });
        assert!(matches!(reader.next().await, Err(LineError::TooLong(65_536))));
        assert!(reader.buffer.capacity() <= 2 * 64 * 1024, "{}", reader.buffer.capacity());
        drop(reader);
        assert!(writer.await.unwrap() <= 80 * 1024);
    }

    #[tokio::test]
    async fn a_large_buffer_is_freed_when_idle() {
        let (mut near, far) = duplex(1 << 20);
        let mut reader = LineReader::new(far, 64 * 1024, TIMEOUT);
        near.write_all(&[vec![b'x'; 60_000], b"\n".to_vec()].concat()).await.unwrap();
        assert_eq!(reader.next().await.unwrap().unwrap().len(), 60_000);
        assert!(timeout(Duration::from_millis(1), reader.next()).await.is_err());
        assert!(reader.buffer.capacity() <= FIRST_READ);
    }

    #[tokio::test(start_paused = true)]
    async fn a_begun_line_has_a_timeout_and_an_idle_peer_has_none() {
        let (mut near, far) = duplex(64);
        let mut reader = LineReader::new(far, 100, TIMEOUT);
        assert!(timeout(100 * TIMEOUT, reader.next()).await.is_err(), "an idle peer stays connected");
        let begun = Instant::now();
        let drip = tokio::spawn(async move {
            loop {
                if near.write_all(b"x").await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        assert!(matches!(reader.next().await, Err(LineError::Slow(TIMEOUT))));
        assert!(begun.elapsed() < TIMEOUT + Duration::from_secs(2));
        drop(reader);
        drip.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn each_line_has_its_own_timeout() {
        let (mut near, far) = duplex(64);
        let mut reader = LineReader::new(far, 100, TIMEOUT);
        for _ in 0..5 {
            near.write_all(b"half").await.unwrap();
            assert!(timeout(TIMEOUT * 9 / 10, reader.next()).await.is_err());
            near.write_all(b" line\n").await.unwrap();
            assert_eq!(reader.next().await.unwrap().unwrap(), b"half line");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn writing_to_a_peer_that_does_not_read_times_out() {
        let (near, _far) = duplex(64);
        let mut writer = LineWriter::new(near, TIMEOUT);
        writer.write(b"fits\n").await.unwrap();
        let error = writer.write(&[b'x'; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn refusals_are_typed() {
        assert_eq!(LineError::TooLong(5).refusal().unwrap().code(), ErrorCode::LineTooLong);
        assert_eq!(LineError::Slow(TIMEOUT).refusal().unwrap().code(), ErrorCode::SlowLine);
        assert_eq!(LineError::Io(io::Error::other("gone")).refusal(), None);
    }
}
