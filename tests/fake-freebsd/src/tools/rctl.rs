//! rctl(8): resource limits, kept by the jail's name whether there is such a jail or not.

use crate::fake::{Caller, Fake, Said};
use crate::options::Options;
use crate::world::{Limit, World};

const RESOURCES: &[&str] = &[
    "cputime",
    "datasize",
    "stacksize",
    "coredumpsize",
    "memoryuse",
    "memorylocked",
    "maxproc",
    "openfiles",
    "vmemoryuse",
    "pseudoterminals",
    "swapuse",
    "nthr",
    "msgqqueued",
    "msgqsize",
    "nmsgq",
    "nsem",
    "nsemop",
    "nshm",
    "shmsize",
    "wallclock",
    "pcpu",
    "readbps",
    "writebps",
    "readiops",
    "writeiops",
];
const SIGNALS: &[&str] =
    &["sigterm", "sigkill", "sigstop", "sigxcpu", "sigusr1", "sigusr2", "sighup", "sigint"];
const DISABLED: &str = "rctl: RACCT/RCTL present, but disabled; enable using kern.racct.enable=1 tunable\n";

pub(super) fn run(fake: &Fake, arguments: &[String], caller: Caller) -> Said {
    let given = match Options::parse(arguments, "a:hnl:r:u:") {
        // The letters take their rule as an operand, and more rules may follow.
        Ok(_) => Options::parse(arguments, "ahnlru").expect("a subset"),
        Err(why) => {
            let usage =
                "usage: rctl [ -h ] [filter ...]\n       rctl -a rule ...\n       rctl -r filter ...\n";
            return super::refused(fake, "rctl", arguments, why, usage);
        }
    };
    fake.change(|world| {
        if world.sysctl.get("kern.racct.enable").map(String::as_str) != Some("1") {
            return Said::err(1, DISABLED);
        }
        let human = given.has('h');
        let mut said = Said::nothing();
        let everything = [String::new()];
        let operands = if given.operands.is_empty() { &everything[..] } else { &given.operands };
        for rule in operands {
            let one = if given.has('a') {
                add(world, rule, caller)
            } else if given.has('r') {
                remove(world, rule)
            } else if given.has('u') {
                Said::out(RESOURCES.iter().map(|name| format!("{name}=0\n")).collect::<String>())
            } else if given.has('l') {
                Said::err(1, format!("rctl: failed to get limits for '{rule}': Operation not supported\n"))
            } else if caller.nobody {
                Said::err(0, "rctl: failed to show rules for '::': Operation not permitted\n")
            } else {
                Said::out(show(world, rule, human))
            };
            let failed = one.code;
            said.then(one);
            if failed != 0 {
                break;
            }
        }
        said
    })
}

fn amount(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << unit)
}

fn add(world: &mut World, rule: &str, caller: Caller) -> Said {
    let failed = |why: &str| Said::err(1, format!("rctl: failed to add rule '{rule}': {why}\n"));
    let parts: Vec<&str> = rule.split(':').collect();
    let [subject, whose, resource, action] = parts[..] else { return failed("Invalid argument") };
    let Some((action, text)) = action.split_once('=') else { return failed("Invalid argument") };
    // `/jail` says what is counted, and that is what a rule of a jail counts anyway.
    let (text, per) = text.split_once('/').unwrap_or((text, subject));
    if !["jail", "process", "user", "loginclass"].contains(&per) {
        return failed("Invalid argument");
    }
    let per = if per == subject { "" } else { per };
    let Some(amount) = amount(text) else {
        return Said::err(1, format!("rctl: malformed rule '{rule}': invalid numeric value '{text}'\n"));
    };
    let known = ["deny", "log", "devctl", "throttle"].contains(&action) || SIGNALS.contains(&action);
    if !["jail", "process", "user", "loginclass"].contains(&subject)
        || whose.is_empty()
        || !RESOURCES.contains(&resource)
        || !known
    {
        return failed("Invalid argument");
    }
    if caller.nobody {
        return failed("Operation not permitted");
    }
    // What is a rate can be slowed down and not refused; everything else the other way round.
    let rate = resource.ends_with("bps") || resource.ends_with("iops");
    if (rate && action == "deny") || (!rate && action == "throttle") {
        return failed("Operation not supported");
    }
    let same = |limit: &Limit| {
        (limit.subject.as_str(), limit.whose.as_str(), limit.resource.as_str(), limit.action.as_str())
            == (subject, whose, resource, action)
            && limit.per == per
    };
    world.limits.retain(|limit| !same(limit));
    let text = str::to_owned;
    let (subject, whose, resource, action) = (text(subject), text(whose), text(resource), text(action));
    world.limits.insert(0, Limit { subject, whose, resource, action, amount, per: per.to_owned() });
    Said::nothing()
}

/// Whether a limit fits a filter, of which anything may be left out.
fn fits(limit: &Limit, filter: &str) -> bool {
    let mut parts = filter.split(':');
    let mut fits = |field: &str| parts.next().is_none_or(|part| part.is_empty() || part == field);
    let whole = format!("{}={}", limit.action, limit.amount);
    fits(&limit.subject)
        && fits(&limit.whose)
        && fits(&limit.resource)
        && parts.next().is_none_or(|part| part.is_empty() || part == limit.action || part == whole)
}

fn remove(world: &mut World, filter: &str) -> Said {
    let before = world.limits.len();
    world.limits.retain(|limit| !fits(limit, filter));
    match world.limits.len() == before {
        true => Said::err(1, format!("rctl: failed to remove rule '{filter}': No such process\n")),
        false => Said::nothing(),
    }
}

fn show(world: &World, filter: &str, human: bool) -> String {
    // Processes come before jails, whenever their rules were made.
    let of = |subject: &'static str| world.limits.iter().filter(move |limit| limit.subject == subject);
    let ordered = of("process").chain(of("user")).chain(of("loginclass")).chain(of("jail"));
    let line = |limit: &Limit| {
        let amount = if human { short(limit.amount) } else { limit.amount.to_string() };
        let per = if limit.per.is_empty() { String::new() } else { format!("/{}", limit.per) };
        format!("{}:{}:{}:{}={amount}{per}\n", limit.subject, limit.whose, limit.resource, limit.action)
    };
    ordered.filter(|limit| fits(limit, filter)).map(line).collect()
}

/// humanize_number(3) with room for four digits.
fn short(amount: u64) -> String {
    let (mut amount, mut unit) = (amount, 0);
    while amount >= 10_000 {
        (amount, unit) = (amount / 1024, unit + 1);
    }
    // Exact multiples go one unit further, as long as a digit is left.
    while unit < 2 && amount >= 1024 && amount % 1024 == 0 {
        (amount, unit) = (amount / 1024, unit + 1);
    }
    format!("{amount}{}", ["", "K", "M", "G", "T"][unit])
}
