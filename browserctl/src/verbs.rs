//! The commands of the browser, made from the table of verbs.

use crate::args::Globals;
use crate::output::{CommandOutput, Failure, Output};
use crate::params::{Kind, Param, params, place};
use crate::remote::Remote;
use crate::show;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Arg, ArgMatches, Command};
use controlplane::actions::{Target, Verb, verbs};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use terminal::Exit;
use terminal::text::clean;

/// Names that people know from other tools.
const NAMES: [(&str, &str); 4] =
    [("open_session", "open"), ("close_session", "close"), ("sessions", "ls"), ("session", "show")];

/// A place in the page. It stands for the parameters `ref`, `selector`, `x` and `y`.
const PLACE: &str = "PLACE";

/// A file of this machine. It stands for the parameters `name` and `content_base64`.
const FILE: &str = "FILE";

/// The positional arguments of verbs, in their order; `?` marks those that may be omitted.
const POSITIONALS: &[(&str, &[&str])] = &[
    ("navigate", &["url?"]),
    ("new_tab", &["url?"]),
    ("activate_tab", &["tab"]),
    ("close_tab", &["tab"]),
    ("click", &["PLACE?"]),
    ("hover", &["PLACE?"]),
    ("mouse_move", &["PLACE?"]),
    ("scroll", &["PLACE?"]),
    ("drag", &["from", "to"]),
    ("type", &["text", "PLACE?"]),
    ("fill", &["PLACE", "text"]),
    ("select", &["PLACE", "values?"]),
    ("set_value", &["PLACE", "value?"]),
    ("upload", &["PLACE", "files?"]),
    ("press", &["key"]),
    ("wait_for", &["PLACE?"]),
    ("find", &["text?"]),
    ("evaluate", &["expression"]),
    ("text", &["selector?"]),
    ("html", &["selector?"]),
    ("read_dom", &["selector?"]),
    ("links", &["selector?"]),
    ("download", &["guid"]),
    ("delete_download", &["guid"]),
    ("put_file", &["FILE"]),
    ("delete_file", &["file"]),
];

fn positionals(verb: &Verb) -> impl Iterator<Item = (&'static str, bool)> {
    let row = POSITIONALS.iter().find(|(name, _)| *name == verb.name);
    row.into_iter().flat_map(|(_, names)| names.iter()).map(|name| match name.strip_suffix('?') {
        Some(name) => (name, false),
        None => (*name, true),
    })
}

/// The command's name: words are separated by dashes.
fn command_name(verb: &Verb) -> String {
    let known = NAMES.iter().find(|(name, _)| *name == verb.name);
    known.map_or_else(|| verb.name.replace('_', "-"), |(_, name)| (*name).to_owned())
}

/// The verb of a command.
pub(crate) fn find(name: &str) -> Option<&'static Verb> {
    verbs().iter().find(|verb| command_name(verb) == name)
}

/// A command for each verb.
pub(crate) fn commands() -> Vec<Command> {
    verbs().iter().map(command).collect()
}

fn command(verb: &'static Verb) -> Command {
    let all = parameters(verb);
    let mut command = Command::new(command_name(verb)).about(verb.summary);
    if verb.name == "open_session" {
        command = command.after_help(
            "Prints the session id: export BROWSERCTL_SESSION=$(browserctl open)\n\
             Give --session or BROWSERCTL_SESSION to the other commands.",
        );
    }
    if matches!(verb.name, "session" | "close_session") {
        let help = "The session [default: --session or BROWSERCTL_SESSION]";
        command = command.arg(Arg::new("id").value_name("SESSION_ID").help(help));
    }
    for (name, required) in positionals(verb) {
        if name == PLACE {
            let points = has(&all, "x");
            let help = match points {
                true => "Where: a ref (@e1), a CSS selector, or a point (X,Y)",
                false => "The element: a ref (@e1) or a CSS selector",
            };
            // The place can also be given by the options.
            let arg = Arg::new(PLACE).value_name(PLACE).help(help).allow_hyphen_values(true);
            let covered = ["ref", "selector", "x"];
            let options: Vec<String> =
                all.iter().filter(|param| covered.contains(&param.name.as_str())).map(Param::id).collect();
            command = command.arg(match required {
                true => arg.required(true),
                false => arg.conflicts_with_all(options),
            });
        } else if name == FILE {
            let arg = Arg::new(FILE).value_name(FILE).help("The file to put into the session").required(true);
            command = command.arg(arg.value_parser(clap::value_parser!(PathBuf)));
        } else if let Some(param) = all.iter().find(|param| param.name == name) {
            let arg = param.positional(required);
            let many = matches!(param.kind, Kind::List(_) | Kind::Files);
            command = command.arg(if many { arg.num_args(if required { 1.. } else { 0.. }) } else { arg });
        }
    }
    let place_required = positionals(verb).any(|(name, required)| name == PLACE && required);
    for param in &all {
        let covered = place_required && matches!(param.name.as_str(), "ref" | "selector" | "x" | "y");
        if !covered && !positionals(verb).any(|(name, _)| name == param.name) {
            command = command.arg(param.option());
        }
    }
    if file_of(verb).is_some() {
        let help = match file_of(verb) {
            Some("after_screenshot") => {
                "Write the screenshot that --after-screenshot asks for into this file"
            }
            _ => "Write the file here; - is standard output",
        };
        let arg = Arg::new("output").long("output").short('o').value_name("FILE").help(help);
        command = command.arg(arg.value_parser(clap::value_parser!(PathBuf)));
    }
    command
}

fn has(all: &[Param], name: &str) -> bool {
    all.iter().any(|param| param.name == name)
}

/// The parameters, without the deadline of a call, which is --timeout, and without those that a file gives.
fn parameters(verb: &Verb) -> Vec<Param> {
    let mut all = params(&(verb.params)());
    let file = positionals(verb).any(|(name, _)| name == FILE);
    all.retain(|param| {
        param.name != "timeout_ms" && !(file && ["name", "content_base64"].contains(&param.name.as_str()))
    });
    all
}

/// The field of the result that has a file.
fn file_of(verb: &Verb) -> Option<&'static str> {
    let result = (verb.result)();
    let properties = result["properties"].as_object()?;
    let files = ["image_base64", "pdf_base64", "content_base64", "after_screenshot"];
    files.into_iter().find(|name| properties.contains_key(*name))
}

/// The session that the command line names.
pub(crate) fn session(globals: &Globals) -> Result<String, Failure> {
    globals.session.clone().filter(|session| !session.is_empty()).ok_or_else(|| {
        Failure::wrong("no session is named")
            .hint("open one: export BROWSERCTL_SESSION=$(browserctl open), or give --session")
    })
}

pub(crate) async fn run(
    remote: &Remote,
    output: &Output,
    verb: &'static Verb,
    given: &ArgMatches,
    globals: &Globals,
) -> Result<CommandOutput, Failure> {
    let session = match verb.target {
        Target::Service => None,
        _ => Some(match given.try_get_one::<String>("id") {
            Ok(Some(id)) => id.clone(),
            _ => session(globals)?,
        }),
    };
    let body = body(remote, verb, given)?;
    let body = serde_json::value::to_raw_value(&body).expect("parameters are plain data");
    let answer = remote.client().call(verb, session.as_deref(), &body).await?;
    let mut result: Value = serde_json::from_str(answer.get())
        .map_err(|error| Failure::local(Exit::Failure, "protocol", error.to_string()))?;
    let file = match file_of(verb) {
        Some(field) => save(output, verb, field, &mut result, given.get_one::<PathBuf>("output"))?,
        None => None,
    };
    if file.as_deref() == Some(Path::new("-")) {
        return Ok(CommandOutput::none());
    }
    let text = match (verb.name, &file) {
        ("open_session", _) => format!("{}\n", clean(result["session_id"].as_str().unwrap_or_default())),
        (_, Some(file)) => format!("{}\n", clean(&file.display().to_string())),
        _ => show::value(&result, output.paint()),
    };
    Ok(CommandOutput { data: result, text })
}

/// The parameters in JSON.
fn body(remote: &Remote, verb: &Verb, given: &ArgMatches) -> Result<Value, Failure> {
    let all = parameters(verb);
    let mut body = Map::new();
    if let Ok(Some(text)) = given.try_get_one::<String>(PLACE)
        && let Value::Object(fields) = place(text, has(&all, "x"))
    {
        body.extend(fields);
    }
    if let Ok(Some(file)) = given.try_get_one::<PathBuf>(FILE)
        && let Value::Object(fields) = read(file)?
    {
        body.extend(fields);
    }
    for param in &all {
        // Parameters that the place covers are no arguments.
        if given.try_contains_id(&param.id()).is_err() {
            continue;
        }
        if param.kind == Kind::Files {
            let files = given.get_many::<PathBuf>(&param.id()).into_iter().flatten();
            let files = files.map(|file| read(file)).collect::<Result<Vec<_>, _>>()?;
            if !files.is_empty() {
                body.insert(param.name.clone(), files.into());
            }
        } else if let Some(value) = param.value(given) {
            body.insert(param.name.clone(), value);
        }
    }
    if let Some(timeout) = remote.timeout
        && params(&(verb.params)()).iter().any(|param| param.name == "timeout_ms")
    {
        body.insert("timeout_ms".into(), json!(timeout.as_millis() as u64));
    }
    Ok(body.into())
}

/// A file of this machine with its content.
fn read(file: &Path) -> Result<Value, Failure> {
    let content = std::fs::read(file)
        .map_err(|error| Failure::wrong(format!("cannot read {}: {error}", file.display())))?;
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(json!({ "name": name, "content_base64": STANDARD.encode(content) }))
}

/// Write the file of a result and replace it by its path. Programs that name no file get it in the JSON.
fn save(
    output: &Output,
    verb: &Verb,
    field: &str,
    result: &mut Value,
    to: Option<&PathBuf>,
) -> Result<Option<PathBuf>, Failure> {
    let holder = if field == "after_screenshot" { &mut result["after_screenshot"] } else { &mut *result };
    let name = if field == "after_screenshot" { "image_base64" } else { field };
    let Some(fields) = holder.as_object_mut() else {
        return match to {
            Some(_) => Err(Failure::wrong("--output needs --after-screenshot here")),
            None => Ok(None),
        };
    };
    if to.is_none() && output.json() {
        return Ok(None);
    }
    let Some(Value::String(encoded)) = fields.remove(name) else { return Ok(None) };
    let bytes = STANDARD
        .decode(encoded)
        .map_err(|error| Failure::local(Exit::Failure, "protocol", format!("{name}: {error}")))?;
    let file = match (to, verb.name) {
        (Some(file), _) => file.clone(),
        (None, "screenshot") => PathBuf::from(format!(
            "screenshot.{}",
            fields.get("format").and_then(Value::as_str).unwrap_or("png")
        )),
        (None, "pdf") => PathBuf::from("page.pdf"),
        // A site chose the name of a download, so it is not used.
        (None, "download") => PathBuf::from("download"),
        (None, _) => return Ok(None),
    };
    if file == Path::new("-") {
        terminal::print_bytes(&bytes);
        return Ok(Some(file));
    }
    std::fs::write(&file, &bytes).map_err(|error| {
        Failure::local(Exit::Failure, "internal", format!("cannot write {}: {error}", file.display()))
            .hint("name another file with --output")
    })?;
    fields.insert("file".into(), json!(file));
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A verb with positional arguments that it does not have would silently lose them.
    #[test]
    fn positional_arguments_are_parameters() {
        for (name, positionals) in POSITIONALS {
            let Some(verb) = controlplane::actions::verb(name) else { continue };
            let all = parameters(verb);
            for positional in *positionals {
                let positional = positional.trim_end_matches('?');
                match positional {
                    PLACE => assert!(has(&all, "selector") && has(&all, "ref"), "{name}"),
                    FILE => {
                        let schema = (verb.params)();
                        assert!(schema["properties"].get("content_base64").is_some(), "{name}");
                        assert!(schema["properties"].get("name").is_some(), "{name}");
                    }
                    other => assert!(has(&all, other), "{name} {other}"),
                }
            }
        }
    }

    #[test]
    fn every_verb_has_a_command_of_its_own() {
        let mut names: Vec<String> = verbs().iter().map(command_name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), verbs().len());
        for verb in verbs() {
            assert_eq!(find(&command_name(verb)).map(|verb| verb.name), Some(verb.name));
        }
    }

    fn parsed(line: &str) -> Value {
        let words = std::iter::once("browserctl").chain(line.split(' '));
        let matches =
            crate::command().try_get_matches_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        let globals = <Globals as clap::FromArgMatches>::from_arg_matches(&matches).expect("globals");
        let remote = Remote::new(&globals, &matches).unwrap_or_else(|error| panic!("{error:?}"));
        let (name, given) = matches.subcommand().expect("a command");
        body(&remote, find(name).expect("a verb"), given).unwrap_or_else(|error| panic!("{error:?}"))
    }

    #[test]
    fn command_lines_become_parameters() {
        for (line, expected) in [
            ("navigate https://a/ --wait-until commit", json!({"url": "https://a/", "wait_until": "commit"})),
            ("click @e1", json!({"ref": "@e1"})),
            (
                "click 10,20 --button right --modifiers shift",
                json!({"x": 10.0, "y": 20.0, "button": "right", "modifiers": ["shift"]}),
            ),
            ("click #save", json!({"selector": "#save"})),
            ("type hello @e2 --submit", json!({"text": "hello", "ref": "@e2", "submit": true})),
            ("fill @e2 hello", json!({"text": "hello", "ref": "@e2"})),
            ("press Control+A", json!({"key": "Control+A"})),
            (
                "press Tab --hold 2s --timeout 10s",
                json!({"key": "Tab", "hold_ms": 2000, "timeout_ms": 10_000}),
            ),
            ("scroll --dy -300", json!({"dy": -300.0})),
            ("select #size M L", json!({"selector": "#size", "values": ["M", "L"]})),
            ("drag @e1 5,6", json!({"from": {"ref": "@e1"}, "to": {"x": 5.0, "y": 6.0}})),
            ("open --deadline 30m --label-x", Value::Null),
            (
                "open --deadline 30m --labels a=b --record audit",
                json!({"deadline_seconds": 1800, "labels": {"a": "b"}, "record": "audit"}),
            ),
        ] {
            if expected.is_null() {
                let words = std::iter::once("browserctl").chain(line.split(' '));
                assert!(crate::command().try_get_matches_from(words).is_err(), "{line}");
            } else {
                assert_eq!(parsed(line), expected, "{line}");
            }
        }
    }
}
