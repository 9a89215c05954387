//! Results for people. Everything in them may come from a page or from another caller, so it is made safe for terminals.

use serde_json::{Map, Value};
use terminal::text::{Paint, Table, Tone, clean};

/// Fields that hold a whole page: they are shown as they are, with their line ends.
const PAGES: [&str; 3] = ["text", "html", "snapshot"];

/// Fields that say only that the call succeeded, or that repeat what the page's text has.
const SILENT: [&str; 2] = ["success", "refs"];

/// Columns that are too wide for a table and of use only to programs.
const NOT_IN_TABLES: [&str; 3] = ["target_id", "last_dialog", "labels"];

/// A result: its page, its single values, its tables.
pub(crate) fn value(value: &Value, paint: Paint) -> String {
    let Value::Object(fields) = value else {
        return match value {
            Value::Array(rows) => table(rows, paint),
            other => format!("{}\n", scalar(other)),
        };
    };
    let mut text = String::new();
    let shown = |name: &str, value: &Value| !SILENT.contains(&name) && !value.is_null();
    let fields: Vec<(&String, &Value)> = fields.iter().filter(|(name, value)| shown(name, value)).collect();
    let names = fields.iter().filter(|(_, value)| !is_table(value)).map(|(name, _)| name.chars().count());
    let width = names.max().unwrap_or(0);
    for (name, value) in &fields {
        if PAGES.contains(&name.as_str()) && value.is_string() {
            text.push_str(&safe_text::lines(value.as_str().unwrap_or_default()));
            if !text.ends_with('\n') {
                text.push('\n');
            }
        } else if let Value::Array(rows) = value
            && is_table(value)
        {
            match rows.is_empty() {
                true => text.push_str(&format!("no {}\n", clean(name).replace('_', " "))),
                false => text.push_str(&table(rows, paint)),
            }
        } else {
            let label = paint.paint(Tone::Faint, &format!("{:<width$}", clean(name)));
            text.push_str(&format!("{label}  {}\n", scalar(value)));
        }
    }
    if text.is_empty() { "done\n".into() } else { text }
}

/// Lists of objects, and empty lists.
fn is_table(value: &Value) -> bool {
    matches!(value, Value::Array(rows) if rows.iter().all(Value::is_object))
}

/// Rows of objects. The columns are the fields of all rows, in the order in which they appear.
pub(crate) fn table(rows: &[Value], paint: Paint) -> String {
    let mut columns: Vec<&str> = Vec::new();
    for name in rows.iter().filter_map(Value::as_object).flat_map(Map::keys) {
        if !columns.contains(&name.as_str()) && !NOT_IN_TABLES.contains(&name.as_str()) {
            columns.push(name);
        }
    }
    let headers: Vec<String> =
        columns.iter().map(|name| clean(&name.to_uppercase().replace('_', " ")).into_owned()).collect();
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let mut table = Table::header(&headers);
    for row in rows {
        let cell = |name: &&str| row.get(*name).map_or_else(String::new, short);
        table.row(columns.iter().map(|name| (tone(name, row), cell(name))).collect());
    }
    table.render(paint)
}

fn tone(name: &str, row: &Value) -> Tone {
    match (name, row[name].as_str()) {
        ("state", Some("open")) => Tone::Good,
        ("state", Some("opening" | "closing")) => Tone::Attention,
        ("state", Some(_)) => Tone::Faint,
        _ => Tone::Plain,
    }
}

/// A cell: texts are cut where a table becomes unreadable.
fn short(value: &Value) -> String {
    let text = scalar(value);
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => clean(text).into_owned(),
        Value::Array(items) if items.iter().all(|item| !item.is_object() && !item.is_array()) => {
            items.iter().map(scalar).collect::<Vec<_>>().join(", ")
        }
        other => terminal::text::clean_json(&other.to_string()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plain(result: Value) -> String {
        value(&result, Paint(false))
    }

    #[test]
    fn pages_lists_and_values() {
        assert_eq!(plain(json!({"success": true})), "done\n");
        assert_eq!(plain(json!({"text": "a\nb", "truncated_to": null})), "a\nb\n");
        assert_eq!(
            plain(json!({"snapshot": "- button", "refs": {"@e1": {}}, "truncated_to": 8})),
            "- button\ntruncated_to  8\n"
        );
        assert_eq!(
            plain(
                json!({"links": [{"url": "https://a/", "text": "A"}, {"url": "https://bb/", "text": null}]})
            ),
            "URL          TEXT\nhttps://a/   A\nhttps://bb/\n"
        );
        assert_eq!(plain(json!({"sessions": []})), "no sessions\n");
        assert_eq!(
            plain(json!({"status": 200, "final_url": "https://a/"})),
            "status     200\nfinal_url  https://a/\n"
        );
    }

    #[test]
    fn hidden_characters_never_reach_the_terminal() {
        let evil = "\x1b]0;owned\x07\u{202e}\u{9b}2J";
        let shown = plain(json!({
            "text": evil, "title": evil, evil: evil, "list": [{"name": evil, evil: evil}], "words": [evil], "deep": {"a": [{evil: evil}]},
        }));
        assert!(!shown.replace(['\n', '\t'], "").contains(safe_text::is_hidden), "{shown:?}");
        assert!(shown.contains("owned"));
    }
}
