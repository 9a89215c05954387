//! Loading one page in a clone's browser and taking a picture of it: through browserd's own client where the clone has
//! browserd, else over the browser's debugging socket.

use crate::api::StageTiming;
use crate::host::show;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use browserd::api::types::{Navigate, Screenshot};
use browserd::client::Client;
use std::time::{Duration, Instant};

/// How long the page may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was seen, and how long each call took.
#[derive(Debug)]
pub(super) struct Visit {
    /// Who drove the browser.
    pub(super) by: &'static str,
    pub(super) title: String,
    /// The picture, as PNG.
    pub(super) picture: Vec<u8>,
    pub(super) stages: Vec<StageTiming>,
}

/// The text of the error says what failed.
pub(super) async fn visit(endpoint: &str, url: &str) -> Result<Visit, String> {
    match endpoint.strip_prefix("http://") {
        Some(address) => by_browserd(address, url).await,
        None => by_socket(endpoint, url).await,
    }
}

async fn by_browserd(address: &str, url: &str) -> Result<Visit, String> {
    let address = address.trim_end_matches('/').parse().map_err(|error| format!("{address}: {error}"))?;
    let client = Client::new(address);
    let milliseconds = PATIENCE.as_millis() as u64;
    let navigate =
        Navigate { url: Some(url.to_owned()), timeout_ms: Some(milliseconds), ..Navigate::default() };
    let began = Instant::now();
    let page = client.navigate(&navigate).await.map_err(|error| browserd::with_causes(&error))?;
    let loaded = timing("navigate", began);
    let began = Instant::now();
    let picture =
        client.screenshot(&Screenshot::default()).await.map_err(|error| browserd::with_causes(&error))?;
    let pictured = timing("screenshot", began);
    let picture =
        BASE64_STANDARD.decode(&picture.image_base64).map_err(|error| format!("the picture: {error}"))?;
    Ok(Visit { by: "browserd", title: page.title, picture, stages: vec![loaded, pictured] })
}

async fn by_socket(endpoint: &str, url: &str) -> Result<Visit, String> {
    let (endpoint, url) = (endpoint.to_owned(), url.to_owned());
    let began = Instant::now();
    let seen = tokio::task::spawn_blocking(move || show::page(&endpoint, &url, PATIENCE)).await;
    let seen = seen.unwrap_or_else(|died| Err(died.to_string()))?;
    let stages = vec![timing("page", began)];
    Ok(Visit { by: "the browser's debugging socket", title: seen.title, picture: seen.picture, stages })
}

fn timing(stage: &str, began: Instant) -> StageTiming {
    StageTiming { stage: stage.to_owned(), seconds: began.elapsed().as_secs_f64() }
}
