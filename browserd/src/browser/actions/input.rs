//! Mouse and keyboard input.

use super::Context;
use super::capture::after_screenshot;
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{Acted, Click, Point, Press, Scroll, Scrolled, Type, parse_ref};
use crate::browser::keys::{self, Key};
use crate::browser::tab::{Element, RemoteFrame, ScriptResult, left};
use crate::cdp::Session;
use futures_util::future::try_join_all;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const ELEMENT: &str = include_str!("../js/element.js");
const VIEWPORT_MIDDLE: &str = "function() { return { x: innerWidth / 2, y: innerHeight / 2 } }";
/// Scrolling takes effect one or two frames later. The timeout covers pages that draw no frames.
const POSITION: &str = "function() {
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const wait = new Promise((done) => setTimeout(done, 100));
    return Promise.race([frame().then(frame), wait]).then(() => ({ x: scrollX, y: scrollY }));
}";

pub(crate) async fn click(context: &Context, request: &Click) -> Result<Acted, ApiError> {
    let _turn = context.turn().await?;
    let point = match (request.x, request.y) {
        (Some(x), Some(y)) => Point { x, y },
        _ => point_of(context, request.selector.as_deref(), request.reference.as_deref()).await?,
    };
    let mouse = |kind: &str, count: u8| {
        let pressed = if kind == "mouseMoved" { json!("none") } else { json!(request.button) };
        let params = json!({
            "type": kind, "x": point.x, "y": point.y, "button": pressed, "clickCount": count
        });
        context.tab.call::<Value>("Input.dispatchMouseEvent", params, context.until)
    };
    // Sent together: Chromium keeps the order, and the click takes only one round trip.
    let mut events = vec![mouse("mouseMoved", 0)];
    for count in 1..=request.count.unwrap_or(1) {
        events.push(mouse("mousePressed", count));
        events.push(mouse("mouseReleased", count));
    }
    tolerate_close(try_join_all(events).await)?;
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Acted { success: true, point: Some(point), after_screenshot })
}

pub(crate) async fn type_text(context: &Context, request: &Type) -> Result<Acted, ApiError> {
    let _turn = context.turn().await?;
    let purpose = if request.clear { "replace" } else { "focus" };
    match (&request.selector, &request.reference) {
        (Some(selector), _) => {
            let _: Value =
                context.tab.run(ELEMENT, &[json!(selector), json!(purpose)], context.until).await?;
        }
        (None, Some(reference)) => focus_ref(context, reference, purpose).await?,
        (None, None) if request.clear => {
            press_key(context, &keys::parse("Control+A").expect("a known key")).await?
        }
        (None, None) => {}
    }
    if request.text.is_empty() && request.clear {
        press_key(context, &keys::parse("Delete").expect("a known key")).await?;
    } else if request.keys {
        for c in request.text.chars() {
            press_key(context, &keys::character(c)).await?;
        }
    } else if !request.text.is_empty() {
        let params = json!({ "text": request.text });
        let _: Value = context.tab.call("Input.insertText", params, context.until).await?;
    }
    if request.submit {
        press_key(context, &keys::parse("Enter").expect("a known key")).await?;
    }
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Acted { success: true, point: None, after_screenshot })
}

pub(crate) async fn press(context: &Context, request: &Press) -> Result<Acted, ApiError> {
    let _turn = context.turn().await?;
    let key = keys::parse(&request.key).map_err(|message| ApiError::new(ErrorCode::BadRequest, message))?;
    press_key(context, &key).await?;
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Acted { success: true, point: None, after_screenshot })
}

async fn press_key(context: &Context, key: &Key) -> Result<(), ApiError> {
    let Key { key: name, code, windows_virtual_key_code: number, text, modifiers, commands } = key;
    let down = json!({
        "type": if text.is_empty() { "rawKeyDown" } else { "keyDown" },
        "key": name, "code": code, "windowsVirtualKeyCode": number, "text": text,
        "modifiers": modifiers, "commands": commands,
    });
    let up = json!({
        "type": "keyUp", "key": name, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers,
    });
    let call = |params| context.tab.call::<Value>("Input.dispatchKeyEvent", params, context.until);
    tolerate_close(tokio::try_join!(call(down), call(up)))
}

pub(crate) async fn scroll(context: &Context, request: &Scroll) -> Result<Scrolled, ApiError> {
    let _turn = context.turn().await?;
    let (tab, until) = (&context.tab, context.until);
    let point = match (request.x, request.y) {
        (Some(x), Some(y)) => Point { x, y },
        _ if request.selector.is_some() || request.reference.is_some() => {
            point_of(context, request.selector.as_deref(), request.reference.as_deref()).await?
        }
        _ => tab.run(VIEWPORT_MIDDLE, &[], until).await?,
    };
    if request.dx != 0.0 || request.dy != 0.0 {
        let params = json!({
            "type": "mouseWheel", "x": point.x, "y": point.y, "deltaX": request.dx, "deltaY": request.dy
        });
        let _: Value = tab.call("Input.dispatchMouseEvent", params, until).await?;
    }
    let position = tab.run(POSITION, &[], until).await?;
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Scrolled { success: true, position, after_screenshot })
}

/// A click or key may close its own tab. The call then gets no reply, but the action was executed.
fn tolerate_close<T>(result: Result<T, ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error) if error.code == ErrorCode::NoSuchTab => Ok(()),
        result => result.map(drop),
    }
}

async fn point_of(
    context: &Context,
    selector: Option<&str>,
    reference: Option<&str>,
) -> Result<Point, ApiError> {
    match (selector, reference) {
        (_, Some(reference)) => point_of_ref(context, reference).await,
        (selector, None) => context.tab.run(ELEMENT, &[json!(selector), json!("point")], context.until).await,
    }
}

fn element(context: &Context, reference: &str) -> Result<Element, ApiError> {
    let known = parse_ref(reference).and_then(|number| context.tab.state().refs.get(&number).cloned());
    known.ok_or_else(|| {
        let short: String = reference.chars().take(20).collect();
        ApiError::new(ErrorCode::StaleRef, format!("{short} is not in the tab's last snapshot"))
    })
}

/// The centre of the element, in coordinates of the tab's viewport.
async fn point_of_ref(context: &Context, reference: &str) -> Result<Point, ApiError> {
    #[derive(Deserialize)]
    struct Quads {
        quads: Vec<[f64; 8]>,
    }
    context.tab.refuse_if_crashed()?;
    let Element { session, backend_node } = element(context, reference)?;
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

async fn focus_ref(context: &Context, reference: &str, purpose: &str) -> Result<(), ApiError> {
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
    let Element { session, backend_node } = element(context, reference)?;
    let node = json!({ "backendNodeId": backend_node });
    let resolved: Resolved =
        in_session(context, &session, "DOM.resolveNode", &node).await.map_err(as_element)?;
    let object = resolved.object.object_id;
    let params = json!({
        "functionDeclaration": ELEMENT, "objectId": object, "returnByValue": true,
        "arguments": [{ "value": null }, { "value": purpose }],
    });
    let result: ScriptResult = in_session(context, &session, "Runtime.callFunctionOn", &params).await?;
    let _: Value =
        in_session(context, &session, "Runtime.releaseObject", &json!({ "objectId": object })).await?;
    result.value::<Value>().map(drop)
}

async fn in_session<T: DeserializeOwned>(
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
