//! jls(8): the jails, dying ones only when asked for.

use crate::fake::{Fake, Said};
use crate::options::Options;
use crate::world::{Jail, World};
use std::fmt::Write;

const USAGE: &str = "usage: jls [-dhNnqv] [-j jail] [param ...]\n";

/// How the values are written.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Plain,
    Named,
    Json,
}

pub(super) fn run(fake: &Fake, arguments: &[String]) -> Said {
    let (arguments, json) = match arguments {
        [first, style, rest @ ..] if first == "--libxo" => (rest.to_vec(), Some(style.clone())),
        [first, rest @ ..] if first.starts_with("--libxo=") => {
            (rest.to_vec(), first.strip_prefix("--libxo=").map(str::to_owned))
        }
        all => (all.to_vec(), None),
    };
    // The style may also come after the options.
    let (arguments, json) = match arguments.iter().position(|word| word == "--libxo") {
        Some(at) if json.is_none() && at + 1 < arguments.len() => {
            let mut rest = arguments.clone();
            let style = rest.remove(at + 1);
            rest.remove(at);
            (rest, Some(style))
        }
        _ => (arguments, json),
    };
    let given = match Options::parse(&arguments, "dhNnqsvj:") {
        Ok(given) => given,
        Err(why) => return super::refused(fake, "jls", &arguments, why, USAGE),
    };
    fake.change(|world| {
        world.age_jails();
        list(world, &given, json.as_deref())
    })
}

fn list(world: &World, given: &Options, json: Option<&str>) -> Said {
    let parameters = &given.operands;
    if let Some(unknown) = parameters.iter().find(|name| value(&Jail::default(), name, Form::Plain).is_none())
    {
        return Said::err(1, format!("jls: unknown parameter: {unknown}\n"));
    }
    let table = parameters.is_empty() && !given.has('n') && !given.has('s') && json.is_none();
    let mut header = String::new();
    if table {
        header = if given.has('v') {
            "   JID  Hostname                      Path\n        Name                          State\n        \
             CPUSetID\n        IP Address(es)\n"
        } else if given.has('N') {
            " JID             IP Address      Hostname                      Path\n"
        } else {
            "   JID  IP Address      Hostname                      Path\n"
        }
        .to_owned();
    }
    let jails: Vec<&Jail> = match given.value('j') {
        None => world.jails.iter().filter(|jail| jail.dying.is_none() || given.has('d')).collect(),
        Some(key) => {
            let quoted = if key.parse::<u32>().is_ok() { key.to_owned() } else { format!("\"{key}\"") };
            match (world.jail(key), world.dying(key)) {
                (Some(jail), _) => vec![jail],
                (None, Some(jail)) if given.has('d') => vec![jail],
                (None, Some(_)) => {
                    return Said { out: header, ..Said::err(1, format!("jls: jail {quoted} is dying\n")) };
                }
                (None, None) => {
                    return Said { out: header, ..Said::err(1, format!("jls: jail {quoted} not found\n")) };
                }
            }
        }
    };
    if let Some(style) = json {
        return Said::out(as_json(&jails, given, style.contains("pretty")));
    }
    let mut out = header;
    for jail in jails {
        if table && given.has('v') {
            let state = if jail.dying.is_some() { "DYING" } else { "ACTIVE" };
            let _ = writeln!(out, "{:6}  {:<29.29} {:.74}", jail.jid, jail.hostname, jail.path);
            let _ = writeln!(out, "        {:<29.29} {state}\n        3", jail.name);
        } else if table && given.has('N') {
            let _ = writeln!(
                out,
                " {:<15.15} {:<15.15} {:<29.29} {:.74}",
                jail.name, "", jail.hostname, jail.path
            );
        } else if table {
            let _ = writeln!(out, "{:6}  {:<15.15} {:<29.29} {:.74}", jail.jid, "", jail.hostname, jail.path);
        } else if given.has('n') {
            let words = parameters.iter().filter_map(|name| value(jail, name, Form::Named));
            let _ = writeln!(out, "{}", words.collect::<Vec<_>>().join(" "));
        } else {
            let words = parameters.iter().filter_map(|name| value(jail, name, Form::Plain));
            let _ = writeln!(out, "{}", words.collect::<Vec<_>>().join(" "));
        }
    }
    Said::out(out)
}

fn as_json(jails: &[&Jail], given: &Options, pretty: bool) -> String {
    let text = |text: &str| serde_json::to_string(text).expect("text");
    let mut objects = Vec::new();
    for jail in jails {
        let fields: Vec<String> = match (given.operands.is_empty(), given.has('v')) {
            (false, _) => {
                let form = if given.has('n') { Form::Json } else { Form::Plain };
                let field = |name: &String| {
                    let value = value(jail, name, form)?;
                    // Without -n everything is text; with it truth is not.
                    let bare = form == Form::Json && (value == "true" || value == "false");
                    Some(format!("{}:{}", text(name), if bare { value } else { text(&value) }))
                };
                given.operands.iter().filter_map(field).collect()
            }
            (true, true) => {
                let state = if jail.dying.is_some() { "DYING" } else { "ACTIVE" };
                vec![
                    format!("\"jid\": {}", jail.jid),
                    format!("\"hostname\": {}", text(&jail.hostname)),
                    format!("\"path\": {}", text(&jail.path)),
                    format!("\"name\": {}", text(&jail.name)),
                    format!("\"state\": \"{state}\""),
                    "\"cpusetid\": 3".to_owned(),
                    "\"ipv4_addrs\": [\n        ]".to_owned(),
                    "\"ipv6_addrs\": [\n        ]".to_owned(),
                ]
            }
            (true, false) => vec![
                format!("\"jid\":{}", jail.jid),
                "\"ipv4\":\"\"".to_owned(),
                format!("\"hostname\":{}", text(&jail.hostname)),
                format!("\"path\":{}", text(&jail.path)),
            ],
        };
        objects.push(fields);
    }
    if pretty {
        let object =
            |fields: &Vec<String>| format!("      {{\n        {}\n      }}", fields.join(",\n        "));
        let objects: Vec<String> = objects.iter().map(object).collect();
        return format!(
            "{{\n  \"__version\": \"2\", \n  \"jail-information\": {{\n    \"jail\": [\n{}\n    ]\n  }}\n}}\n",
            objects.join(",\n")
        );
    }
    let objects: Vec<String> = objects.iter().map(|fields| format!("{{{}}}", fields.join(","))).collect();
    format!("{{\"__version\": \"2\", \"jail-information\": {{\"jail\": [{}]}}}}\n", objects.join(", "))
}

/// A jail's parameter; none if there is no such parameter.
fn value(jail: &Jail, name: &str, form: Form) -> Option<String> {
    let truth = |value: bool| match form {
        Form::Named => format!("{}{name}", if value { "" } else { "no" }),
        _ => value.to_string(),
    };
    let other = |usual: &str| {
        let text = jail.parameters.get(name).map_or(usual, String::as_str);
        if text.is_empty() { "-".to_owned() } else { text.to_owned() }
    };
    let text = match name {
        "dying" => return Some(truth(jail.dying.is_some())),
        "persist" => return Some(truth(jail.parameters.contains_key("persist"))),
        "jid" => jail.jid.to_string(),
        "name" => jail.name.clone(),
        "path" => jail.path.clone(),
        "host.hostname" => jail.hostname.clone(),
        "vnet" => if jail.vnet { "new" } else { "inherit" }.to_owned(),
        "osrelease" => other("14.1-RELEASE-p5"),
        "securelevel" => other("-1"),
        "children.cur" | "children.max" | "parent" => other("0"),
        "devfs_ruleset" => other("0"),
        "enforce_statfs" => other("2"),
        "ip4.addr" | "ip6.addr" => other(""),
        "cpuset.id" => other("3"),
        "host.hostuuid" => other("00000000-0000-0000-0000-000000000000"),
        _ => return None,
    };
    Some(match form {
        Form::Named if text.contains(' ') => format!("{name}=\"{text}\""),
        Form::Named => format!("{name}={text}"),
        _ => text,
    })
}
