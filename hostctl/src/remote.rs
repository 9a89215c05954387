//! The connection to the daemon: which socket, which timeout, and how client errors become failures.

use crate::output::Failure;
use hostd::api::ErrorCode;
use hostd::client::{Client, ClientError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terminal::Exit;
use terminal::text::duration;

/// The daemon's socket and the timeout of each call.
#[derive(Debug)]
pub(crate) struct Remote {
    named: Option<PathBuf>,
    default: PathBuf,
    timeout: Duration,
}

impl Remote {
    pub(crate) fn new(named: Option<PathBuf>, timeout: Duration) -> Remote {
        Remote { named, default: hostd::platform::default_dirs().run.join("hostd.sock"), timeout }
    }

    /// Use another default socket. A socket named on the command line wins.
    pub(crate) fn with_default(self, default: Option<PathBuf>) -> Remote {
        Remote { default: default.unwrap_or(self.default), ..self }
    }

    /// The socket.
    pub(crate) fn path(&self) -> &Path {
        self.named.as_deref().unwrap_or(&self.default)
    }

    /// A connection.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        // connect(2) blocks while the daemon is stopped and its backlog is full.
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
                let message = format!("permission denied on {}", path.display());
                Failure::of(ErrorCode::Denied, message).hint(hint)
            }
            ClientError::Connect { path, source, hint } => {
                let message = format!("cannot reach hostd at {}: {source}", path.display());
                let hint = format!(
                    "{hint} (hostctl doctor checks more; --socket or HOSTD_SOCKET names another socket)"
                );
                Failure::local(Exit::NotReady, "unreachable", message).hint(hint).retryable()
            }
            ClientError::Timeout(after) => {
                let message = format!("no answer within {}", duration(after));
                let hint = "the operation continues: see hostctl ls, or wait longer with --timeout";
                Failure::of(ErrorCode::Timeout, message).hint(hint)
            }
            ClientError::Closed(why) => {
                let message = format!("the connection to hostd ended before the answer: {why}");
                let hint = "the operation continues: see hostctl ls, then repeat the call";
                Failure::local(Exit::NotReady, "disconnected", message).hint(hint).retryable()
            }
            ClientError::Protocol(why) => {
                let message = format!("hostd's answer violates the protocol: {why}");
                let hint = "install hostd and hostctl of the same version";
                Failure::local(Exit::Failure, "protocol", message).hint(hint)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn classify(error: ClientError) -> (String, u8, bool) {
        Failure::from(error).classification()
    }

    #[test]
    fn connection_failures_have_distinct_codes() {
        let connect = |kind: ErrorKind| ClientError::Connect {
            path: "/s".into(),
            source: Arc::new(kind.into()),
            hint: "",
        };
        assert_eq!(classify(connect(ErrorKind::NotFound)), ("unreachable".into(), 7, true));
        assert_eq!(classify(connect(ErrorKind::ConnectionRefused)), ("unreachable".into(), 7, true));
        assert_eq!(classify(connect(ErrorKind::PermissionDenied)), ("denied".into(), 4, false));
        assert_eq!(classify(ClientError::Timeout(Duration::from_secs(1))), ("timeout".into(), 6, true));
        assert_eq!(classify(ClientError::Closed(String::new())), ("disconnected".into(), 7, true));
        assert_eq!(classify(ClientError::Protocol(String::new())), ("protocol".into(), 1, false));
        for code in ErrorCode::ALL {
            let error = hostd::api::RpcError::new(*code, "", "");
            let expected = (code.word().to_owned(), code.exit_code(), code.retryable());
            assert_eq!(classify(ClientError::Rpc(error)), expected);
        }
    }
}
