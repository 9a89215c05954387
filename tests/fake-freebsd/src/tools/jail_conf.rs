//! jail.conf(5): enough of it to read what Bastille and hostd write.

use std::collections::BTreeMap;

/// The parameters of one jail: every value in order, `true` for a word alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Parameters(pub(super) BTreeMap<String, Vec<String>>);

impl Parameters {
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(|values| values.last()).map(String::as_str)
    }

    pub(super) fn all(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.text(name).is_some_and(|value| value != "false")
    }

    pub(super) fn seconds(&self, name: &str, usual: u64) -> u64 {
        self.text(name).and_then(|text| text.parse().ok()).unwrap_or(usual)
    }

    /// The first parameter that jail(8) does not know.
    pub(super) fn unknown(&self) -> Option<&str> {
        let known = |name: &str| {
            KNOWN.contains(&name) || name.strip_prefix("allow.").is_some() || name.starts_with('$')
        };
        self.0.keys().map(String::as_str).find(|name| !known(name))
    }

    /// Take `name`, `name=value` or `name+=value`.
    pub(super) fn take(&mut self, name: &str, value: Option<&str>, more: bool) {
        // `vnet.interface = a, b` and `novnet` are not used by anybody here.
        let values = self.0.entry(name.to_owned()).or_default();
        if !more {
            values.clear();
        }
        values.push(value.unwrap_or("true").to_owned());
    }
}

const KNOWN: &[&str] = &[
    "allow.dying",
    "children.max",
    "command",
    "cpuset.id",
    "depend",
    "devfs_ruleset",
    "enforce_statfs",
    "exec.clean",
    "exec.consolelog",
    "exec.created",
    "exec.fib",
    "exec.jail_user",
    "exec.poststart",
    "exec.poststop",
    "exec.prepare",
    "exec.prestart",
    "exec.prestop",
    "exec.release",
    "exec.start",
    "exec.stop",
    "exec.system_jail_user",
    "exec.system_user",
    "exec.timeout",
    "host",
    "host.domainname",
    "host.hostid",
    "host.hostname",
    "host.hostuuid",
    "interface",
    "ip4",
    "ip4.addr",
    "ip6",
    "ip6.addr",
    "ip_hostname",
    "jid",
    "mount",
    "mount.devfs",
    "mount.fdescfs",
    "mount.fstab",
    "mount.procfs",
    "name",
    "osreldate",
    "osrelease",
    "path",
    "persist",
    "securelevel",
    "stop.timeout",
    "sysvmsg",
    "sysvsem",
    "sysvshm",
    "vnet",
    "vnet.interface",
    "zfs.mount_snapshot",
];

#[derive(Debug, PartialEq)]
enum Token {
    Word(String),
    Sign(&'static str),
}

fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '#' => while letters.next().is_some_and(|letter| letter != '\n') {},
            '{' => tokens.push(Token::Sign("{")),
            '}' => tokens.push(Token::Sign("}")),
            ';' => tokens.push(Token::Sign(";")),
            '=' => tokens.push(Token::Sign("=")),
            '+' if letters.peek() == Some(&'=') => {
                letters.next();
                tokens.push(Token::Sign("+="));
            }
            '"' | '\'' => {
                let mut word = String::new();
                loop {
                    match letters.next()? {
                        end if end == letter => break,
                        '\\' if letter == '"' => word.push(letters.next()?),
                        other => word.push(other),
                    }
                }
                tokens.push(Token::Word(word));
            }
            blank if blank.is_whitespace() => {}
            first => {
                let mut word = String::from(first);
                while let Some(next) = letters.peek() {
                    if next.is_whitespace() || "{};=#\"'".contains(*next) {
                        break;
                    }
                    if *next == '+' && word.chars().all(|letter| letter.is_alphanumeric() || letter == '.') {
                        break;
                    }
                    word.push(*next);
                    letters.next();
                }
                tokens.push(Token::Word(word));
            }
        }
    }
    Some(tokens)
}

/// The jails of a file. None: it ends too early or makes no sense.
pub(super) fn parse(text: &str) -> Option<BTreeMap<String, Parameters>> {
    let tokens = tokens(text)?;
    let mut jails = BTreeMap::new();
    let mut global = Parameters::default();
    let mut inside: Option<(String, Parameters)> = None;
    let mut rest = tokens.as_slice();
    while !rest.is_empty() {
        rest = match rest {
            [Token::Word(name), Token::Sign("{"), rest @ ..] if inside.is_none() => {
                inside = Some((name.clone(), global.clone()));
                rest
            }
            [Token::Sign("}"), rest @ ..] => {
                let (name, parameters) = inside.take()?;
                jails.insert(name, parameters);
                rest
            }
            [Token::Word(name), rest @ ..] => {
                let parameters = inside.as_mut().map_or(&mut global, |(_, parameters)| parameters);
                match rest {
                    [Token::Sign(";"), rest @ ..] => {
                        parameters.take(name, None, false);
                        rest
                    }
                    [Token::Sign(sign @ ("=" | "+=")), Token::Word(value), Token::Sign(";"), rest @ ..] => {
                        parameters.take(name, Some(value), *sign == "+=");
                        rest
                    }
                    _ => return None,
                }
            }
            [Token::Sign(";"), rest @ ..] => rest,
            _ => return None,
        };
    }
    inside.is_none().then_some(jails)
}
