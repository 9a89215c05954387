//! ipfw(8): the rules of the second packet filter, as far as they are listed, loaded and flushed.

use crate::fake::{Fake, Said};
use crate::world::{IpfwRule, World};

pub(super) fn run(fake: &Fake, arguments: &[String]) -> Said {
    let words: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    fake.change(|world| {
        if !world.ipfw_loaded {
            return Said::err(71, "ipfw: retrieving config failed: Protocol not available\n");
        }
        match &words[..] {
            ["list"] => Said::out(list(world)),
            ["flush"] => {
                world.ipfw.retain(|rule| rule.set == 31);
                Said::nothing()
            }
            [file] if file.starts_with('/') => match std::fs::read_to_string(file) {
                Ok(text) => {
                    let bad = text.lines().find(|line| !load(world, line)).map(str::to_owned);
                    match bad {
                        None => Said::nothing(),
                        Some(line) => {
                            world.violations.push(format!("ipfw: {line}: not known to the fake"));
                            Said::err(64, format!("Line 1: bad arguments: {line}\n"))
                        }
                    }
                }
                Err(_) => Said::err(64, format!("ipfw: pathname: {file}: No such file or directory\n")),
            },
            _ => {
                world.violations.push(format!("ipfw {}: not known to the fake", words.join(" ")));
                Said::err(64, "ipfw: bad command\n")
            }
        }
    })
}

fn load(world: &mut World, line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().skip_while(|word| word.starts_with('-')).collect();
    match &words[..] {
        ["delete", range] => {
            let ends = range.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            let Some((first, last)) = ends else { return false };
            world.ipfw.retain(|rule| !(first..=last).contains(&rule.number));
            true
        }
        ["add", number, "set", set, body @ ..] => match (number.parse(), set.parse()) {
            (Ok(number), Ok(set)) => {
                world.ipfw.push(IpfwRule { number, set, body: body.join(" ") });
                world.ipfw.sort_by_key(|rule| rule.number);
                true
            }
            _ => false,
        },
        _ => false,
    }
}

fn list(world: &World) -> String {
    let own: String = world.ipfw.iter().map(|rule| format!("{:05} {}\n", rule.number, rule.body)).collect();
    own + "65535 allow ip from any to any\n"
}
