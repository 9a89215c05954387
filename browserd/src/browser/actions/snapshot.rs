//! The accessibility tree as text, with a ref for every interactive element.

use super::Context;
use super::read::chars;
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{PageSnapshot, RefInfo, Snapshot};
use crate::browser::tab::{Element, RemoteFrame, left};
use crate::cdp::Session;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// Maximum number of elements. Above it, Chromium's reply would be hundreds of megabytes.
const MAX_ELEMENTS: u64 = 50_000;
const COUNT: &str = "function() { return document.getElementsByTagName('*').length }";
const MAX_DEPTH: usize = 200;
const MAX_NAME: usize = 200;

/// Roles of interactive elements, which get a ref.
const INTERACTIVE: [&str; 20] = [
    "button",
    "checkbox",
    "combobox",
    "gridcell",
    "link",
    "listbox",
    "menuitem",
    "menuitemcheckbox",
    "menuitemradio",
    "option",
    "radio",
    "searchbox",
    "slider",
    "spinbutton",
    "switch",
    "tab",
    "textbox",
    "treeitem",
    "DisclosureTriangle",
    "PopUpButton",
];
/// Roles without information of their own: only their children are shown.
const TRANSPARENT: [&str; 7] =
    ["none", "generic", "presentation", "InlineTextBox", "LineBreak", "IframePresentational", "LayoutTable"];

#[derive(Deserialize)]
struct Tree {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    node_id: String,
    #[serde(default)]
    parent_id: Option<String>,
    #[serde(default)]
    ignored: bool,
    #[serde(default)]
    role: Option<AxValue>,
    #[serde(default)]
    name: Option<AxValue>,
    #[serde(default)]
    value: Option<AxValue>,
    #[serde(default)]
    properties: Vec<Property>,
    #[serde(default)]
    child_ids: Vec<String>,
    #[serde(default, rename = "backendDOMNodeId")]
    backend_node: Option<i64>,
}

#[derive(Deserialize)]
struct AxValue {
    #[serde(default)]
    value: Value,
}

#[derive(Deserialize)]
struct Property {
    name: String,
    value: AxValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FrameTreeResult {
    frame_tree: FrameTree,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FrameTree {
    frame: FrameId,
    #[serde(default)]
    child_frames: Vec<FrameTree>,
}

#[derive(Deserialize)]
struct FrameId {
    id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Owner {
    backend_node_id: i64,
}

/// The accessibility tree of one frame.
struct FrameNodes {
    session: Session,
    root: Option<usize>,
    nodes: Vec<Node>,
    by_id: HashMap<String, usize>,
}

/// All frames of the tab. Child frames are found by session and owner element.
#[derive(Default)]
struct Frames {
    list: Vec<FrameNodes>,
    by_owner: HashMap<(String, i64), usize>,
}

pub(crate) async fn snapshot(context: &Context, request: &Snapshot) -> Result<PageSnapshot, ApiError> {
    let elements: u64 = context.tab.run(COUNT, &[], context.until).await?;
    if elements > MAX_ELEMENTS {
        return Err(ApiError::new(
            ErrorCode::PageTooLarge,
            format!("the page has {elements} elements; the limit is {MAX_ELEMENTS}"),
        ));
    }
    let frames = read_frames(context).await?;
    let limit = chars(request.max_chars) as usize;
    let mut writer = Writer {
        frames: &frames,
        interactive_only: request.interactive_only,
        limit,
        text: String::new(),
        refs: BTreeMap::new(),
        elements: HashMap::new(),
        full: false,
    };
    if let Some(first) = frames.list.first() {
        writer.frame(first, 0);
    }
    let Writer { text, refs, elements, full, .. } = writer;
    context.tab.state().refs = elements;
    let refs = refs.into_iter().map(|(number, info)| (format!("@e{number}"), info)).collect();
    Ok(PageSnapshot { snapshot: text, refs, truncated_to: full.then_some(limit as u32) })
}

/// Reads the frames in the tab's process, then those with their own process. A frame may disappear meanwhile; it is
/// then left out.
async fn read_frames(context: &Context) -> Result<Frames, ApiError> {
    let tab = &context.tab;
    let mut frames = Frames::default();
    read_session(context, &tab.session, &mut frames).await?;
    let others: Vec<(String, RemoteFrame)> =
        tab.state().frames.iter().map(|(session, frame)| (session.clone(), frame.clone())).collect();
    for (session, RemoteFrame { id, parent }) in others {
        let frame = json!({ "frameId": id });
        let owner: Result<Owner, _> =
            tab.cdp.call(Some(&parent), "DOM.getFrameOwner", frame, left(context.until)).await;
        let Ok(owner) = owner else { continue };
        let at = frames.list.len();
        if read_session(context, &session.as_str().into(), &mut frames).await.is_ok()
            && frames.list.len() > at
        {
            frames.by_owner.insert((parent.to_string(), owner.backend_node_id), at);
        }
    }
    Ok(frames)
}

async fn read_session(context: &Context, session: &Session, frames: &mut Frames) -> Result<(), ApiError> {
    let cdp = &context.tab.cdp;
    let result: FrameTreeResult =
        cdp.call(Some(session), "Page.getFrameTree", json!({}), left(context.until)).await?;
    let mut open = vec![(result.frame_tree, false)];
    while let Some((tree, inner)) = open.pop() {
        let frame = json!({ "frameId": tree.frame.id });
        let read: Result<Tree, _> =
            cdp.call(Some(session), "Accessibility.getFullAXTree", &frame, left(context.until)).await;
        let read = match read {
            Err(_) if inner => continue,
            read => read?,
        };
        let at = frames.list.len();
        if inner {
            let owner: Owner =
                match cdp.call(Some(session), "DOM.getFrameOwner", &frame, left(context.until)).await {
                    Err(_) => continue,
                    Ok(owner) => owner,
                };
            frames.by_owner.insert((session.to_string(), owner.backend_node_id), at);
        }
        frames.list.push(FrameNodes::new(session.clone(), read.nodes));
        open.extend(tree.child_frames.into_iter().map(|child| (child, true)));
    }
    Ok(())
}

impl FrameNodes {
    fn new(session: Session, nodes: Vec<Node>) -> Self {
        let by_id = nodes.iter().enumerate().map(|(at, node)| (node.node_id.clone(), at)).collect();
        let root = nodes.iter().position(|node| node.parent_id.is_none());
        Self { session, root, nodes, by_id }
    }
}

impl AxValue {
    fn text(&self) -> String {
        match &self.value {
            Value::String(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }
}

impl Node {
    fn role(&self) -> String {
        self.role.as_ref().map(AxValue::text).unwrap_or_default()
    }

    fn name(&self) -> String {
        shortened(self.name.as_ref().map(AxValue::text).unwrap_or_default())
    }

    fn property(&self, name: &str) -> Option<String> {
        self.properties.iter().find(|property| property.name == name).map(|property| property.value.text())
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(MAX_NAME) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

struct Writer<'a> {
    frames: &'a Frames,
    interactive_only: bool,
    limit: usize,
    text: String,
    refs: BTreeMap<u32, RefInfo>,
    elements: HashMap<u32, Element>,
    full: bool,
}

impl Writer<'_> {
    fn frame(&mut self, frame: &FrameNodes, depth: usize) {
        if let Some(root) = frame.root {
            self.node(frame, root, depth, "");
        }
    }

    fn node(&mut self, frame: &FrameNodes, at: usize, depth: usize, parent_name: &str) {
        if self.full || depth > MAX_DEPTH {
            return;
        }
        let node = &frame.nodes[at];
        let (role, name) = (node.role(), node.name());
        let interactive = INTERACTIVE.contains(&role.as_str())
            || (node.property("editable").is_some() && node.property("focusable").is_some());
        let text_of_parent = role == "StaticText" && (name.is_empty() || parent_name.contains(&name));
        let shown = !node.ignored
            && !TRANSPARENT.contains(&role.as_str())
            && role != "RootWebArea"
            && !text_of_parent
            && (interactive || !self.interactive_only);
        let mut inner_depth = depth;
        if shown {
            self.line(frame, node, &role, &name, interactive, depth);
            inner_depth += 1;
        }
        // Text that is part of this line is not repeated below it.
        let line_text = node.value.as_ref().map(|value| format!("{name} {}", value.text()));
        let inner_name = if shown { line_text.as_deref().unwrap_or(&name) } else { parent_name };
        let owner =
            node.backend_node.and_then(|owner| self.frames.by_owner.get(&(frame.session.to_string(), owner)));
        match owner {
            Some(inner) => self.frame(&self.frames.list[*inner], inner_depth),
            None => {
                for child in node.child_ids.iter().filter_map(|child| frame.by_id.get(child)) {
                    self.node(frame, *child, inner_depth, inner_name);
                }
            }
        }
    }

    fn line(
        &mut self,
        frame: &FrameNodes,
        node: &Node,
        role: &str,
        name: &str,
        interactive: bool,
        depth: usize,
    ) {
        let start = self.text.len();
        let shown_role = if role == "StaticText" { "text" } else { role };
        let _ = write!(self.text, "{:indent$}- {shown_role}", "", indent = depth * 2);
        if !name.is_empty() {
            let _ = write!(self.text, " {name:?}");
        }
        for property in ["level", "checked", "selected", "expanded", "disabled", "pressed", "required"] {
            match node.property(property).as_deref() {
                Some("true") => drop(write!(self.text, " [{property}]")),
                Some("false" | "") | None => {}
                Some(value) => drop(write!(self.text, " [{property}={value}]")),
            }
        }
        let number = self.refs.len() as u32 + 1;
        let reference = interactive.then_some(node.backend_node).flatten();
        if reference.is_some() {
            let _ = write!(self.text, " [ref=@e{number}]");
        }
        let value = node.value.as_ref().map(AxValue::text).unwrap_or_default();
        if !value.is_empty() && value != name {
            let _ = write!(self.text, ": {:?}", shortened(value));
        }
        self.text.push('\n');
        if self.text.len() > self.limit {
            self.text.truncate(start);
            self.full = true;
        } else if let Some(backend_node) = reference {
            self.refs.insert(number, RefInfo { role: role.into(), name: name.into() });
            self.elements.insert(number, Element { session: frame.session.clone(), backend_node });
        }
    }
}
