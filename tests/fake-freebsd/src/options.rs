//! Arguments as getopt(3) splits them: options first, then operands.

/// What was given.
#[derive(Debug, Default)]
pub(crate) struct Options {
    given: Vec<(char, String)>,
    pub(crate) operands: Vec<String>,
}

/// What getopt refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// An option nobody knows.
    Unknown(char),
    /// An option without its argument.
    NoArgument(char),
}

impl Refused {
    /// What getopt itself prints.
    pub(crate) fn message(self, tool: &str) -> String {
        match self {
            Refused::Unknown(option) => format!("{tool}: illegal option -- {option}\n"),
            Refused::NoArgument(option) => format!("{tool}: option requires an argument -- {option}\n"),
        }
    }
}

impl Options {
    /// Split arguments. In `known` every letter is an option, and one before a colon takes an argument.
    pub(crate) fn parse(arguments: &[String], known: &str) -> Result<Options, Refused> {
        let mut options = Options::default();
        let mut rest = arguments.iter();
        while let Some(word) = rest.next() {
            let letters = match word.strip_prefix('-') {
                Some("-") => break,
                Some(letters) if !letters.is_empty() => letters,
                _ => {
                    options.operands.push(word.clone());
                    break;
                }
            };
            let mut letters = letters.chars();
            while let Some(letter) = letters.next() {
                let at = known.find(letter).filter(|_| letter != ':').ok_or(Refused::Unknown(letter))?;
                if !known[at + 1..].starts_with(':') {
                    options.given.push((letter, String::new()));
                    continue;
                }
                let attached: String = letters.collect();
                let argument = match attached.is_empty() {
                    true => rest.next().cloned().ok_or(Refused::NoArgument(letter))?,
                    false => attached,
                };
                options.given.push((letter, argument));
                break;
            }
        }
        options.operands.extend(rest.cloned());
        Ok(options)
    }

    pub(crate) fn has(&self, option: char) -> bool {
        self.given.iter().any(|(letter, _)| *letter == option)
    }

    /// The last argument of an option.
    pub(crate) fn value(&self, option: char) -> Option<&str> {
        self.given.iter().rev().find(|(letter, _)| *letter == option).map(|(_, value)| value.as_str())
    }

    /// All arguments of an option, in order.
    pub(crate) fn values(&self, option: char) -> Vec<&str> {
        self.given.iter().filter(|(letter, _)| *letter == option).map(|(_, value)| value.as_str()).collect()
    }
}
