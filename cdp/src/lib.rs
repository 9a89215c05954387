//! The message framing of Chromium's debugging pipe (`--remote-debugging-pipe`).
//!
//! Each message is JSON text followed by one NUL byte. JSON escapes NUL, so the byte never occurs inside a message.
//!
//! The crate does no I/O. [`encode`] frames a message for writing. [`Decoder`] cuts a byte stream into messages:
//! - blocking callers read into a buffer of their own and pass the bytes to [`Decoder::feed`];
//! - asynchronous callers read straight into [`Decoder::read_buffer`].
//!
//! [`FloodGuard`] tells a reader when to pause, because the browser at the other end may be hostile.

#![warn(missing_docs)]

mod flood;

pub use flood::{FloodGuard, Pause, Throttle};

/// Ends every message.
const TERMINATOR: u8 = 0;
/// Space reserved for each read. The buffer shrinks back to this size after a large message.
const CHUNK: usize = 64 * 1024;
/// Bytes kept of a skipped message: enough to read the id of the call it answers.
const PREFIX: usize = 256;

/// Frames one message.
pub fn encode(message: impl Into<Vec<u8>>) -> Vec<u8> {
    let mut framed = message.into();
    debug_assert!(!framed.contains(&TERMINATOR), "a CDP message is JSON and contains no NUL byte");
    framed.push(TERMINATOR);
    framed
}

/// A message is larger than the decoder accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message on the debugging pipe is larger than {limit} bytes")]
pub struct MessageTooLarge {
    /// The decoder's limit.
    pub limit: usize,
}

/// One complete message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    /// The JSON text.
    pub fn payload(&self) -> &'a [u8] {
        &self.0[..self.0.len() - 1]
    }

    /// The message with its terminator, as it was received.
    pub fn framed(&self) -> &'a [u8] {
        self.0
    }
}

/// The result of [`Decoder::next_frame`].
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A complete message.
    Message(Message<'a>),
    /// A message above the limit. Only its first bytes were kept.
    Skipped {
        /// The first bytes.
        prefix: &'a [u8],
        /// The size of the whole message.
        bytes: usize,
    },
}

/// Cuts a byte stream into messages. It buffers at most the limit plus one read.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that were already returned.
    consumed: usize,
    /// Bytes after `consumed` known to contain no terminator.
    scanned: usize,
    /// Bytes of the current message that were discarded because it is above the limit.
    discarded: usize,
    limit: usize,
}

impl Decoder {
    /// A decoder for messages of at most `limit` bytes. Limits below 256 bytes are raised to 256.
    pub fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), consumed: 0, scanned: 0, discarded: 0, limit: limit.max(PREFIX) }
    }

    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.read_buffer().extend_from_slice(bytes);
    }

    /// The buffer for the next read, with spare capacity. The caller may only append.
    pub fn read_buffer(&mut self) -> &mut Vec<u8> {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        if self.discarded + self.buffer.len() > self.limit && self.scanned == self.buffer.len() {
            self.discarded += self.buffer.len() - PREFIX;
            self.buffer.truncate(PREFIX);
            self.scanned = PREFIX;
        }
        // A screenshot can grow the buffer to megabytes; release them.
        if self.buffer.len() < CHUNK && self.buffer.capacity() > 8 * CHUNK {
            self.buffer.shrink_to(CHUNK);
        }
        self.buffer.reserve(CHUNK);
        &mut self.buffer
    }

    /// The next message, or a report of a skipped one. `None`: more bytes are needed.
    pub fn next_frame(&mut self) -> Option<Frame<'_>> {
        let end = self.find_terminator()?;
        let framed = &self.buffer[self.consumed..=end];
        (self.consumed, self.scanned) = (end + 1, 0);
        let bytes = std::mem::take(&mut self.discarded) + framed.len() - 1;
        Some(if bytes > self.limit {
            Frame::Skipped { prefix: &framed[..PREFIX], bytes }
        } else {
            Frame::Message(Message(framed))
        })
    }

    /// The next message. Fails as soon as the limit is exceeded, even before the message has ended. `None`: more bytes
    /// are needed.
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, MessageTooLarge> {
        let limit = self.limit;
        if self.find_terminator().is_none() {
            return if self.discarded + self.scanned > limit {
                Err(MessageTooLarge { limit })
            } else {
                Ok(None)
            };
        }
        match self.next_frame() {
            Some(Frame::Message(message)) => Ok(Some(message)),
            Some(Frame::Skipped { .. }) => Err(MessageTooLarge { limit }),
            None => Ok(None),
        }
    }

    /// All complete messages received so far, with their terminators, for a relay that forwards them unread. Fails when
    /// the incomplete rest exceeds the limit. `None`: more bytes are needed.
    pub fn next_batch(&mut self) -> Result<Option<&[u8]>, MessageTooLarge> {
        let unread = self.consumed + self.scanned;
        match memchr::memrchr(TERMINATOR, &self.buffer[unread..]) {
            Some(at) => {
                let start = std::mem::replace(&mut self.consumed, unread + at + 1);
                self.scanned = 0;
                Ok(Some(&self.buffer[start..self.consumed]))
            }
            None => {
                self.scanned = self.buffer.len() - self.consumed;
                match self.scanned > self.limit {
                    true => Err(MessageTooLarge { limit: self.limit }),
                    false => Ok(None),
                }
            }
        }
    }

    /// The bytes that were fed but not returned, as received.
    pub fn into_unread(mut self) -> Vec<u8> {
        self.buffer.drain(..self.consumed);
        self.buffer
    }

    /// The position of the next terminator in `buffer`.
    fn find_terminator(&mut self) -> Option<usize> {
        let start = self.consumed + self.scanned;
        match memchr::memchr(TERMINATOR, &self.buffer[start..]) {
            Some(at) => {
                self.scanned += at;
                Some(start + at)
            }
            None => {
                self.scanned = self.buffer.len() - self.consumed;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Payloads of messages, or the sizes of skipped ones, after feeding the reads one by one.
    fn frames(reads: &[&[u8]], limit: usize) -> Vec<Result<Vec<u8>, usize>> {
        let mut decoder = Decoder::new(limit);
        let mut frames = Vec::new();
        for read in reads {
            decoder.feed(read);
            while let Some(frame) = decoder.next_frame() {
                frames.push(match frame {
                    Frame::Message(message) => Ok(message.payload().to_vec()),
                    Frame::Skipped { prefix, bytes } => {
                        assert_eq!(prefix.len(), PREFIX);
                        Err(bytes)
                    }
                });
            }
        }
        frames
    }

    #[test]
    fn encoding_appends_the_terminator() {
        assert_eq!(encode("{}"), b"{}\0");
        assert_eq!(encode(Vec::new()), b"\0");
    }

    #[test]
    fn messages_are_joined_from_split_reads() {
        let seen = frames(&[b"{\"a\"", b":", b"1}", b"\0", b"tail"], 1 << 20);
        assert_eq!(seen, [Ok(b"{\"a\":1}".to_vec())]);
    }

    #[test]
    fn one_read_can_contain_several_messages_and_the_start_of_another() {
        let seen = frames(&[b"{\"a\":1}\0{\"b\":2}\0{\"c\"", b":3}\0"], 1 << 20);
        assert_eq!(seen, [Ok(b"{\"a\":1}".to_vec()), Ok(b"{\"b\":2}".to_vec()), Ok(b"{\"c\":3}".to_vec())]);
    }

    #[test]
    fn an_empty_message_is_a_message() {
        assert_eq!(frames(&[b"\0\0x\0"], 1 << 20), [Ok(vec![]), Ok(vec![]), Ok(b"x".to_vec())]);
    }

    #[test]
    fn a_message_above_the_limit_is_skipped_and_the_next_one_is_returned() {
        let large = vec![b'x'; 200_000];
        let seen = frames(&[&large, b"\0small\0", &large[..1000], b"\0", &large[..1001], b"\0"], 1000);
        assert_eq!(seen, [Err(200_000), Ok(b"small".to_vec()), Ok(vec![b'x'; 1000]), Err(1001)]);
    }

    #[test]
    fn a_skipped_message_is_not_buffered() {
        let mut decoder = Decoder::new(1000);
        for _ in 0..100 {
            decoder.feed(&[b'x'; 50_000]);
            assert_eq!(decoder.next_frame(), None);
        }
        assert!(decoder.buffer.capacity() <= 8 * CHUNK, "{} bytes kept", decoder.buffer.capacity());
        decoder.feed(b"\0");
        assert!(matches!(decoder.next_frame(), Some(Frame::Skipped { bytes: 5_000_000, .. })));
    }

    #[test]
    fn the_strict_reader_fails_before_an_oversized_message_ends() {
        let mut decoder = Decoder::new(1000);
        decoder.feed(b"{}\0");
        assert_eq!(
            decoder.next_message().map(|message| message.map(|m| m.payload().to_vec())),
            Ok(Some(b"{}".to_vec()))
        );
        decoder.feed(&[b'x'; 1000]);
        assert_eq!(decoder.next_message(), Ok(None));
        decoder.feed(b"x");
        let error = decoder.next_message().expect_err("1001 bytes");
        assert_eq!(error.to_string(), "a message on the debugging pipe is larger than 1000 bytes");
        let mut whole = Decoder::new(1000);
        whole.feed(&encode(vec![b'x'; 1001]));
        assert_eq!(whole.next_message(), Err(MessageTooLarge { limit: 1000 }));
    }

    #[test]
    fn a_batch_contains_all_complete_messages_and_no_incomplete_one() {
        let mut decoder = Decoder::new(1000);
        decoder.feed(b"{\"a\":1}\0{\"b\":2}\0{\"c\"");
        assert_eq!(decoder.next_batch(), Ok(Some(&b"{\"a\":1}\0{\"b\":2}\0"[..])));
        assert_eq!(decoder.next_batch(), Ok(None));
        decoder.feed(b":3}\0");
        assert_eq!(decoder.next_batch(), Ok(Some(&b"{\"c\":3}\0"[..])));
        decoder.feed(&[b'x'; 1001]);
        assert_eq!(decoder.next_batch(), Err(MessageTooLarge { limit: 1000 }));
    }

    #[test]
    fn unread_bytes_are_handed_over_as_received() {
        let mut decoder = Decoder::new(1000);
        decoder.feed(b"{\"id\":1}\0{\"id\":2}\0{\"id\"");
        let first = decoder.next_message().expect("in limit").expect("a message");
        assert_eq!(first.framed(), b"{\"id\":1}\0");
        assert_eq!(decoder.into_unread(), b"{\"id\":2}\0{\"id\"");
    }

    #[test]
    fn memory_is_released_after_a_large_message() {
        let mut decoder = Decoder::new(64 << 20);
        decoder.feed(&encode(vec![b'y'; 8 << 20]));
        assert!(matches!(decoder.next_frame(), Some(Frame::Message(m)) if m.payload().len() == 8 << 20));
        decoder.feed(b"end\0");
        assert!(matches!(decoder.next_frame(), Some(Frame::Message(m)) if m.payload() == b"end"));
        assert!(decoder.buffer.capacity() <= 8 * CHUNK, "{} bytes kept", decoder.buffer.capacity());
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_messages(
            messages in prop::collection::vec(prop::collection::vec(1u8.., 0..600), 0..8),
            splits in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            const LIMIT: usize = 400;
            let stream: Vec<u8> = messages.iter().flat_map(|message| encode(message.clone())).collect();
            let mut cuts: Vec<usize> = splits.iter().map(|index| index.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let reads: Vec<&[u8]> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            let expected: Vec<Result<Vec<u8>, usize>> = messages
                .into_iter()
                .map(|message| if message.len() > LIMIT { Err(message.len()) } else { Ok(message) })
                .collect();
            prop_assert_eq!(frames(&reads, LIMIT), expected);
        }
    }
}
