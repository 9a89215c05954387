//! The way to the daemon: which socket, how long to wait, and what its failures mean here.

use super::exit::Exit;
use super::output::Failure;
use super::text::duration;
use crate::api::ErrorCode;
use crate::client::{Client, ClientError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the daemon is and how long it may take.
#[derive(Debug)]
pub(super) struct Remote {
    named: Option<PathBuf>,
    usual: PathBuf,
    timeout: Duration,
}

impl Remote {
    pub(super) fn new(named: Option<PathBuf>, timeout: Duration) -> Remote {
        Remote { named, usual: crate::platform::default_dirs().run.join("hostd.sock"), timeout }
    }

    /// The same with another usual place; a socket that was named stays.
    pub(super) fn usually_at(self, usual: Option<PathBuf>) -> Remote {
        Remote { usual: usual.unwrap_or(self.usual), ..self }
    }

    /// The socket.
    pub(super) fn path(&self) -> &Path {
        self.named.as_deref().unwrap_or(&self.usual)
    }

    /// A connection.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        // A connect can hang when the daemon is stopped in its tracks and its backlog is full.
        let connect = tokio::time::timeout(self.timeout, Client::connect(self.path())).await;
        let client = connect.unwrap_or(Err(ClientError::Timeout(self.timeout)))?;
        Ok(client.with_timeout(self.timeout))
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        match error {
            ClientError::Rpc(error) => error.into(),
            ClientError::Connect { path, source, hint } if source.kind() == ErrorKind::PermissionDenied => {
                let message = format!("you may not connect to {}", path.display());
                Failure::of(ErrorCode::Denied, message).hint(hint)
            }
            ClientError::Connect { path, source, hint } => {
                let message = format!("cannot reach hostd at {}: {source}", path.display());
                let hint =
                    format!("{hint} (hostctl doctor looks closer; --socket or HOSTD_SOCKET name another)");
                Failure::local(Exit::NotReady, "unreachable", message).hint(hint).retryable()
            }
            ClientError::Timeout(after) => {
                let message = format!("no answer within {}", duration(after));
                let hint = "hostd goes on with it: see hostctl ls, or wait longer with --timeout";
                Failure::of(ErrorCode::Timeout, message).hint(hint)
            }
            ClientError::Closed(why) => {
                let message = format!("the connection to hostd ended before the answer: {why}");
                let hint = "hostd goes on with what it began: see hostctl ls, then ask again";
                Failure::local(Exit::NotReady, "disconnected", message).hint(hint).retryable()
            }
            ClientError::Protocol(why) => {
                let message = format!("hostd's answer is not understood: {why}");
                let hint = "hostd and hostctl should be of the same version";
                Failure::local(Exit::Failure, "protocol", message).hint(hint)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn told(error: ClientError) -> (String, u8, bool) {
        Failure::from(error).verdict()
    }

    #[test]
    fn failures_of_the_way_are_told_apart() {
        let connect = |kind: ErrorKind| ClientError::Connect {
            path: "/s".into(),
            source: Arc::new(kind.into()),
            hint: "",
        };
        assert_eq!(told(connect(ErrorKind::NotFound)), ("unreachable".into(), 7, true));
        assert_eq!(told(connect(ErrorKind::ConnectionRefused)), ("unreachable".into(), 7, true));
        assert_eq!(told(connect(ErrorKind::PermissionDenied)), ("denied".into(), 4, false));
        assert_eq!(told(ClientError::Timeout(Duration::from_secs(1))), ("timeout".into(), 6, true));
        assert_eq!(told(ClientError::Closed(String::new())), ("disconnected".into(), 7, true));
        assert_eq!(told(ClientError::Protocol(String::new())), ("protocol".into(), 1, false));
        for code in ErrorCode::ALL {
            let error = crate::api::RpcError::new(*code, "", "");
            let expected = (code.word().to_owned(), code.exit_code(), code.retryable());
            assert_eq!(told(ClientError::Rpc(error)), expected);
        }
    }
}
