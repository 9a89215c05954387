//! The accessibility trees of a tab's frames, as Chromium reports them.

use super::Context;
use crate::api::error::{ApiError, ErrorCode};
use crate::browser::refs::Element;
use crate::browser::tab::{RemoteFrame, left};
use crate::cdp::Session;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Maximum number of elements. Above it, Chromium's reply would be hundreds of megabytes.
const MAX_ELEMENTS: u64 = 50_000;
const COUNT: &str = "function() { return document.getElementsByTagName('*').length }";
const MAX_NAME: usize = 200;

/// Roles of interactive elements.
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
pub(super) struct Node {
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
    pub(super) value: Option<AxValue>,
    #[serde(default)]
    properties: Vec<Property>,
    #[serde(default)]
    child_ids: Vec<String>,
    #[serde(default, rename = "backendDOMNodeId")]
    backend_node: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct AxValue {
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
pub(super) struct FrameNodes {
    pub(super) session: Session,
    pub(super) root: Option<usize>,
    pub(super) nodes: Vec<Node>,
    by_id: HashMap<String, usize>,
}

/// All frames of the tab. Child frames are found by session and owner element.
#[derive(Default)]
pub(super) struct Frames {
    pub(super) list: Vec<FrameNodes>,
    by_owner: HashMap<(String, i64), usize>,
}

/// Reads the frames in the tab's process, then those with their own process. A frame may disappear meanwhile; it is
/// then left out.
pub(super) async fn read_frames(context: &Context) -> Result<Frames, ApiError> {
    let tab = &context.tab;
    let elements: u64 = tab.run(COUNT, &[], context.until).await?;
    if elements > MAX_ELEMENTS {
        return Err(ApiError::new(
            ErrorCode::PageTooLarge,
            format!("the page has {elements} elements; the limit is {MAX_ELEMENTS}"),
        ));
    }
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

    /// The element of a node.
    pub(super) fn element(&self, node: &Node) -> Option<Element> {
        Some(Element { session: self.session.clone(), backend_node: node.backend_node? })
    }

    fn children(&self, node: &Node) -> impl Iterator<Item = usize> {
        node.child_ids.iter().filter_map(|child| self.by_id.get(child).copied())
    }
}

impl AxValue {
    pub(super) fn text(&self) -> String {
        match &self.value {
            Value::String(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }
}

impl Node {
    pub(super) fn role(&self) -> String {
        self.role.as_ref().map(AxValue::text).unwrap_or_default()
    }

    pub(super) fn name(&self) -> String {
        shortened(self.name.as_ref().map(AxValue::text).unwrap_or_default())
    }

    pub(super) fn property(&self, name: &str) -> Option<String> {
        self.properties.iter().find(|property| property.name == name).map(|property| property.value.text())
    }
}

pub(super) fn shortened(text: String) -> String {
    match text.char_indices().nth(MAX_NAME) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

impl Node {
    pub(super) fn is_interactive(&self, role: &str) -> bool {
        INTERACTIVE.contains(&role)
            || (self.property("editable").is_some() && self.property("focusable").is_some())
    }

    /// Whether the node says more than its parent, whose line has the text `parent_text`.
    pub(super) fn is_shown(&self, role: &str, name: &str, parent_text: &str) -> bool {
        let text_of_parent = role == "StaticText" && (name.is_empty() || parent_text.contains(name));
        !self.ignored && !TRANSPARENT.contains(&role) && role != "RootWebArea" && !text_of_parent
    }

    /// The text of the node's line: what its children need not repeat.
    pub(super) fn line_text(&self, name: &str) -> String {
        match &self.value {
            Some(value) => format!("{name} {}", value.text()),
            None => name.to_owned(),
        }
    }
}

impl Frames {
    /// The nodes below a node, with their frames. Below the owner of a frame that is the frame's root.
    pub(super) fn children<'a>(&'a self, frame: &'a FrameNodes, at: usize) -> Vec<(&'a FrameNodes, usize)> {
        let node = &frame.nodes[at];
        let owner =
            node.backend_node.and_then(|owner| self.by_owner.get(&(frame.session.to_string(), owner)));
        match owner {
            Some(inner) => {
                let inner = &self.list[*inner];
                inner.root.map(|root| (inner, root)).into_iter().collect()
            }
            None => frame.children(node).map(|child| (frame, child)).collect(),
        }
    }

    /// The node of an element.
    pub(super) fn node_of(&self, element: &Element) -> Option<(&FrameNodes, usize)> {
        let mut frames = self.list.iter().filter(|frame| frame.session == element.session);
        frames.find_map(|frame| {
            let at = frame.nodes.iter().position(|node| node.backend_node == Some(element.backend_node));
            at.map(|at| (frame, at))
        })
    }
}
