//! `hostctl demo`: a whole life of a clone, to look at.

use super::args::DemoArgs;
use super::create::{random_request, stages};
use super::output::{Answer, Failure, Output};
use super::remote::Remote;
use super::text::clean;
use super::visit::visit;
use crate::api::{CreateParams, DestroyParams, ErrorCode};
use serde_json::json;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// What `--serve` serves.
const PAGE: &str = include_str!("demo.html");

pub(super) async fn run(remote: &Remote, output: &Output, args: DemoArgs) -> Result<Answer, Failure> {
    if let Some(address) = args.serve {
        let failed = |error: io::Error| Failure::of(ErrorCode::Internal, format!("{address}: {error}"));
        return serve(address).await.map_err(failed);
    }
    let client = remote.client().await?;
    output.note("making a clone");
    let clone = client.create(CreateParams::new(random_request())).await?.clone;
    let endpoint = clone.endpoint.clone().unwrap_or_default();
    output.note(&format!("loading {} in {} at {}", clean(&args.url), clone.name, clean(&endpoint)));
    let seen = visit(&endpoint, &args.url).await;
    // The clone goes before anything is said about the page.
    output.note("taking the clone away");
    let clone_id =
        clone.clone_id.clone().ok_or_else(|| Failure::of(ErrorCode::Internal, "hostd names no clone id"))?;
    let gone =
        client.destroy(DestroyParams::new(clone.name.clone(), clone_id)).await?;
    let failed = |message: String| {
        Failure::of(ErrorCode::StepFailed, message).hint("look at what the clone may reach: hostctl doctor")
    };
    let seen = seen.map_err(failed)?;
    let path = &args.screenshot;
    std::fs::write(path, &seen.picture).map_err(|error| failed(format!("{}: {error}", path.display())))?;
    let mut text = format!("page        {}\ntitle       {}\n", clean(&args.url), clean(&seen.title));
    text.push_str(&format!("driven by   {}\nscreenshot  {}\n", seen.by, path.display()));
    text.push_str(&format!(
        "\nCreate{}\nPage{}\nDestroy{}",
        stages(output, &clone.stages),
        stages(output, &seen.stages),
        stages(output, &gone.stages)
    ));
    let data = json!({
        "name": clone.name, "endpoint": endpoint, "url": args.url, "title": seen.title, "driven_by": seen.by,
        "screenshot": path, "create": clone.stages, "page": seen.stages, "destroy": gone.stages,
    });
    Ok(Answer { data, text })
}

/// The page, whatever is asked for, one connection after the other.
async fn serve(address: SocketAddr) -> io::Result<Answer> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        let talk = async {
            // Whatever is asked for, and however much of it has come: the answer is the same.
            let _asked = stream.read(&mut [0; 4096]).await?;
            let length = PAGE.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(PAGE.as_bytes()).await
        };
        // A visitor that goes away or stays silent is no reason to stop.
        let _ = tokio::time::timeout(Duration::from_secs(5), talk).await;
    }
}
