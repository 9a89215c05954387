//! `browserctl mcp`: the MCP server on standard input and output. Its calls go to the service over the HTTP API.

use crate::args::McpArgs;
use crate::output::{CommandOutput, Failure};
use crate::remote::Remote;
use controlplane::actions::Verb;
use controlplane::client::Client;
use controlplane::error::ErrorBody;
use controlplane::surfaces::mcp::{Backend, Server};
use rmcp::service::{RequestContext, ServiceExt};
use rmcp::{RoleServer, transport};
use serde_json::value::RawValue;
use terminal::Exit;

/// Serve until the client closes standard input.
pub(crate) async fn run(remote: &Remote, args: McpArgs) -> Result<CommandOutput, Failure> {
    let failed =
        |error: String| Failure::local(Exit::Failure, "protocol", format!("MCP on standard input: {error}"));
    let server = Server::new(Remotely(remote.patient()), args.tools);
    match server.serve(transport::stdio()).await {
        Ok(running) => running.waiting().await.map_err(|error| failed(error.to_string()))?,
        // A client that looks only whether the program starts.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(CommandOutput::none()),
        Err(error) => return Err(failed(error.to_string())),
    };
    Ok(CommandOutput::none())
}

/// Calls of the service.
#[derive(Debug, Clone)]
struct Remotely(Client);

impl Backend for Remotely {
    async fn call(
        &self,
        _context: &RequestContext<RoleServer>,
        verb: &'static Verb,
        session: Option<String>,
        params: Box<RawValue>,
    ) -> Result<Box<RawValue>, ErrorBody> {
        let answer = self.0.call(verb, session.as_deref(), &params).await;
        answer.map_err(|error| ErrorBody { success: false, error: Failure::from(error).detail().clone() })
    }
}
