//! Files for file inputs.

use super::capture::after_screenshot;
use super::target::{element_of, in_session, on_element, on_element_script, point_of, tolerate_close};
use super::{Context, SendOnDrop};
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{Acted, Place, Upload};
use crate::browser::tab::left;
use serde::Deserialize;
use serde_json::{Value, json};

const KIND: &str = on_element_script!("file_input.js");
const INTERCEPT: &str = "Page.setInterceptFileChooserDialog";
/// Finds the element of a selector and returns it as an object.
const LOCATE: &str = concat!(
    "function (selector) {\n",
    include_str!("../js/locate.js"),
    "return element.localName === 'label' && element.control ? element.control : element }"
);

/// A file chooser that a page opened.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileChooser {
    pub(crate) mode: String,
    #[serde(default)]
    pub(crate) backend_node_id: Option<i64>,
}

pub(crate) async fn upload(
    context: &Context,
    request: &Upload,
    paths: Vec<String>,
) -> Result<Acted, ApiError> {
    #[derive(Deserialize)]
    struct Kind {
        is_input: bool,
        multiple: bool,
    }
    let _turn = context.turn().await?;
    let (selector, reference) = (request.selector.as_deref(), request.reference.as_deref());
    let kind: Kind = on_element(context, selector, reference, KIND, &[]).await?;
    match kind.is_input {
        true => {
            refuse_several(&paths, kind.multiple)?;
            give_to_input(context, request, &paths).await?;
        }
        false => give_to_chooser(context, request, &paths).await?,
    }
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Acted { success: true, point: None, after_screenshot })
}

fn refuse_several(paths: &[String], multiple: bool) -> Result<(), ApiError> {
    match paths.len() > 1 && !multiple {
        true => Err(ApiError::new(ErrorCode::InvalidValue, "this file input takes one file")),
        false => Ok(()),
    }
}

async fn give_to_input(context: &Context, request: &Upload, paths: &[String]) -> Result<(), ApiError> {
    #[derive(Deserialize)]
    struct Returned {
        result: Object,
    }
    #[derive(Deserialize)]
    struct Resolved {
        object: Object,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Object {
        #[serde(default)]
        object_id: Option<String>,
    }
    let (session, object) = match &request.reference {
        Some(reference) => {
            let element = element_of(context, reference)?;
            let node = json!({ "backendNodeId": element.backend_node });
            let resolved: Resolved = in_session(context, &element.session, "DOM.resolveNode", &node).await?;
            // A label stands for its input.
            let params = json!({
                "functionDeclaration": LOCATE, "objectId": resolved.object.object_id, "arguments": [{ "value": null }],
            });
            let input: Returned =
                in_session(context, &element.session, "Runtime.callFunctionOn", &params).await?;
            (element.session, input.result.object_id)
        }
        None => {
            let world = context.tab.world(context.until).await?;
            let params = json!({
                "functionDeclaration": LOCATE, "executionContextId": world,
                "arguments": [{ "value": request.selector }],
            });
            let session = context.tab.session.clone();
            let input: Returned = in_session(context, &session, "Runtime.callFunctionOn", &params).await?;
            (session, input.result.object_id)
        }
    };
    let object = object.ok_or_else(|| ApiError::new(ErrorCode::StaleRef, "the element is gone"))?;
    if paths.is_empty() {
        // CDP's method ignores an empty list.
        let params = json!({
            "objectId": object,
            "functionDeclaration": "function() { this.value = '';
                this.dispatchEvent(new Event('input', { bubbles: true, composed: true }));
                this.dispatchEvent(new Event('change', { bubbles: true })); }",
        });
        return in_session::<Value>(context, &session, "Runtime.callFunctionOn", &params).await.map(drop);
    }
    let params = json!({ "files": paths, "objectId": object });
    in_session::<Value>(context, &session, "DOM.setFileInputFiles", &params).await?;
    let object = json!({ "objectId": object });
    let _ = in_session::<Value>(context, &session, "Runtime.releaseObject", &object).await;
    Ok(())
}

/// Clicks the element and answers the file chooser that it opens.
async fn give_to_chooser(context: &Context, request: &Upload, paths: &[String]) -> Result<(), ApiError> {
    let tab = &context.tab;
    let Upload { selector, reference, .. } = request;
    let place = Place { selector: selector.clone(), reference: reference.clone(), ..Place::default() };
    let point = point_of(context, &place).await?;
    tab.update(|state| state.file_chooser = None);
    let _: Value = tab.call(INTERCEPT, json!({ "enabled": true }), context.until).await?;
    // Also if the call is cancelled or fails.
    let _stop = SendOnDrop::new(context, vec![(INTERCEPT, json!({ "enabled": false }))]);
    for kind in ["mousePressed", "mouseReleased"] {
        let params = json!({ "type": kind, "x": point.x, "y": point.y, "button": "left", "clickCount": 1 });
        tolerate_close(tab.call::<Value>("Input.dispatchMouseEvent", params, context.until).await)?;
    }
    let opened = tab.wait_for(|state| state.file_chooser.take());
    let chooser: FileChooser = tokio::time::timeout(left(context.until), opened).await.map_err(|_| {
        ApiError::new(
            ErrorCode::WaitTimeout,
            "the element is no file input, and a click on it opened no file chooser",
        )
    })?;
    refuse_several(paths, chooser.mode == "selectMultiple")?;
    let Some(node) = chooser.backend_node_id else {
        return Err(ApiError::new(
            ErrorCode::ElementNotEditable,
            "the page opened a file chooser without a file input (showOpenFilePicker), which cannot be answered",
        ));
    };
    let params = json!({ "files": paths, "backendNodeId": node });
    tab.call::<Value>("DOM.setFileInputFiles", params, context.until).await.map(drop)
}
