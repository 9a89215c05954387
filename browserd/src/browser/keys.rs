//! Translates names of keys to the parameters of CDP's `Input.dispatchKeyEvent`.

use serde::Serialize;

/// One key of a US keyboard with its modifiers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Key {
    pub(crate) key: String,
    pub(crate) code: String,
    pub(crate) windows_virtual_key_code: u32,
    /// The text that the key inserts; empty if none.
    pub(crate) text: String,
    /// CDP's bit set: Alt 1, Control 2, Meta 4, Shift 8.
    pub(crate) modifiers: u32,
    /// Editing commands of the combination. Headless Chromium has no key bindings, so `Control+A` alone would select
    /// nothing.
    pub(crate) commands: Vec<&'static str>,
}

const NAMED: [(&str, u32, &str); 31] = [
    ("Enter", 13, "\r"),
    ("Tab", 9, ""),
    ("Escape", 27, ""),
    ("Backspace", 8, ""),
    ("Delete", 46, ""),
    ("Insert", 45, ""),
    ("Home", 36, ""),
    ("End", 35, ""),
    ("PageUp", 33, ""),
    ("PageDown", 34, ""),
    ("ArrowLeft", 37, ""),
    ("ArrowUp", 38, ""),
    ("ArrowRight", 39, ""),
    ("ArrowDown", 40, ""),
    ("Shift", 16, ""),
    ("Control", 17, ""),
    ("Alt", 18, ""),
    ("Meta", 91, ""),
    ("ContextMenu", 93, ""),
    ("F1", 112, ""),
    ("F2", 113, ""),
    ("F3", 114, ""),
    ("F4", 115, ""),
    ("F5", 116, ""),
    ("F6", 117, ""),
    ("F7", 118, ""),
    ("F8", 119, ""),
    ("F9", 120, ""),
    ("F10", 121, ""),
    ("F11", 122, ""),
    ("F12", 123, ""),
];

/// Printable keys other than letters and digits: unshifted, shifted, code, virtual key code.
const PRINTABLE: [(char, char, &str, u32); 11] = [
    ('-', '_', "Minus", 189),
    ('=', '+', "Equal", 187),
    ('[', '{', "BracketLeft", 219),
    (']', '}', "BracketRight", 221),
    ('\\', '|', "Backslash", 220),
    (';', ':', "Semicolon", 186),
    ('\'', '"', "Quote", 222),
    ('`', '~', "Backquote", 192),
    (',', '<', "Comma", 188),
    ('.', '>', "Period", 190),
    ('/', '?', "Slash", 191),
];

const DIGITS_SHIFTED: &str = ")!@#$%^&*(";

const ALT: u32 = 1;
const CONTROL: u32 = 2;
const META: u32 = 4;
const SHIFT: u32 = 8;

/// Parses a key such as `Control+Shift+A`, `Enter` or `+`.
pub(crate) fn parse(text: &str) -> Result<Key, String> {
    let mut rest = text;
    let mut modifiers = 0;
    // A plus sign at the end is a key.
    while let Some((name, tail)) =
        rest.split_once('+').filter(|(name, tail)| !name.is_empty() && !tail.is_empty())
    {
        modifiers |= match name.to_ascii_lowercase().as_str() {
            "alt" => ALT,
            "control" | "ctrl" => CONTROL,
            "meta" | "cmd" | "command" => META,
            "shift" => SHIFT,
            _ => return Err("unknown modifier; use Alt, Control, Meta or Shift".into()),
        };
        rest = tail;
    }
    let mut key = match rest.chars().next() {
        Some(only) if rest.chars().count() == 1 => character(only),
        Some(_) => named(rest).ok_or("unknown key; use for example Enter, ArrowDown, a or Control+A")?,
        None => return Err("empty".into()),
    };
    if modifiers & SHIFT != 0 && key.text.chars().all(|c| c.is_ascii_lowercase()) && key.text.len() == 1 {
        key.text.make_ascii_uppercase();
        key.key.make_ascii_uppercase();
    }
    key.modifiers |= modifiers;
    if modifiers & (CONTROL | META) != 0 {
        key.text.clear();
        key.commands = command(&key.code, modifiers & SHIFT != 0).into_iter().collect();
    }
    Ok(key)
}

fn command(code: &str, shift: bool) -> Option<&'static str> {
    Some(match (code, shift) {
        ("KeyA", false) => "selectAll",
        ("KeyC", false) => "copy",
        ("KeyV", false) => "paste",
        ("KeyX", false) => "cut",
        ("KeyZ", false) => "undo",
        ("KeyY", false) | ("KeyZ", true) => "redo",
        _ => return None,
    })
}

fn named(name: &str) -> Option<Key> {
    if name.eq_ignore_ascii_case("space") {
        return Some(character(' '));
    }
    let (name, code, text) = NAMED.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name))?;
    let physical = match *name {
        "Shift" | "Control" | "Alt" | "Meta" => format!("{name}Left"),
        name => name.into(),
    };
    Some(Key {
        key: (*name).into(),
        code: physical,
        windows_virtual_key_code: *code,
        text: (*text).into(),
        modifiers: 0,
        commands: Vec::new(),
    })
}

/// The key for a character. A character without a key is sent as text only.
pub(crate) fn character(c: char) -> Key {
    let (code, number, shifted) = match c {
        '\n' | '\r' => return named("Enter").expect("Enter is in the table"),
        '\t' => return named("Tab").expect("Tab is in the table"),
        ' ' => ("Space".into(), 32, false),
        'a'..='z' | 'A'..='Z' => {
            let upper = c.to_ascii_uppercase();
            (format!("Key{upper}"), upper as u32, c.is_ascii_uppercase())
        }
        '0'..='9' => (format!("Digit{c}"), c as u32, false),
        _ => {
            let digit = DIGITS_SHIFTED.find(c).map(|at| (format!("Digit{at}"), 48 + at as u32, true));
            let other = PRINTABLE
                .iter()
                .find(|(plain, shifted, ..)| *plain == c || *shifted == c)
                .map(|(plain, _, code, number)| ((*code).to_owned(), *number, *plain != c));
            digit.or(other).unwrap_or_default()
        }
    };
    Key {
        key: c.into(),
        code,
        windows_virtual_key_code: number,
        text: c.into(),
        modifiers: if shifted { SHIFT } else { 0 },
        commands: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_combinations_are_parsed() {
        let enter = parse("enter").unwrap();
        assert_eq!(
            (enter.key.as_str(), enter.windows_virtual_key_code, enter.text.as_str()),
            ("Enter", 13, "\r")
        );
        let all = parse("Control+A").unwrap();
        assert_eq!((all.code.as_str(), all.modifiers & CONTROL, all.text.as_str()), ("KeyA", CONTROL, ""));
        assert_eq!(all.commands, ["selectAll"]);
        assert_eq!(parse("Shift+a").unwrap().text, "A");
        assert_eq!(parse("+").unwrap().code, "Equal");
        assert_eq!(parse("Control++").unwrap().code, "Equal");
        assert_eq!(parse("!").unwrap().code, "Digit1");
        assert_eq!(parse("é").unwrap(), Key { key: "é".into(), text: "é".into(), ..character('é') });
        assert_eq!(parse("Shift+Tab").unwrap().modifiers, SHIFT);
        for bad in ["", "Foo", "Hyper+a", "Control+Foo"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
