//! Makes text from untrusted sources safe to show on a terminal and to write to a log.
//!
//! A web page, a browser, a program in a clone and a caller choose parts of titles, names, errors and log lines. Control
//! characters in them would control the operator's terminal, and bidirectional or invisible characters would show
//! another text than the real one. Every program of the workspace uses these functions before it prints such text.
//!
//! Hidden characters are escaped, not removed, so that the reader sees that something is there.

use std::borrow::Cow;
use std::fmt::Write;

/// Characters of the Unicode categories Cf, Zl and Zp that have no shape of their own. They reorder or hide the text
/// around them.
const HIDDEN: &[(char, char)] = &[
    ('\u{ad}', '\u{ad}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{fff9}', '\u{fffb}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e007f}'),
];

/// Whether a character is a control character, is invisible, or changes the order of the text around it.
pub fn is_hidden(c: char) -> bool {
    c.is_control() || (c >= '\u{ad}' && HIDDEN.iter().any(|(first, last)| (*first..=*last).contains(&c)))
}

/// The text as one line: line ends and tabs become spaces, other hidden characters are escaped (`\u{202e}`).
pub fn line(text: &str) -> Cow<'_, str> {
    replace(text, |c, out| match c {
        '\n' | '\t' => out.push(' '),
        c => out.extend(c.escape_default()),
    })
}

/// The text with its line ends and tabs; other hidden characters are escaped.
pub fn lines(text: &str) -> Cow<'_, str> {
    replace(text, |c, out| match c {
        '\n' | '\t' => out.push(c),
        c => out.extend(c.escape_default()),
    })
}

/// JSON text with the hidden characters escaped as in JSON (`\u202e`). The value does not change, because such characters
/// only occur inside of strings. Line ends and tabs stay; they occur between values.
pub fn json(text: &str) -> Cow<'_, str> {
    replace(text, |c, out| match c {
        '\n' | '\r' | '\t' => out.push(c),
        c => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}").expect("writing to a string succeeds");
            }
        }
    })
}

fn replace(text: &str, mut escape: impl FnMut(char, &mut String)) -> Cow<'_, str> {
    let Some(first) = text.find(is_hidden) else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for c in text[first..].chars() {
        if is_hidden(c) { escape(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Makes a stream of bytes safe like [`lines`]. Bytes that are not UTF-8 become U+FFFD.
#[derive(Debug, Default)]
pub struct Stream {
    /// The beginning of a character whose rest has not arrived: at most three bytes.
    partial: Vec<u8>,
}

impl Stream {
    /// The next part of the text.
    pub fn feed(&mut self, bytes: &[u8]) -> String {
        self.partial.extend_from_slice(bytes);
        let mut out = String::with_capacity(bytes.len());
        let mut rest = self.partial.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(&lines(text));
                    rest = &[];
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    out.push_str(&lines(&String::from_utf8_lossy(valid)));
                    rest = after;
                    if let Some(length) = error.error_len() {
                        out.push(char::REPLACEMENT_CHARACTER);
                        rest = &rest[length..];
                        continue;
                    }
                }
            }
            break;
        }
        self.partial = rest.to_vec();
        out
    }

    /// The end of the stream: U+FFFD if it ended inside of a character.
    pub fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.partial).is_empty() { "" } else { "\u{fffd}" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The characters that an operator must never get unescaped.
    fn dangerous() -> Vec<char> {
        let ranges = [
            ('\0', '\u{1f}'),
            ('\u{7f}', '\u{9f}'),
            ('\u{61c}', '\u{61c}'),
            ('\u{200b}', '\u{200f}'),
            ('\u{2028}', '\u{202e}'),
            ('\u{2060}', '\u{2064}'),
            ('\u{2066}', '\u{2069}'),
            ('\u{feff}', '\u{feff}'),
            ('\u{e0001}', '\u{e007f}'),
        ];
        ranges.into_iter().flat_map(|(first, last)| first..=last).collect()
    }

    #[test]
    fn every_dangerous_character_is_escaped() {
        for c in dangerous() {
            assert!(is_hidden(c), "{c:?}");
            let text = format!("a{c}b");
            assert!(!line(&text).contains(is_hidden), "{c:?}");
            assert!(!lines(&text).replace(['\n', '\t'], "").contains(is_hidden), "{c:?}");
            assert!(!json(&text).replace(['\n', '\r', '\t'], "").contains(is_hidden), "{c:?}");
        }
        assert_eq!(line("a\x1b[2Jb\u{9b}\r\nc\u{202e}d"), r"a\u{1b}[2Jb\u{9b}\r c\u{202e}d");
        assert_eq!(lines("a\n\tb\u{7f}"), "a\n\tb\\u{7f}");
    }

    #[test]
    fn ordinary_text_is_not_changed() {
        let text = "äöü Ωλ Жд 中文 עברית العربية 👍 \\u{1b} …";
        for shown in [line(text), lines(text), json(text)] {
            assert!(matches!(shown, Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn escaping_does_not_change_a_json_value() {
        let value: String = dangerous().into_iter().collect();
        let value = serde_json::json!({ "text": value, "list": [1, "ä\u{e0041}"] });
        for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("json")] {
            let shown = json(&text);
            assert!(!shown.replace('\n', "").contains(is_hidden), "{shown:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("json"), value);
        }
    }

    #[test]
    fn a_stream_joins_split_characters_and_replaces_invalid_bytes() {
        let mut stream = Stream::default();
        let mut shown = String::new();
        for byte in "é\u{202e}\x1b".as_bytes() {
            shown += &stream.feed(&[*byte]);
        }
        shown += &stream.feed(b"\x9b31m\xff\n\xc3");
        shown += stream.finish();
        assert_eq!(shown, "é\\u{202e}\\u{1b}\u{fffd}31m\u{fffd}\n\u{fffd}");
    }

    proptest! {
        #[test]
        fn no_hidden_character_comes_through(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            let mut stream = Stream::default();
            let shown = stream.feed(first) + &stream.feed(second) + stream.finish();
            prop_assert!(!shown.replace(['\n', '\t'], "").contains(is_hidden));
            let whole = String::from_utf8_lossy(&bytes);
            prop_assert_eq!(shown, lines(&whole));
        }

        #[test]
        fn a_line_has_no_line_end(text in any::<String>()) {
            prop_assert!(!line(&text).contains(is_hidden));
        }
    }
}
