//! The connection to the service: which address, which key, which timeout.

use crate::args::Globals;
use crate::output::Failure;
use clap::ArgMatches;
use clap::parser::ValueSource;
use controlplane::client::Client;
use std::time::Duration;

/// How long a call may take if nothing else is said. It is longer than the service needs for any call.
const LONGEST: Duration = Duration::from_secs(300);

/// What the service needs beyond the time that the caller gave it, to say that the time is over.
const MARGIN: Duration = Duration::from_secs(5);

/// The service as the command line names it.
#[derive(Debug)]
pub(crate) struct Remote {
    client: Client,
    /// Set by the command line.
    pub(crate) timeout: Option<Duration>,
}

impl Remote {
    pub(crate) fn new(globals: &Globals, matches: &ArgMatches) -> Result<Remote, Failure> {
        let explicit = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        let client = match &globals.server {
            // A flag wins over a variable.
            Some(url) if explicit("server") || !explicit("socket") => {
                Client::at_url(url, key(globals)?.as_deref())?
            }
            _ => {
                let default = || controlplane::config::Paths::default().socket;
                Client::at_socket(globals.socket.clone().unwrap_or_else(default))
            }
        };
        Ok(Remote { client, timeout: globals.timeout })
    }

    /// A client whose calls are limited.
    pub(crate) fn client(&self) -> Client {
        self.client.clone().with_timeout(self.timeout.map_or(LONGEST, |timeout| timeout + MARGIN))
    }

    /// A client without a limit, for one whose caller can cancel.
    pub(crate) fn patient(&self) -> Client {
        self.client.clone()
    }
}

fn key(globals: &Globals) -> Result<Option<String>, Failure> {
    match &globals.key_file {
        None => Ok(std::env::var("BROWSERCTL_KEY").ok().filter(|key| !key.is_empty())),
        Some(file) => std::fs::read_to_string(file)
            .map(|key| Some(key.trim().to_owned()))
            .map_err(|error| Failure::wrong(format!("cannot read the key file {}: {error}", file.display()))),
    }
}
