//! What may be written to the log.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The longest parameters in a row, in bytes. Longer ones are replaced by their length and digest.
const MAX_PARAMS: usize = 16 << 10;

/// The parameters of a verb as the log may hold them: the value of every member that is called like one of `fields`, at any
/// depth, becomes `{"redacted": <length>}`. The length of a text is in characters, of a list or object in elements, of another
/// value in characters of its JSON.
pub fn redact(params: &Value, fields: &[&str]) -> Value {
    match params {
        Value::Object(members) => {
            let redacted = |(name, value): (&String, &Value)| {
                let value =
                    if fields.contains(&name.as_str()) { length_only(value) } else { redact(value, fields) };
                (name.clone(), value)
            };
            Value::Object(members.iter().map(redacted).collect::<Map<_, _>>())
        }
        Value::Array(elements) => elements.iter().map(|element| redact(element, fields)).collect(),
        other => other.clone(),
    }
}

fn length_only(value: &Value) -> Value {
    let length = match value {
        Value::Null => return Value::Null,
        Value::String(text) => text.chars().count(),
        Value::Array(elements) => elements.len(),
        Value::Object(members) => members.len(),
        other => other.to_string().len(),
    };
    json!({ "redacted": length })
}

/// The JSON of parameters, of bounded length.
pub(super) fn bounded(params: &Value) -> String {
    let text = params.to_string();
    if text.len() <= MAX_PARAMS {
        return text;
    }
    json!({ "too_long": text.len(), "sha256": super::heads::hex(&Sha256::digest(&text)) }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lengths_remain_of_redacted_members() {
        let params = json!({
            "selector": "#password", "text": "grüße", "tab": 3,
            "fields": [{"name": "a", "value": "secret"}, {"name": "b", "value": null}, {"name": "c", "value": [1, 2]}],
            "value": {"x": "secret", "y": true}, "text_length": "kept"
        });
        assert_eq!(
            redact(&params, &["text", "value"]),
            json!({
                "selector": "#password", "text": {"redacted": 5}, "tab": 3,
                "fields": [{"name": "a", "value": {"redacted": 6}}, {"name": "b", "value": null}, {"name": "c", "value": {"redacted": 2}}],
                "value": {"redacted": 2}, "text_length": "kept"
            })
        );
    }

    #[test]
    fn long_parameters_are_replaced() {
        let row = bounded(&json!({ "expression": "x".repeat(MAX_PARAMS) }));
        let row: Value = serde_json::from_str(&row).expect("JSON");
        assert_eq!(row["too_long"], MAX_PARAMS + r#"{"expression":""}"#.len());
        assert_eq!(row["sha256"].as_str().map(str::len), Some(64));
    }
}
