//! Cutting the byte stream of the pipe into messages.

use tokio::io::{AsyncRead, AsyncReadExt};

/// Room made for each read, and what the buffer shrinks back to after a large message.
const CHUNK: usize = 64 * 1024;
/// How much of a thrown away message is kept: enough to see which call it answered.
const PREFIX: usize = 256;

/// One message, or what is left of one that was too large.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A whole message without its NUL.
    Whole(&'a [u8]),
    /// A message above the limit: its first bytes and its size. The rest was not kept.
    TooLarge {
        /// The first bytes.
        prefix: &'a [u8],
        /// The size of the whole message.
        bytes: usize,
    },
}

/// Reads NUL-ended messages and never holds more than the limit (plus one chunk) of one message.
#[derive(Debug)]
pub struct FrameReader<R> {
    input: R,
    buffer: Vec<u8>,
    /// Bytes at the front that were handed out and can go.
    consumed: usize,
    /// Bytes after `consumed` known to hold no NUL.
    scanned: usize,
    /// Bytes of the present, too large message that were already dropped.
    dropped: usize,
    limit: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader that keeps messages of at most `limit` bytes.
    pub fn new(input: R, limit: usize) -> Self {
        Self { input, buffer: Vec::new(), consumed: 0, scanned: 0, dropped: 0, limit: limit.max(PREFIX) }
    }

    /// The next message; `None` when the other side closed the pipe.
    pub async fn next(&mut self) -> std::io::Result<Option<Frame<'_>>> {
        loop {
            let unread = &self.buffer[self.consumed..];
            if let Some(at) = memchr::memchr(0, &unread[self.scanned..]) {
                let (start, end) = (self.consumed, self.consumed + self.scanned + at);
                self.consumed = end + 1;
                self.scanned = 0;
                let message = &self.buffer[start..end];
                let bytes = std::mem::take(&mut self.dropped) + message.len();
                return Ok(Some(if bytes > self.limit {
                    Frame::TooLarge { prefix: &message[..message.len().min(PREFIX)], bytes }
                } else {
                    Frame::Whole(message)
                }));
            }
            self.scanned = unread.len();
            self.make_room();
            if self.input.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn make_room(&mut self) {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        if self.dropped + self.buffer.len() > self.limit {
            self.dropped += self.buffer.len() - PREFIX;
            self.buffer.truncate(PREFIX);
            self.scanned = PREFIX;
        }
        // A page's screenshot may have grown the buffer to megabytes: give them back.
        if self.buffer.len() < CHUNK && self.buffer.capacity() > 8 * CHUNK {
            self.buffer.shrink_to(CHUNK);
        }
        self.buffer.reserve(CHUNK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    async fn frames(chunks: &[&[u8]], limit: usize) -> Vec<Result<Vec<u8>, usize>> {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        let mut reader = FrameReader::new(far, limit);
        let mut seen = Vec::new();
        for chunk in chunks {
            near.write_all(chunk).await.unwrap();
        }
        drop(near);
        while let Some(frame) = reader.next().await.unwrap() {
            seen.push(match frame {
                Frame::Whole(bytes) => Ok(bytes.to_vec()),
                Frame::TooLarge { prefix, bytes } => {
                    assert_eq!(prefix.len(), PREFIX.min(bytes));
                    Err(bytes)
                }
            });
        }
        seen
    }

    #[tokio::test]
    async fn messages_split_and_joined_anyhow() {
        let seen = frames(&[b"{\"a\":1}\0{\"b\"", b":2}", b"\0\0tail"], 1 << 20).await;
        assert_eq!(seen, [Ok(b"{\"a\":1}".to_vec()), Ok(b"{\"b\":2}".to_vec()), Ok(Vec::new())]);
    }

    #[tokio::test]
    async fn a_message_above_the_limit_is_reported_and_the_next_one_is_read() {
        let large = vec![b'x'; 200_000];
        let seen = frames(&[&large, b"\0small\0", &large[..1000], b"\0", &large[..1001], b"\0"], 1000).await;
        assert_eq!(seen, [Err(200_000), Ok(b"small".to_vec()), Ok(vec![b'x'; 1000]), Err(1001)]);
    }

    #[tokio::test]
    async fn memory_is_given_back_after_a_large_message() {
        let (mut near, far) = tokio::io::duplex(1 << 16);
        let mut reader = FrameReader::new(far, 64 << 20);
        let writer = tokio::spawn(async move {
            near.write_all(&vec![b'y'; 8 << 20]).await.unwrap();
            near.write_all(b"\0end\0").await.unwrap();
        });
        assert!(matches!(reader.next().await.unwrap(), Some(Frame::Whole(m)) if m.len() == 8 << 20));
        assert!(matches!(reader.next().await.unwrap(), Some(Frame::Whole(b"end"))));
        assert!(reader.next().await.unwrap().is_none());
        assert!(reader.buffer.capacity() <= 8 * CHUNK, "{} kept", reader.buffer.capacity());
        writer.await.unwrap();
    }
}
