//! The accessibility tree as text, with a ref for every interactive element.

use super::Context;
use super::accessibility::{FrameNodes, Frames, read_frames, shortened};
use super::read::chars;
use super::target::element_of;
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{PageSnapshot, RefInfo, Snapshot};
use crate::browser::refs::Refs;
use std::collections::BTreeMap;
use std::fmt::Write;

const MAX_DEPTH: usize = 200;
/// Properties that are shown if they are set.
const PROPERTIES: [&str; 7] = ["level", "checked", "selected", "expanded", "disabled", "pressed", "required"];

pub(crate) async fn snapshot(context: &Context, request: &Snapshot) -> Result<PageSnapshot, ApiError> {
    let top = request.reference.as_deref().map(|reference| element_of(context, reference)).transpose()?;
    let frames = read_frames(context).await?;
    let start = match &top {
        None => frames.list.first().and_then(|first| Some((first, first.root?))),
        Some(element) => Some(frames.node_of(element).ok_or_else(|| {
            ApiError::new(ErrorCode::StaleRef, "the element is no longer in the accessibility tree")
        })?),
    };
    let limit = chars(request.max_chars) as usize;
    let mut state = context.tab.state();
    let mut writer = Writer {
        frames: &frames,
        interactive_only: request.interactive_only,
        limit,
        levels: request.depth.map_or(MAX_DEPTH, |depth| depth as usize),
        text: String::new(),
        refs: BTreeMap::new(),
        known: &mut state.refs,
        full: false,
    };
    if let Some((frame, root)) = start {
        writer.node(frame, root, 0, "");
    }
    let Writer { text, refs, full, .. } = writer;
    Ok(PageSnapshot { snapshot: text, refs, truncated_to: full.then_some(limit as u32) })
}

struct Writer<'a> {
    frames: &'a Frames,
    interactive_only: bool,
    limit: usize,
    /// Levels of lines that are written.
    levels: usize,
    text: String,
    refs: BTreeMap<String, RefInfo>,
    known: &'a mut Refs,
    full: bool,
}

impl Writer<'_> {
    fn node(&mut self, frame: &FrameNodes, at: usize, depth: usize, parent_text: &str) {
        if self.full || depth > MAX_DEPTH {
            return;
        }
        let node = &frame.nodes[at];
        let (role, name) = (node.role(), node.name());
        let shown = self.is_shown(frame, at, parent_text);
        if shown && depth >= self.levels {
            // Only the line above says that there is more.
            self.mark_more();
            return;
        }
        if shown {
            self.line(frame, at, &role, &name, depth);
        }
        let text = if shown { node.line_text(&name) } else { parent_text.to_owned() };
        for (frame, child) in self.frames.children(frame, at) {
            self.node(frame, child, depth + usize::from(shown), &text);
        }
    }

    fn is_shown(&self, frame: &FrameNodes, at: usize, parent_text: &str) -> bool {
        let node = &frame.nodes[at];
        let (role, name) = (node.role(), node.name());
        node.is_shown(&role, &name, parent_text) && (!self.interactive_only || node.is_interactive(&role))
    }

    /// Marks the last line, which is that of the nearest element above.
    fn mark_more(&mut self) {
        const MORE: &str = " [more]\n";
        if !self.text.ends_with(MORE) && self.text.pop().is_some() {
            self.text.push_str(MORE);
        }
    }

    fn line(&mut self, frame: &FrameNodes, at: usize, role: &str, name: &str, depth: usize) {
        let node = &frame.nodes[at];
        let start = self.text.len();
        let shown_role = if role == "StaticText" { "text" } else { role };
        let _ = write!(self.text, "{:indent$}- {shown_role}", "", indent = depth * 2);
        if !name.is_empty() {
            let _ = write!(self.text, " {name:?}");
        }
        for property in PROPERTIES {
            match node.property(property).as_deref() {
                Some("true") => drop(write!(self.text, " [{property}]")),
                Some("false" | "") | None => {}
                Some(value) => drop(write!(self.text, " [{property}={value}]")),
            }
        }
        let element = frame.element(node).filter(|_| node.is_interactive(role));
        let reference = element.map(|element| self.known.of(element));
        if let Some(reference) = &reference {
            let _ = write!(self.text, " [ref={reference}]");
        }
        let value = shortened(node.value.as_ref().map(|value| value.text()).unwrap_or_default());
        if !value.is_empty() && value != name {
            let _ = write!(self.text, ": {value:?}");
        }
        self.text.push('\n');
        if self.text.len() > self.limit {
            self.text.truncate(start);
            self.full = true;
        } else if let Some(reference) = reference {
            self.refs.insert(reference, RefInfo { role: role.into(), name: name.into() });
        }
    }
}
