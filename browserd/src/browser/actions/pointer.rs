//! Mouse input.

use super::capture::after_screenshot;
use super::target::{point_of, tolerate_close};
use super::{Context, SendOnDrop};
use crate::api::error::ApiError;
use crate::api::types::{
    Acted, Button, Click, Drag, Hover, Modifier, Mouse, MouseAction, Place, Point, Scroll, Scrolled,
};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use std::time::Duration;

const MOUSE_EVENT: &str = "Input.dispatchMouseEvent";
const DRAG_EVENT: &str = "Input.dispatchDragEvent";
const INTERCEPT: &str = "Input.setInterceptDrags";
const VIEWPORT_MIDDLE: &str = "function() { return { x: innerWidth / 2, y: innerHeight / 2 } }";
/// Scrolling takes effect one or two frames later. The timeout covers pages that draw no frames.
const POSITION: &str = "function() {
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const wait = new Promise((done) => setTimeout(done, 100));
    return Promise.race([frame().then(frame), wait]).then(() => ({ x: scrollX, y: scrollY }));
}";
const WATCH_DRAG: &str = include_str!("../js/watch_drag.js");
/// Whether the last move started to drag an element, after the page's listeners have run.
const DRAG_STARTED: &str =
    "function() { return new Promise((done) => setTimeout(() => done(globalThis.browserdDrag === true))) }";
/// How long Chromium may take to report a drag that the page has started.
const DRAG_REPORT: Duration = Duration::from_secs(5);
/// Moves between two points of a drag. Pages start a drag only after several moves.
const STEPS: u32 = 8;

/// The pointer of a tab.
#[derive(Debug, Default)]
pub(crate) struct Pointer {
    at: Point,
    /// The button that `mouse` or `drag` holds down.
    held: Option<Button>,
    /// What the page drags, as Chromium reported it.
    pub(crate) dragged: Option<Value>,
}

/// CDP's bit set.
fn modifier_bits(modifiers: &[Modifier]) -> u32 {
    let bit = |modifier: &Modifier| match modifier {
        Modifier::Alt => 1,
        Modifier::Control => 2,
        Modifier::Meta => 4,
        Modifier::Shift => 8,
    };
    modifiers.iter().fold(0, |bits, modifier| bits | bit(modifier))
}

fn button_bit(button: Button) -> u32 {
    match button {
        Button::Left => 1,
        Button::Right => 2,
        Button::Middle => 4,
    }
}

pub(crate) async fn click(context: &Context, request: &Click) -> Result<Acted, ApiError> {
    let _turn = context.turn().await?;
    let point = point_of(context, &request.place()).await?;
    context.tab.state().pointer.at = point;
    let modifiers = modifier_bits(&request.modifiers);
    let mouse = |kind: &str, count: u8| {
        let pressed = if kind == "mouseMoved" { json!("none") } else { json!(request.button) };
        let params = json!({
            "type": kind, "x": point.x, "y": point.y, "button": pressed, "clickCount": count, "modifiers": modifiers
        });
        context.tab.call::<Value>(MOUSE_EVENT, params, context.until)
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

pub(crate) async fn hover(context: &Context, request: &Hover) -> Result<Acted, ApiError> {
    let _turn = context.turn().await?;
    let point = point_of(context, &request.place()).await?;
    Hand::new(context, &request.modifiers).move_to(point).await?;
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Acted { success: true, point: Some(point), after_screenshot })
}

pub(crate) async fn mouse(context: &Context, request: &Mouse) -> Result<Acted, ApiError> {
    let _turn = context.turn().await?;
    let hand = Hand::new(context, &request.modifiers);
    if let Some(place) = request.place() {
        hand.move_to(point_of(context, &place).await?).await?;
    }
    let count = request.count.unwrap_or(1);
    match request.action {
        MouseAction::Move => {}
        MouseAction::Down => hand.press(request.button, count).await?,
        MouseAction::Up => tolerate_close(hand.release(request.button, count).await)?,
    }
    let point = context.tab.state().pointer.at;
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Acted { success: true, point: Some(point), after_screenshot })
}

pub(crate) async fn drag(context: &Context, request: &Drag) -> Result<Acted, ApiError> {
    let _turn = context.turn().await?;
    let hand = Hand::new(context, &request.modifiers);
    let from = point_of(context, &request.from).await?;
    hand.move_to(from).await?;
    // A drag whose caller disconnects does not leave the button down.
    let release = SendOnDrop::new(context, hand.end_of_drag(request.button));
    let moved = async {
        hand.press(request.button, 1).await?;
        for point in &request.path {
            hand.move_to(*point).await?;
        }
        // Only now: scrolling the target into view must not move the start.
        let to = point_of(context, &request.to).await?;
        let start = context.tab.state().pointer.at;
        for step in 1..=STEPS {
            let part = f64::from(step) / f64::from(STEPS);
            let at = |from: f64, to: f64| from + (to - from) * part;
            hand.move_to(Point { x: at(start.x, to.x), y: at(start.y, to.y) }).await?;
        }
        Ok(to)
    };
    let moved: Result<Point, ApiError> = moved.await;
    release.forget();
    let released = hand.release(request.button, 1).await;
    let point = moved?;
    tolerate_close(released)?;
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Acted { success: true, point: Some(point), after_screenshot })
}

/// Moves, presses and releases, one event after the other.
///
/// While a button is held, an element that the page drags (HTML drag and drop) is not given to the system, which headless
/// Chromium does not have. Chromium reports it instead, and the moves and the release become drag events.
struct Hand<'a> {
    context: &'a Context,
    modifiers: u32,
}

impl<'a> Hand<'a> {
    fn new(context: &'a Context, modifiers: &[Modifier]) -> Self {
        Self { context, modifiers: modifier_bits(modifiers) }
    }

    async fn send(&self, method: &str, params: Value) -> Result<(), ApiError> {
        self.context.tab.call::<Value>(method, params, self.context.until).await.map(drop)
    }

    fn mouse_event(&self, kind: &str, button: Option<Button>, buttons: u32, count: u8, at: Point) -> Value {
        let button = button.map_or(json!("none"), |button| json!(button));
        json!({
            "type": kind, "x": at.x, "y": at.y, "button": button, "buttons": buttons, "clickCount": count,
            "modifiers": self.modifiers,
        })
    }

    fn drag_event(&self, kind: &str, data: &Value, at: Point) -> Value {
        json!({ "type": kind, "x": at.x, "y": at.y, "data": data, "modifiers": self.modifiers })
    }

    async fn move_to(&self, point: Point) -> Result<(), ApiError> {
        let (held, dragged) = {
            let pointer = &mut self.context.tab.state().pointer;
            pointer.at = point;
            (pointer.held, pointer.dragged.clone())
        };
        if let Some(data) = dragged {
            return self.send(DRAG_EVENT, self.drag_event("dragOver", &data, point)).await;
        }
        let buttons = held.map_or(0, button_bit);
        self.send(MOUSE_EVENT, self.mouse_event("mouseMoved", held, buttons, 0, point)).await?;
        if held == Some(Button::Left)
            && let Some(data) = self.started_drag().await?
        {
            self.send(DRAG_EVENT, self.drag_event("dragEnter", &data, point)).await?;
            self.send(DRAG_EVENT, self.drag_event("dragOver", &data, point)).await?;
        }
        Ok(())
    }

    /// What the page drags since the last move. Chromium's report follows the page's event a moment later.
    async fn started_drag(&self) -> Result<Option<Value>, ApiError> {
        let tab = &self.context.tab;
        let started: bool = tab.run(DRAG_STARTED, &[], self.context.until).await?;
        if !started {
            // In a frame with its own process only the report tells.
            return Ok(tab.state().pointer.dragged.clone());
        }
        let report = tab.wait_for(|state| state.pointer.dragged.clone());
        Ok(tokio::time::timeout(DRAG_REPORT, report).await.ok())
    }

    async fn press(&self, button: Button, count: u8) -> Result<(), ApiError> {
        let tab = &self.context.tab;
        if button == Button::Left {
            let _: Value = tab.run(WATCH_DRAG, &[], self.context.until).await?;
            self.send(INTERCEPT, json!({ "enabled": true })).await?;
        }
        let at = {
            let pointer = &mut tab.state().pointer;
            (pointer.held, pointer.dragged) = (Some(button), None);
            pointer.at
        };
        let bit = button_bit(button);
        self.send(MOUSE_EVENT, self.mouse_event("mousePressed", Some(button), bit, count, at)).await
    }

    async fn release(&self, button: Button, count: u8) -> Result<(), ApiError> {
        let (at, dragged) = {
            let pointer = &mut self.context.tab.state().pointer;
            pointer.held = None;
            (pointer.at, pointer.dragged.take())
        };
        let released = match dragged {
            Some(data) => self.send(DRAG_EVENT, self.drag_event("drop", &data, at)).await,
            None => {
                let event = self.mouse_event("mouseReleased", Some(button), 0, count, at);
                self.send(MOUSE_EVENT, event).await
            }
        };
        if button == Button::Left {
            let stopped = self.send(INTERCEPT, json!({ "enabled": false })).await;
            return released.and(stopped);
        }
        released
    }

    /// What ends a drag whose call was cancelled.
    fn end_of_drag(&self, button: Button) -> Vec<(&'static str, Value)> {
        let at = self.context.tab.state().pointer.at;
        vec![
            (MOUSE_EVENT, self.mouse_event("mouseReleased", Some(button), 0, 1, at)),
            (INTERCEPT, json!({ "enabled": false })),
        ]
    }
}

pub(crate) async fn scroll(context: &Context, request: &Scroll) -> Result<Scrolled, ApiError> {
    let _turn = context.turn().await?;
    let (tab, until) = (&context.tab, context.until);
    let Scroll { x, y, selector, reference, .. } = request;
    let place = Place { x: *x, y: *y, selector: selector.clone(), reference: reference.clone() };
    let point = match place == Place::default() {
        true => tab.run(VIEWPORT_MIDDLE, &[], until).await?,
        false => point_of(context, &place).await?,
    };
    if request.dx != 0.0 || request.dy != 0.0 {
        let params = json!({
            "type": "mouseWheel", "x": point.x, "y": point.y, "deltaX": request.dx, "deltaY": request.dy
        });
        let _: Value = tab.call(MOUSE_EVENT, params, until).await?;
    }
    let position = tab.run(POSITION, &[], until).await?;
    let after_screenshot = after_screenshot(context, request).await?;
    Ok(Scrolled { success: true, position, after_screenshot })
}
