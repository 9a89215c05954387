//! Finds the element or the point that an action is about.

use super::Context;
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{Place, Point, parse_ref};
use crate::browser::refs::Element;
use crate::browser::tab::{RemoteFrame, ScriptResult, left};
use crate::cdp::Session;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A function of browserd that runs on an element, from a file in `js/`. Its arguments are `given`.
macro_rules! on_element_script {
    ($file:literal) => {
        concat!(
            "async function (selector, ...given) {\n",
            include_str!("../js/locate.js"),
            include_str!(concat!("../js/", $file)),
            "}"
        )
    };
}
pub(super) use on_element_script;

const POINT: &str = on_element_script!("point.js");

/// Runs a function on the element of a selector or a ref. `script` comes from [`on_element_script`].
pub(super) async fn on_element<T: DeserializeOwned>(
    context: &Context,
    selector: Option<&str>,
    reference: Option<&str>,
    script: &str,
    given: &[Value],
) -> Result<T, ApiError> {
    match reference {
        Some(reference) => on_ref(context, reference, script, given).await,
        None => {
            let arguments: Vec<Value> =
                std::iter::once(json!(selector)).chain(given.iter().cloned()).collect();
            context.tab.run(script, &arguments, context.until).await
        }
    }
}

async fn on_ref<T: DeserializeOwned>(
    context: &Context,
    reference: &str,
    script: &str,
    given: &[Value],
) -> Result<T, ApiError> {
    #[derive(Deserialize)]
    struct Resolved {
        object: Object,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Object {
        object_id: String,
    }
    context.tab.refuse_if_crashed()?;
    let Element { session, backend_node } = element_of(context, reference)?;
    let node = json!({ "backendNodeId": backend_node });
    let resolved: Resolved =
        in_session(context, &session, "DOM.resolveNode", &node).await.map_err(as_element)?;
    let object = resolved.object.object_id;
    let arguments = std::iter::once(&Value::Null).chain(given);
    let params = json!({
        "functionDeclaration": script, "objectId": object, "returnByValue": true, "awaitPromise": true,
        "arguments": arguments.map(|value| json!({ "value": value })).collect::<Vec<_>>(),
    });
    let result: ScriptResult = in_session(context, &session, "Runtime.callFunctionOn", &params).await?;
    // The object is gone already if the script caused a navigation.
    let _ =
        in_session::<Value>(context, &session, "Runtime.releaseObject", &json!({ "objectId": object })).await;
    result.value()
}

/// The element of a ref.
pub(super) fn element_of(context: &Context, reference: &str) -> Result<Element, ApiError> {
    let known = parse_ref(reference).and_then(|number| context.tab.state().refs.element(number));
    known.ok_or_else(|| {
        let short: String = reference.chars().take(20).collect();
        ApiError::new(ErrorCode::StaleRef, format!("{short} is not a ref of the tab's document"))
    })
}

/// The point of a place, which is scrolled into view if it is an element.
pub(super) async fn point_of(context: &Context, place: &Place) -> Result<Point, ApiError> {
    match (place.x, place.y, &place.reference) {
        (Some(x), Some(y), _) => Ok(Point { x, y }),
        (_, _, Some(reference)) => point_of_ref(context, reference).await,
        _ => on_element(context, place.selector.as_deref(), None, POINT, &[]).await,
    }
}

/// The centre of the element, in coordinates of the tab's viewport.
async fn point_of_ref(context: &Context, reference: &str) -> Result<Point, ApiError> {
    #[derive(Deserialize)]
    struct Quads {
        quads: Vec<[f64; 8]>,
    }
    context.tab.refuse_if_crashed()?;
    let Element { session, backend_node } = element_of(context, reference)?;
    let node = json!({ "backendNodeId": backend_node });
    in_session::<Value>(context, &session, "DOM.scrollIntoViewIfNeeded", &node).await.map_err(as_element)?;
    let quads: Quads =
        in_session(context, &session, "DOM.getContentQuads", &node).await.map_err(as_element)?;
    let Some([x1, y1, x2, y2, x3, y3, x4, y4]) = quads.quads.first() else {
        return Err(ApiError::new(ErrorCode::ElementNotVisible, "the element has no visible box"));
    };
    let offset = frame_offset(context, &session).await?;
    Ok(Point { x: (x1 + x2 + x3 + x4) / 4.0 + offset.x, y: (y1 + y2 + y3 + y4) / 4.0 + offset.y })
}

/// The position of a frame with its own process in the tab's viewport.
async fn frame_offset(context: &Context, session: &Session) -> Result<Point, ApiError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Owner {
        backend_node_id: i64,
    }
    #[derive(Deserialize)]
    struct BoxModel {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        content: [f64; 8],
    }
    let mut offset = Point { x: 0.0, y: 0.0 };
    let mut session = session.clone();
    loop {
        let Some(frame) = context.tab.state().frames.get(&*session).cloned() else { return Ok(offset) };
        let RemoteFrame { id, parent } = frame;
        let frame = json!({ "frameId": id });
        let owner: Owner =
            in_session(context, &parent, "DOM.getFrameOwner", &frame).await.map_err(as_element)?;
        let node = json!({ "backendNodeId": owner.backend_node_id });
        let position: BoxModel =
            in_session(context, &parent, "DOM.getBoxModel", &node).await.map_err(as_element)?;
        offset.x += position.model.content[0];
        offset.y += position.model.content[1];
        session = parent;
    }
}

pub(super) async fn in_session<T: DeserializeOwned>(
    context: &Context,
    session: &Session,
    method: &str,
    params: &Value,
) -> Result<T, ApiError> {
    Ok(context.tab.cdp.call(Some(session), method, params, left(context.until)).await?)
}

/// Maps Chromium's messages for an element that was removed or has no box.
fn as_element(error: ApiError) -> ApiError {
    let removed =
        ["No node", "Could not find node", "does not belong", "detached", "-32001", "target is gone"];
    let boxless = ["layout object", "box model", "not visible", "not have a layout"];
    if error.code == ErrorCode::BrowserError && boxless.iter().any(|text| error.message.contains(text)) {
        ApiError::new(ErrorCode::ElementNotVisible, "the element has no visible box")
    } else if matches!(error.code, ErrorCode::BrowserError | ErrorCode::NoSuchTab)
        && removed.iter().any(|text| error.message.contains(text))
    {
        ApiError::new(ErrorCode::StaleRef, "the element is no longer in the page")
    } else {
        error
    }
}

/// A click or key may close its own tab. The call then gets no reply, but the action was executed.
pub(super) fn tolerate_close<T>(result: Result<T, ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error) if error.code == ErrorCode::NoSuchTab => Ok(()),
        result => result.map(drop),
    }
}
