//! `hostctl demo`: a whole life of a clone, to look at.

use crate::args::DemoArgs;
use crate::create::{random_request, stages};
use crate::output::{CommandOutput, Failure, Output};
use crate::remote::Remote;
use crate::visit::visit;
use hostd::api::{CreateParams, CreateResult, DestroyParams, ErrorCode};
use serde_json::json;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use terminal::text::clean;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The page of `--serve`.
const PAGE: &str = include_str!("demo.html");

pub(crate) async fn run(remote: &Remote, output: &Output, args: DemoArgs) -> Result<CommandOutput, Failure> {
    if let Some(address) = args.serve {
        let failed = |error: io::Error| Failure::of(ErrorCode::Internal, format!("{address}: {error}"));
        return serve(address).await.map_err(failed);
    }
    let client = remote.client().await?;
    output.note("creating a clone");
    let CreateResult { clone, secret, .. } = client.create(CreateParams::new(random_request())).await?;
    let endpoint = clone.endpoint.clone().unwrap_or_default();
    output.note(&format!("loading {} in {} at {}", clean(&args.url), clone.name, clean(&endpoint)));
    let visited = visit(&endpoint, secret.as_ref(), &args.url).await;
    // The clone is destroyed even when the page failed.
    output.note("destroying the clone");
    let clone_id = clone
        .clone_id
        .clone()
        .ok_or_else(|| Failure::of(ErrorCode::Internal, "hostd returned no clone id"))?;
    let gone = client.destroy(DestroyParams::new(clone.name.clone(), clone_id)).await?;
    let failed = |message: String| {
        Failure::of(ErrorCode::StepFailed, message).hint("hostctl doctor checks what clones may reach")
    };
    let page = visited.map_err(failed)?;
    let path = &args.screenshot;
    std::fs::write(path, &page.picture).map_err(|error| failed(format!("{}: {error}", path.display())))?;
    let mut text = format!("page        {}\ntitle       {}\n", clean(&args.url), clean(&page.title));
    text.push_str(&format!("driven by   {}\nscreenshot  {}\n", page.by, path.display()));
    text.push_str(&format!(
        "\nCreate{}\nPage{}\nDestroy{}",
        stages(output, &clone.stages),
        stages(output, &page.stages),
        stages(output, &gone.stages)
    ));
    let data = json!({
        "name": clone.name, "endpoint": endpoint, "url": args.url, "title": page.title, "driven_by": page.by,
        "screenshot": path, "create": clone.stages, "page": page.stages, "destroy": gone.stages,
    });
    Ok(CommandOutput { data, text })
}

/// Serve the page for every request, one connection at a time.
async fn serve(address: SocketAddr) -> io::Result<CommandOutput> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        let talk = async {
            // The request does not matter: every path has the same page.
            let _read = stream.read(&mut [0; 4096]).await?;
            let length = PAGE.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(PAGE.as_bytes()).await
        };
        // A client that disconnects or sends nothing does not end the server.
        let _ = tokio::time::timeout(Duration::from_secs(5), talk).await;
    }
}
