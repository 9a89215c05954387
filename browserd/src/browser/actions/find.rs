//! Finds elements by what a person sees.

use super::Context;
use super::accessibility::{FrameNodes, Frames, read_frames, shortened};
use super::target::in_session;
use crate::api::error::ApiError;
use crate::api::types::{Find, Found, FoundElement};
use crate::browser::refs::{Element, Refs};
use crate::cdp::Session;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashSet;

const PLACEHOLDERS: &str = include_str!("../js/placeholders.js");
const MAX_DEPTH: usize = 1000;
const DEFAULT_MAX: u32 = 20;

pub(crate) async fn find(context: &Context, request: &Find) -> Result<Found, ApiError> {
    let with_placeholder = match &request.placeholder {
        Some(text) => Some(elements_with_placeholder(context, text, request.exact).await?),
        None => None,
    };
    let frames = read_frames(context).await?;
    let limit = request.max.unwrap_or(DEFAULT_MAX) as usize;
    let mut state = context.tab.state();
    let mut search = Search {
        request,
        frames: &frames,
        with_placeholder,
        known: &mut state.refs,
        limit,
        elements: Vec::new(),
        more: false,
    };
    if let Some(first) = frames.list.first()
        && let Some(root) = first.root
    {
        search.node(first, root, 0, "");
    }
    let Search { elements, more, .. } = search;
    Ok(Found { elements, truncated_to: more.then_some(limit as u32) })
}

struct Search<'a> {
    request: &'a Find,
    frames: &'a Frames,
    with_placeholder: Option<HashSet<Element>>,
    known: &'a mut Refs,
    limit: usize,
    elements: Vec<FoundElement>,
    more: bool,
}

impl Search<'_> {
    fn node(&mut self, frame: &FrameNodes, at: usize, depth: usize, parent_text: &str) {
        if self.more || depth > MAX_DEPTH {
            return;
        }
        let node = &frame.nodes[at];
        let (role, name) = (node.role(), node.name());
        let shown = node.is_shown(&role, &name, parent_text);
        let value = node.value.as_ref().map(|value| shortened(value.text())).filter(|text| !text.is_empty());
        if shown
            && let Some(element) = frame.element(node)
            && self.matches(&element, &role, &name, value.as_deref())
        {
            if self.elements.len() == self.limit {
                self.more = true;
                return;
            }
            let shown_role = if role == "StaticText" { "text".to_owned() } else { role };
            let reference = self.known.of(element);
            self.elements.push(FoundElement { reference, role: shown_role, name: name.clone(), value });
        }
        let text = if shown { node.line_text(&name) } else { parent_text.to_owned() };
        for (frame, child) in self.frames.children(frame, at) {
            self.node(frame, child, depth + 1, &text);
        }
    }

    fn matches(&self, element: &Element, role: &str, name: &str, value: Option<&str>) -> bool {
        let Find { text, role: wanted_role, exact, .. } = self.request;
        let contains = |has: &str, wanted: &str| match exact {
            true => has == wanted,
            false => has.to_lowercase().contains(&wanted.to_lowercase()),
        };
        let text_matches = text.as_ref().is_none_or(|wanted| {
            let wanted = wanted.split_whitespace().collect::<Vec<_>>().join(" ");
            contains(name, &wanted) || value.is_some_and(|value| contains(value, &wanted))
        });
        let role_matches = wanted_role.as_ref().is_none_or(|wanted| {
            let role = if role == "StaticText" { "text" } else { role };
            role.eq_ignore_ascii_case(wanted)
        });
        let placeholder_matches = self.with_placeholder.as_ref().is_none_or(|all| all.contains(element));
        text_matches && role_matches && placeholder_matches
    }
}

/// The elements of all frames that have this placeholder, which the accessibility tree does not show.
async fn elements_with_placeholder(
    context: &Context,
    text: &str,
    exact: bool,
) -> Result<HashSet<Element>, ApiError> {
    let tab = &context.tab;
    let mut found = HashSet::new();
    let frames: Vec<(Session, String)> = tab
        .state()
        .frames
        .iter()
        .map(|(session, frame)| (session.as_str().into(), frame.id.clone()))
        .collect();
    in_frame(context, &tab.session, &tab.target, text, exact, &mut found).await?;
    for (session, frame) in frames {
        // A frame may disappear meanwhile.
        let _ = in_frame(context, &session, &frame, text, exact, &mut found).await;
    }
    Ok(found)
}

async fn in_frame(
    context: &Context,
    session: &Session,
    frame: &str,
    text: &str,
    exact: bool,
    found: &mut HashSet<Element>,
) -> Result<(), ApiError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct World {
        execution_context_id: i64,
    }
    #[derive(Deserialize)]
    struct Returned {
        result: Object,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Object {
        #[serde(default)]
        object_id: Option<String>,
    }
    #[derive(Deserialize)]
    struct Properties {
        result: Vec<Property>,
    }
    #[derive(Deserialize)]
    struct Property {
        name: String,
        #[serde(default)]
        value: Option<Object>,
    }
    #[derive(Deserialize)]
    struct Described {
        node: Node,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Node {
        backend_node_id: i64,
    }
    const GROUP: &str = "browserd-find";
    context.tab.refuse_if_crashed()?;
    let call = async |method, params: Value| in_session::<Value>(context, session, method, &params).await;
    let world = json!({ "frameId": frame, "worldName": "browserd" });
    let world: World = in_session(context, session, "Page.createIsolatedWorld", &world).await?;
    let params = json!({
        "functionDeclaration": PLACEHOLDERS, "executionContextId": world.execution_context_id,
        "objectGroup": GROUP, "arguments": [{ "value": text }, { "value": exact }],
    });
    let list: Returned = in_session(context, session, "Runtime.callFunctionOn", &params).await?;
    let Some(list) = list.result.object_id else { return Ok(()) };
    let own = json!({ "objectId": list, "ownProperties": true });
    let properties: Properties = in_session(context, session, "Runtime.getProperties", &own).await?;
    let elements = properties.result.into_iter().filter(|property| property.name.parse::<u32>().is_ok());
    for object in elements.filter_map(|property| property.value?.object_id) {
        let described = json!({ "objectId": object });
        let Described { node } = in_session(context, session, "DOM.describeNode", &described).await?;
        found.insert(Element { session: session.clone(), backend_node: node.backend_node_id });
    }
    call("Runtime.releaseObjectGroup", json!({ "objectGroup": GROUP })).await.map(drop)
}
