//! Keyboard input and the values of form controls.

use super::capture::after_screenshot;
use super::target::{on_element, on_element_script, tolerate_close};
use super::{Context, SendOnDrop};
use crate::api::error::{ApiError, ErrorCode};
use crate::api::types::{Acted, Press, SetValue, Type, ValueSet};
use crate::browser::keys::{self, Key};
use crate::browser::tab::left;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

const FOCUS: &str = on_element_script!("focus.js");
const SET_VALUE: &str = on_element_script!("set_value.js");
/// When a held key begins to repeat, and how often.
const REPEAT_DELAY: Duration = Duration::from_millis(500);
const REPEAT_INTERVAL: Duration = Duration::from_millis(33);

pub(crate) async fn type_text(context: &Context, request: &Type) -> Result<Acted, ApiError> {
    let _turn = context.turn().await?;
    let (selector, reference) = (request.selector.as_deref(), request.reference.as_deref());
    if selector.is_some() || reference.is_some() {
        let replace = json!(request.clear);
        let _: Value = on_element(context, selector, reference, FOCUS, &[replace]).await?;
    } else if request.clear {
        press_key(context, &keys::parse("Control+A").expect("a known key")).await?;
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
    match request.hold_ms {
        Some(time) => hold_key(context, &key, Duration::from_millis(time.into())).await?,
        None => {
            for _ in 0..request.repeat.unwrap_or(1) {
                press_key(context, &key).await?;
            }
        }
    }
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Acted { success: true, point: None, after_screenshot })
}

const KEY_EVENT: &str = "Input.dispatchKeyEvent";

fn key_down(key: &Key, is_repeat: bool) -> Value {
    let Key { key: name, code, windows_virtual_key_code: number, text, modifiers, commands } = key;
    json!({
        "type": if text.is_empty() { "rawKeyDown" } else { "keyDown" },
        "key": name, "code": code, "windowsVirtualKeyCode": number, "text": text,
        "modifiers": modifiers, "commands": commands, "autoRepeat": is_repeat,
    })
}

fn key_up(key: &Key) -> Value {
    let Key { key: name, code, windows_virtual_key_code: number, modifiers, .. } = key;
    json!({
        "type": "keyUp", "key": name, "code": code, "windowsVirtualKeyCode": number, "modifiers": modifiers,
    })
}

async fn press_key(context: &Context, key: &Key) -> Result<(), ApiError> {
    let call = |params| context.tab.call::<Value>(KEY_EVENT, params, context.until);
    tolerate_close(tokio::try_join!(call(key_down(key, false)), call(key_up(key))))
}

/// Holds the key down. It is released also if the call is cancelled meanwhile.
async fn hold_key(context: &Context, key: &Key, time: Duration) -> Result<(), ApiError> {
    if time >= left(context.until) {
        return Err(ApiError::new(ErrorCode::BadRequest, "hold_ms: longer than the call's deadline"));
    }
    let began = Instant::now();
    let call = |params| context.tab.call::<Value>(KEY_EVENT, params, context.until);
    let release = SendOnDrop::new(context, vec![(KEY_EVENT, key_up(key))]);
    let held = async {
        call(key_down(key, false)).await?;
        let mut next = began + REPEAT_DELAY;
        while next < began + time {
            tokio::time::sleep_until(next).await;
            call(key_down(key, true)).await?;
            next += REPEAT_INTERVAL;
        }
        tokio::time::sleep_until(began + time).await;
        Ok(())
    };
    let held = held.await;
    release.forget();
    tolerate_close(held.and(call(key_up(key)).await))
}

pub(crate) async fn set_value(context: &Context, request: &SetValue) -> Result<ValueSet, ApiError> {
    #[derive(Deserialize)]
    struct Control {
        value: String,
        #[serde(default)]
        values: Option<Vec<String>>,
        #[serde(default)]
        checked: Option<bool>,
    }
    let _turn = context.turn().await?;
    let SetValue { selector, reference, value, values, checked, .. } = request;
    let wanted = json!({ "value": value, "values": values, "checked": checked });
    let control: Control =
        on_element(context, selector.as_deref(), reference.as_deref(), SET_VALUE, &[wanted]).await?;
    let after_screenshot = after_screenshot(context, request).await?;
    let Control { value, values, checked } = control;
    Ok(ValueSet { success: true, value, values, checked, after_screenshot })
}
