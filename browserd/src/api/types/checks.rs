//! Validation of requests before they are executed.

use super::*;
use crate::api::error::{ApiError, ErrorCode};

/// Longest selector, URL and other short text, in bytes.
const MAX_SELECTOR: usize = 4096;
const MAX_URL: usize = 2 << 20;
const MAX_SHORT: usize = 1024;
/// Maximum number of points of a drag, and of options chosen at once.
const MAX_PATH: usize = 1000;
const MAX_OPTIONS: usize = 1000;
/// Schemes that a caller may navigate to. `file:` would read the clone's files; `chrome:` and `devtools:` pages have more
/// privileges than a web page.
const SCHEMES: [&str; 4] = ["http", "https", "about", "data"];

/// Validation of a request.
pub trait Check {
    /// Returns an error that names the invalid field.
    fn check(&self) -> Result<(), ApiError> {
        Ok(())
    }
}

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, message)
}

fn check_url(url: &str) -> Result<(), ApiError> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    match scheme {
        _ if url.len() > MAX_URL => Err(bad("url: too long")),
        Some(scheme) if SCHEMES.contains(&scheme.as_str()) => Ok(()),
        Some(scheme) if scheme.len() <= 20 => Err(bad(format!("url: scheme {scheme:?} is not allowed"))),
        _ => Err(bad("url: give an absolute URL, for example https://example.org/")),
    }
}

fn check_selector(selector: &Option<String>) -> Result<(), ApiError> {
    match selector {
        Some(text) if text.trim().is_empty() => Err(bad("selector: empty")),
        Some(text) if text.len() > MAX_SELECTOR => Err(bad("selector: too long")),
        _ => Ok(()),
    }
}

/// An element by either a selector or a ref.
fn check_element(selector: &Option<String>, reference: &Option<String>) -> Result<(), ApiError> {
    if selector.is_some() == reference.is_some() {
        return Err(bad("give a selector or a ref"));
    }
    check_selector(selector)?;
    check_ref(reference)
}

/// A text to look for.
fn check_text(name: &str, text: &Option<String>) -> Result<(), ApiError> {
    match text {
        Some(text) if text.trim().is_empty() => Err(bad(format!("{name}: empty"))),
        Some(text) if text.len() > MAX_SELECTOR => Err(bad(format!("{name}: too long"))),
        _ => Ok(()),
    }
}

/// `@e12` or `e12` → 12.
pub(crate) fn parse_ref(reference: &str) -> Option<u32> {
    let digits = reference.strip_prefix('@').unwrap_or(reference).strip_prefix('e')?;
    if digits.starts_with('+') { None } else { digits.parse().ok() }
}

fn check_ref(reference: &Option<String>) -> Result<(), ApiError> {
    match reference {
        Some(text) if parse_ref(text).is_none() => {
            Err(bad("ref: give a ref from the snapshot, for example @e1"))
        }
        _ => Ok(()),
    }
}

fn check_number(
    name: &str,
    value: Option<f64>,
    range: std::ops::RangeInclusive<f64>,
) -> Result<(), ApiError> {
    match value {
        Some(value) if !range.contains(&value) => {
            Err(bad(format!("{name}: must be from {} to {}", range.start(), range.end())))
        }
        _ => Ok(()),
    }
}

/// Accepted coordinates. Values outside are certainly a mistake.
const COORDINATES: std::ops::RangeInclusive<f64> = -1e6..=1e6;

impl Check for Nothing {}

impl Check for NewTab {
    fn check(&self) -> Result<(), ApiError> {
        self.url.as_deref().map_or(Ok(()), check_url)
    }
}

impl Check for Navigate {
    fn check(&self) -> Result<(), ApiError> {
        match (&self.url, &self.history) {
            (Some(url), None) => check_url(url)?,
            (None, Some(_)) => {}
            _ => return Err(bad("give either url or history")),
        }
        self.referrer.as_deref().map_or(Ok(()), check_url)
    }
}

impl Check for Screenshot {
    fn check(&self) -> Result<(), ApiError> {
        if self.full_page && self.clip.is_some() {
            return Err(bad("give either full_page or clip"));
        }
        if self.quality.is_some() && self.format == ImageFormat::Png {
            return Err(bad("quality: only for jpeg and webp"));
        }
        check_number("quality", self.quality.map(f64::from), 0.0..=100.0)?;
        if let Some(clip) = self.clip {
            check_number("clip.x", Some(clip.x), COORDINATES)?;
            check_number("clip.y", Some(clip.y), COORDINATES)?;
            check_number("clip.width", Some(clip.width), 1.0..=1e6)?;
            check_number("clip.height", Some(clip.height), 1.0..=1e6)?;
        }
        Ok(())
    }
}

impl Check for Place {
    fn check(&self) -> Result<(), ApiError> {
        match (self.x, self.y, &self.selector, &self.reference) {
            (Some(_), Some(_), None, None) | (None, None, Some(_), None) | (None, None, None, Some(_)) => {}
            _ => return Err(bad("give x and y, or a selector, or a ref")),
        }
        check_number("x", self.x, COORDINATES)?;
        check_number("y", self.y, COORDINATES)?;
        check_selector(&self.selector)?;
        check_ref(&self.reference)
    }
}

/// A copy of the fields that say where an action happens.
macro_rules! place {
    ($request:expr) => {
        Place {
            x: $request.x,
            y: $request.y,
            selector: $request.selector.clone(),
            reference: $request.reference.clone(),
        }
    };
}

impl Click {
    /// Where to click.
    pub(crate) fn place(&self) -> Place {
        place!(self)
    }
}

impl Hover {
    /// Where to move.
    pub(crate) fn place(&self) -> Place {
        place!(self)
    }
}

impl Mouse {
    /// The position, if one is given.
    pub(crate) fn place(&self) -> Option<Place> {
        Some(place!(self)).filter(|place| *place != Place::default())
    }
}

impl Check for Click {
    fn check(&self) -> Result<(), ApiError> {
        check_number("count", self.count.map(f64::from), 1.0..=3.0)?;
        self.place().check()
    }
}

impl Check for Hover {
    fn check(&self) -> Result<(), ApiError> {
        self.place().check()
    }
}

impl Check for Drag {
    fn check(&self) -> Result<(), ApiError> {
        let end = |name: &str, place: &Place| {
            place.check().map_err(|error| bad(format!("{name}: {}", error.message)))
        };
        end("from", &self.from)?;
        end("to", &self.to)?;
        if self.path.len() > MAX_PATH {
            return Err(bad(format!("path: at most {MAX_PATH} points")));
        }
        for point in &self.path {
            check_number("path.x", Some(point.x), COORDINATES)?;
            check_number("path.y", Some(point.y), COORDINATES)?;
        }
        Ok(())
    }
}

impl Check for Mouse {
    fn check(&self) -> Result<(), ApiError> {
        check_number("count", self.count.map(f64::from), 1.0..=3.0)?;
        match (self.place(), self.action) {
            (Some(place), _) => place.check(),
            (None, MouseAction::Move) => Err(bad("give x and y, or a selector, or a ref")),
            (None, _) => Ok(()),
        }
    }
}

impl Check for SetValue {
    fn check(&self) -> Result<(), ApiError> {
        check_element(&self.selector, &self.reference)?;
        let given = [self.value.is_some(), self.values.is_some(), self.checked.is_some()];
        if given.iter().filter(|given| **given).count() != 1 {
            return Err(bad("give one of value, values and checked"));
        }
        if self.values.as_ref().is_some_and(|values| values.len() > MAX_OPTIONS) {
            return Err(bad(format!("values: at most {MAX_OPTIONS}")));
        }
        Ok(())
    }
}

impl Check for Type {
    fn check(&self) -> Result<(), ApiError> {
        if self.selector.is_some() && self.reference.is_some() {
            return Err(bad("give a selector or a ref, not both"));
        }
        if self.keys && self.text.chars().count() > 10_000 {
            return Err(bad("text: at most 10000 characters with keys"));
        }
        check_selector(&self.selector)?;
        check_ref(&self.reference)
    }
}

impl Check for Upload {
    fn check(&self) -> Result<(), ApiError> {
        if self.files.len() > MAX_OPTIONS || self.files.iter().any(|file| file.len() > MAX_SELECTOR) {
            return Err(bad(format!("files: at most {MAX_OPTIONS} paths of at most {MAX_SELECTOR} bytes")));
        }
        check_element(&self.selector, &self.reference)
    }
}

impl Check for Press {
    fn check(&self) -> Result<(), ApiError> {
        check_number("repeat", self.repeat.map(f64::from), 1.0..=1000.0)?;
        check_number("hold_ms", self.hold_ms.map(f64::from), 0.0..=60_000.0)?;
        if self.repeat.is_some_and(|times| times > 1) && self.hold_ms.is_some() {
            return Err(bad("give either repeat or hold_ms"));
        }
        crate::browser::keys::parse(&self.key).map(drop).map_err(|message| bad(format!("key: {message}")))
    }
}

impl Check for Scroll {
    fn check(&self) -> Result<(), ApiError> {
        let places =
            [self.x.is_some() && self.y.is_some(), self.selector.is_some(), self.reference.is_some()];
        if places.iter().filter(|given| **given).count() > 1 || self.x.is_some() != self.y.is_some() {
            return Err(bad("give x and y, or a selector, or a ref, or none of them"));
        }
        if self.dx == 0.0 && self.dy == 0.0 && self.selector.is_none() && self.reference.is_none() {
            return Err(bad("give dx or dy, or an element to bring into view"));
        }
        for (name, value) in [("dx", Some(self.dx)), ("dy", Some(self.dy)), ("x", self.x), ("y", self.y)] {
            check_number(name, value, COORDINATES)?;
        }
        check_selector(&self.selector)?;
        check_ref(&self.reference)
    }
}

impl Check for ReadDom {
    fn check(&self) -> Result<(), ApiError> {
        check_selector(&self.selector)
    }
}

impl Check for Text {
    fn check(&self) -> Result<(), ApiError> {
        check_selector(&self.selector)
    }
}

impl Check for Links {
    fn check(&self) -> Result<(), ApiError> {
        check_selector(&self.selector)
    }
}

impl Check for Snapshot {
    fn check(&self) -> Result<(), ApiError> {
        check_number("depth", self.depth.map(f64::from), 1.0..=1000.0)?;
        check_ref(&self.reference)
    }
}

impl Check for Find {
    fn check(&self) -> Result<(), ApiError> {
        let given = [("text", &self.text), ("role", &self.role), ("placeholder", &self.placeholder)];
        if given.iter().all(|(_, value)| value.is_none()) {
            return Err(bad("give text, role or placeholder"));
        }
        for (name, value) in given {
            check_text(name, value)?;
        }
        check_number("max", self.max.map(f64::from), 1.0..=200.0)
    }
}

impl Check for WaitFor {
    fn check(&self) -> Result<(), ApiError> {
        if self.selector.is_some() && self.reference.is_some() {
            return Err(bad("give a selector or a ref, not both"));
        }
        let visible = self.selector.is_some() || self.reference.is_some() || self.text.is_some();
        if !visible && self.url.is_none() && self.load.is_none() {
            return Err(bad("give selector, ref, text, url or load"));
        }
        if self.gone && !visible {
            return Err(bad("gone: only together with selector, ref or text"));
        }
        check_text("text", &self.text)?;
        check_text("url", &self.url)?;
        check_selector(&self.selector)?;
        check_ref(&self.reference)
    }
}

impl Check for Url {}

impl Check for Console {
    fn check(&self) -> Result<(), ApiError> {
        check_number("max", self.max.map(f64::from), 1.0..=1000.0)
    }
}

impl Check for Network {
    fn check(&self) -> Result<(), ApiError> {
        check_text("url", &self.url)?;
        check_number("max", self.max.map(f64::from), 1.0..=1000.0)
    }
}

impl Check for Events {
    fn check(&self) -> Result<(), ApiError> {
        check_number("max", self.max.map(f64::from), 1.0..=500.0)
    }
}

impl Check for Evaluate {
    fn check(&self) -> Result<(), ApiError> {
        if self.expression.trim().is_empty() { Err(bad("expression: empty")) } else { Ok(()) }
    }
}

impl Check for Pdf {
    fn check(&self) -> Result<(), ApiError> {
        check_number("paper_width", self.paper_width, 1.0..=100.0)?;
        check_number("paper_height", self.paper_height, 1.0..=100.0)
    }
}

impl Check for Dialogs {
    fn check(&self) -> Result<(), ApiError> {
        match &self.prompt_text {
            Some(text) if text.len() > MAX_SHORT => Err(bad("prompt_text: too long")),
            Some(_) if !self.accept => Err(bad("prompt_text: only together with accept")),
            _ => Ok(()),
        }
    }
}

impl Check for SetCookies {
    fn check(&self) -> Result<(), ApiError> {
        if !self.origins.is_empty() {
            return Err(bad("origins: local storage is not injected; send cookies only"));
        }
        for (index, cookie) in self.cookies.iter().enumerate() {
            cookie.check().map_err(|what| {
                ApiError::new(ErrorCode::InvalidCookie, format!("cookies[{index}] {:?}: {what}", cookie.name))
            })?;
        }
        Ok(())
    }
}
