//! Screenshots and PDF files.

use super::Context;
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{Action, Clip, ImageFormat, Pdf, PdfFile, Picture, Screenshot};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Deserialize)]
struct CapturedData {
    data: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metrics {
    css_content_size: Size,
}

#[derive(Deserialize)]
struct Size {
    width: f64,
    height: f64,
}

pub(crate) async fn screenshot(context: &Context, request: &Screenshot) -> Result<Picture, ApiError> {
    let clip = match (request.full_page, request.clip) {
        (true, _) => {
            let metrics: Metrics =
                context.tab.call("Page.getLayoutMetrics", json!({}), context.until).await?;
            let Size { width, height } = metrics.css_content_size;
            Some(Clip { x: 0.0, y: 0.0, width: width.max(1.0), height: height.max(1.0) })
        }
        (false, clip) => clip,
    };
    let mut params = json!({ "format": request.format, "optimizeForSpeed": true });
    if let Some(quality) = request.quality {
        params["quality"] = json!(quality);
    }
    if let Some(clip) = clip {
        let pixels = clip.width * clip.height;
        if pixels > context.config.max_pixels as f64 {
            return Err(ApiError::new(
                ErrorCode::ScreenshotTooLarge,
                format!(
                    "{} x {} pixels exceed the limit of {}",
                    clip.width, clip.height, context.config.max_pixels
                ),
            ));
        }
        let Clip { x, y, width, height } = clip;
        params["clip"] = json!({ "x": x, "y": y, "width": width, "height": height, "scale": 1 });
        params["captureBeyondViewport"] = json!(true);
    }
    let shot: CapturedData = context.tab.call("Page.captureScreenshot", params, context.until).await?;
    let (width, height) = size_of(&shot.data, request.format).ok_or_else(|| {
        ApiError::new(ErrorCode::BrowserError, "the size of the screenshot could not be read")
    })?;
    let captured_at =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    Ok(Picture { image_base64: shot.data, format: request.format, width, height, captured_at })
}

/// Takes the screenshot that an action requested.
pub(crate) async fn after_screenshot(
    context: &Context,
    request: &impl Action,
) -> Result<Option<Picture>, ApiError> {
    if !request.after_screenshot() {
        return Ok(None);
    }
    screenshot(context, &Screenshot::default()).await.map(Some)
}

pub(crate) async fn pdf(context: &Context, request: &Pdf) -> Result<PdfFile, ApiError> {
    let mut params = json!({ "landscape": request.landscape, "printBackground": request.background });
    if let Some(width) = request.paper_width {
        params["paperWidth"] = json!(width);
    }
    if let Some(height) = request.paper_height {
        params["paperHeight"] = json!(height);
    }
    let printed: CapturedData = context.tab.call("Page.printToPDF", params, context.until).await?;
    Ok(PdfFile { pdf_base64: printed.data })
}

/// Reads width and height from the file header. Chromium does not report them, and the window's size differs if a raw
/// client changed the scale.
fn size_of(base64: &str, format: ImageFormat) -> Option<(u32, u32)> {
    // Whole groups of four Base64 characters. A JPEG's tables may precede its size.
    let start = base64.get(..base64.len().min(16 * 1024) & !3)?;
    let bytes = STANDARD.decode(start).ok()?;
    let be16 = |at: usize| Some(u32::from(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let le16 = |at: usize| Some(u32::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    match format {
        ImageFormat::Png => {
            let be32 = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
            Some((be32(16)?, be32(20)?))
        }
        ImageFormat::Jpeg => {
            let mut at = 2;
            loop {
                let marker = *bytes.get(at + 1)?;
                // Start-of-frame markers are C0 to CF without C4, C8 and CC.
                if matches!(marker, 0xC0..=0xCF) && !matches!(marker, 0xC4 | 0xC8 | 0xCC) {
                    return Some((be16(at + 7)?, be16(at + 5)?));
                }
                at += 2 + be16(at + 2)? as usize;
            }
        }
        ImageFormat::Webp => match bytes.get(12..16)? {
            b"VP8 " => Some((le16(26)? & 0x3FFF, le16(28)? & 0x3FFF)),
            b"VP8L" => {
                let bits = u32::from_le_bytes(bytes.get(21..25)?.try_into().ok()?);
                Some(((bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1))
            }
            b"VP8X" => {
                let le24 = |at: usize| Some(le16(at)? | u32::from(*bytes.get(at + 2)?) << 16);
                Some((le24(24)? + 1, le24(27)? + 1))
            }
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_truncated_file_is_none_and_never_a_panic() {
        let png = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAIAAAA2iEnWAAAAAElFTkSuQmCC";
        assert_eq!(size_of(png, ImageFormat::Png), Some((2, 3)));
        for end in 0..png.len() {
            for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Webp] {
                let _ = size_of(&png[..end], format);
            }
        }
        assert_eq!(size_of("", ImageFormat::Jpeg), None);
        assert_eq!(size_of("é", ImageFormat::Png), None);
    }
}
