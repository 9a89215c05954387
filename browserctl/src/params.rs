//! Command line arguments from the JSON schema of a verb's parameters.

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A parameter.
#[derive(Debug)]
pub(crate) struct Param {
    /// Its name in JSON.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    help: String,
    required: bool,
}

/// What a parameter holds, and so how it is written.
#[derive(Debug, PartialEq)]
pub(crate) enum Kind {
    Flag,
    Text,
    Choice(Vec<String>),
    Integer,
    Number,
    /// Repeated.
    List(Vec<String>),
    /// `NAME=TEXT`, repeated.
    Map,
    /// A place in the page: a ref, a selector or a point.
    Place,
    /// A duration, sent in these units.
    Duration(Unit),
    /// Files of this machine, sent with their contents.
    Files,
    /// Anything else, as JSON.
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
}

/// The parameters of a schema, in its order.
pub(crate) fn params(schema: &Value) -> Vec<Param> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties
        .map(|(name, property)| Param {
            name: name.clone(),
            kind: kind(schema, name, property),
            help: help(schema, property),
            required: required.contains(&name.as_str()),
        })
        .collect()
}

/// The schema behind a reference, and behind "this or null".
fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    loop {
        if let Some(reference) = schema["$ref"].as_str() {
            schema = root.pointer(reference.trim_start_matches('#')).unwrap_or(&Value::Null);
            continue;
        }
        let choices = schema["anyOf"].as_array().or_else(|| schema["allOf"].as_array());
        match choices.and_then(|choices| choices.iter().find(|choice| choice["type"] != "null")) {
            Some(choice) => schema = choice,
            None => return schema,
        }
    }
}

/// The words of an enumeration.
fn words(schema: &Value) -> Option<Vec<String>> {
    if let Some(words) = schema["enum"].as_array() {
        return Some(words.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    }
    let mut all = Vec::new();
    for choice in schema["oneOf"].as_array()? {
        match choice["const"].as_str() {
            Some(word) => all.push(word.to_owned()),
            None => all.extend(words(choice)?),
        }
    }
    Some(all)
}

fn kind(root: &Value, name: &str, property: &Value) -> Kind {
    let schema = resolve(root, property);
    if let Some(words) = words(schema) {
        return Kind::Choice(words);
    }
    let is = |wanted: &str| match &schema["type"] {
        Value::Array(types) => types.iter().any(|known| known == wanted),
        known => known == wanted,
    };
    if is("boolean") {
        Kind::Flag
    } else if is("integer") && name.ends_with("_seconds") {
        Kind::Duration(Unit::Seconds)
    } else if is("integer") && name.ends_with("_ms") {
        Kind::Duration(Unit::Milliseconds)
    } else if is("integer") {
        Kind::Integer
    } else if is("number") {
        Kind::Number
    } else if is("string") {
        Kind::Text
    } else if is("array") {
        let items = resolve(root, &schema["items"]);
        match &items["type"] {
            _ if items["properties"].get("content_base64").is_some() => Kind::Files,
            known if words(items).is_some() || known == "string" => {
                Kind::List(words(items).unwrap_or_default())
            }
            _ => Kind::Json,
        }
    } else if schema["properties"].get("ref").is_some() && schema["properties"].get("selector").is_some() {
        Kind::Place
    } else if is("object") && resolve(root, &schema["additionalProperties"])["type"] == "string" {
        Kind::Map
    } else {
        Kind::Json
    }
}

/// The description without its full stop, as helps are written.
fn help(root: &Value, property: &Value) -> String {
    let text = property["description"].as_str().or_else(|| resolve(root, property)["description"].as_str());
    text.unwrap_or_default().trim_end_matches('.').to_owned()
}

impl Param {
    /// The option's name: without the unit of a duration, which the value has.
    fn long(&self) -> String {
        let name = match self.kind {
            Kind::Duration(Unit::Seconds) => self.name.trim_end_matches("_seconds"),
            Kind::Duration(Unit::Milliseconds) => self.name.trim_end_matches("_ms"),
            _ => &self.name,
        };
        name.replace('_', "-")
    }

    /// The argument's id. Options of the program have ids of their own, such as `url`.
    pub(crate) fn id(&self) -> String {
        format!("parameter {}", self.name)
    }

    /// As an option.
    pub(crate) fn option(&self) -> Arg {
        self.typed().long(self.long()).required(self.required)
    }

    /// As a positional argument.
    pub(crate) fn positional(&self, required: bool) -> Arg {
        self.typed().required(required).value_name(self.name.to_uppercase())
    }

    fn typed(&self) -> Arg {
        let arg = Arg::new(self.id()).help(self.help.clone());
        let text = || ValueParser::string();
        match &self.kind {
            Kind::Flag => arg.action(ArgAction::SetTrue),
            Kind::Text => arg.value_name("TEXT").value_parser(text()).allow_hyphen_values(true),
            Kind::Choice(words) => {
                arg.value_name("WORD").value_parser(PossibleValuesParser::new(words.clone()))
            }
            Kind::Integer => {
                arg.value_name("N").value_parser(clap::value_parser!(i64)).allow_negative_numbers(true)
            }
            Kind::Number => {
                arg.value_name("N").value_parser(clap::value_parser!(f64)).allow_negative_numbers(true)
            }
            Kind::List(words) if words.is_empty() => {
                arg.value_name("TEXT").value_parser(text()).action(ArgAction::Append)
            }
            Kind::List(words) => {
                let parser = PossibleValuesParser::new(words.clone());
                arg.value_name("WORD").value_parser(parser).action(ArgAction::Append)
            }
            Kind::Map => arg.value_name("NAME=TEXT").value_parser(pair).action(ArgAction::Append),
            Kind::Place => arg.value_name("PLACE").value_parser(text()),
            Kind::Duration(_) => arg.value_name("DURATION").value_parser(crate::args::duration),
            Kind::Files => arg
                .value_name("FILE")
                .value_parser(clap::value_parser!(std::path::PathBuf))
                .action(ArgAction::Append),
            Kind::Json => arg.value_name("JSON").value_parser(parse_json),
        }
    }

    /// The value that was given, if one was.
    pub(crate) fn value(&self, given: &ArgMatches) -> Option<Value> {
        let id = self.id();
        let name = id.as_str();
        match &self.kind {
            Kind::Flag => given.get_flag(name).then_some(Value::Bool(true)),
            Kind::Text | Kind::Choice(_) => given.get_one::<String>(name).map(|text| json!(text)),
            Kind::Integer => given.get_one::<i64>(name).map(|number| json!(number)),
            Kind::Number => given.get_one::<f64>(name).map(|number| json!(number)),
            Kind::List(_) => given.get_many::<String>(name).map(|texts| texts.cloned().collect()),
            Kind::Map => given.get_many::<(String, String)>(name).map(|pairs| {
                pairs.map(|(name, text)| (name.clone(), json!(text))).collect::<Map<_, _>>().into()
            }),
            Kind::Place => given.get_one::<String>(name).map(|text| place(text, true)),
            Kind::Duration(unit) => given.get_one::<Duration>(name).map(|duration| match unit {
                Unit::Seconds => json!(duration.as_millis().div_ceil(1000) as u64),
                Unit::Milliseconds => json!(duration.as_millis() as u64),
            }),
            // Reading files can fail, so the caller does it.
            Kind::Files => None,
            Kind::Json => given.get_one::<Value>(name).cloned(),
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=TEXT")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn parse_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// A place: `@e1` is a ref, `12,34` a point if points are allowed, everything else a CSS selector.
pub(crate) fn place(text: &str, points: bool) -> Value {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    let point = text.split_once(',').and_then(|(x, y)| Some((number(x)?, number(y)?)));
    match point {
        _ if text.starts_with('@') => json!({ "ref": text }),
        Some((x, y)) if points => json!({ "x": x, "y": y }),
        _ => json!({ "selector": text }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(place("@e12", true), json!({"ref": "@e12"}));
        assert_eq!(place("12,-3.5", true), json!({"x": 12.0, "y": -3.5}));
        assert_eq!(place("12,3", false), json!({"selector": "12,3"}));
        for selector in ["#a, .b", "a,b", "1,inf", "button"] {
            assert_eq!(place(selector, true), json!({"selector": selector}));
        }
    }

    #[test]
    fn kinds_follow_the_schema() {
        let of = |verb: &str, name: &str| {
            let schema = (controlplane::actions::verb(verb).expect("a verb").params)();
            params(&schema).into_iter().find(|param| param.name == name).expect("a parameter").kind
        };
        assert_eq!(of("screenshot", "full_page"), Kind::Flag);
        assert_eq!(of("screenshot", "quality"), Kind::Integer);
        assert_eq!(of("screenshot", "clip"), Kind::Json);
        assert_eq!(of("click", "x"), Kind::Number);
        assert_eq!(of("click", "button"), Kind::Choice(vec!["left".into(), "middle".into(), "right".into()]));
        assert!(
            matches!(of("navigate", "wait_until"), Kind::Choice(words) if words.contains(&"networkidle".into()))
        );
        assert!(matches!(of("navigate", "history"), Kind::Choice(words) if words.contains(&"back".into())));
        assert!(matches!(of("click", "modifiers"), Kind::List(words) if words.contains(&"shift".into())));
        assert_eq!(of("drag", "from"), Kind::Place);
        assert_eq!(of("open_session", "labels"), Kind::Map);
        assert_eq!(of("open_session", "domains"), Kind::List(Vec::new()));
        assert_eq!(of("open_session", "deadline_seconds"), Kind::Duration(Unit::Seconds));
        assert_eq!(of("press", "hold_ms"), Kind::Duration(Unit::Milliseconds));
    }
}
