//! What of the parameters is written to the audit log.

use serde_json::{Map, Value, json};

/// Longest text that is kept whole.
const MAX_TEXT: usize = 2048;

/// The value with its secret fields replaced by `{"redacted": LENGTH}`. Users and passwords of URLs are removed, and very
/// long texts are cut.
pub(crate) fn redact(value: &Value, secret: &[&str]) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(name, value)| {
                    let value = match secret.contains(&name.as_str()) {
                        true if name == "key" => redact_key(value),
                        true => hide(value),
                        false if name == "url" || name == "referrer" => redact_url(value),
                        false => redact(value, secret),
                    };
                    (name.clone(), value)
                })
                .collect::<Map<_, _>>(),
        ),
        Value::Array(items) => items.iter().map(|item| redact(item, secret)).collect(),
        Value::String(text) => Value::String(short(text)),
        other => other.clone(),
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn hide(value: &Value) -> Value {
    let length = match value {
        Value::Null => return Value::Null,
        Value::String(text) => text.chars().count(),
        Value::Array(items) => items.len(),
        other => other.to_string().len(),
    };
    json!({ "redacted": length })
}

/// Names of keys (`Enter`, `F5`) and combinations with Control, Alt or Meta are kept; a character may be a part of a password.
fn redact_key(value: &Value) -> Value {
    let Some(key) = value.as_str() else { return hide(value) };
    // The last one of `Control++` is the key `+`.
    let (modifiers, last) = match key.strip_suffix("++") {
        Some(modifiers) => (modifiers, "+"),
        None => key.rsplit_once('+').filter(|(_, last)| !last.is_empty()).unwrap_or(("", key)),
    };
    let types_nothing = modifiers.split('+').any(|modifier| matches!(modifier, "Control" | "Alt" | "Meta"));
    match types_nothing || (last.chars().count() > 1 && last.chars().all(|c| c.is_ascii_alphanumeric())) {
        true => Value::String(short(key)),
        false => hide(value),
    }
}

fn redact_url(value: &Value) -> Value {
    let Some(url) = value.as_str() else { return value.clone() };
    let Some((scheme, rest)) = url.split_once("://") else { return Value::String(short(url)) };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => Value::String(short(&format!("{scheme}://{}", &rest[at + 1..]))),
        None => Value::String(short(url)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_replaced_by_their_lengths_at_any_depth() {
        let params = json!({
            "text": "hunter2", "selector": "#a", "values": ["x", "y"],
            "files": [{"name": "a.txt", "content_base64": "c2VjcmV0"}],
        });
        let redacted = redact(&params, &["text", "values", "content_base64"]);
        assert_eq!(
            redacted,
            json!({
                "text": {"redacted": 7}, "selector": "#a", "values": {"redacted": 2},
                "files": [{"name": "a.txt", "content_base64": {"redacted": 8}}],
            })
        );
    }

    #[test]
    fn characters_are_hidden_and_names_of_keys_are_kept() {
        for kept in ["Enter", "Control+A", "Shift+Tab", "F5", "Meta+c", "Control++"] {
            assert_eq!(redact(&json!({"key": kept}), &["key"]), json!({"key": kept}));
        }
        for hidden in ["a", "Shift+A", "ä", "+", "Shift++", "€"] {
            let redacted = redact(&json!({"key": hidden}), &["key"]);
            assert_eq!(redacted, json!({"key": {"redacted": hidden.chars().count()}}));
        }
    }

    #[test]
    fn urls_lose_users_and_passwords() {
        for (url, kept) in [
            ("https://user:pass@example.org/a?b=c", "https://example.org/a?b=c"),
            ("https://a@b:c@example.org", "https://example.org"),
            ("https://example.org/@user", "https://example.org/@user"),
            ("about:blank", "about:blank"),
        ] {
            assert_eq!(redact(&json!({"url": url}), &[]), json!({"url": kept}));
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let redacted = redact(&json!({"url": format!("data:text/html,{}", "x".repeat(100_000))}), &[]);
        assert!(redacted["url"].as_str().unwrap().len() < 3000);
    }
}
