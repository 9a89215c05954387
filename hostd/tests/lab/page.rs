//! A page in the browser of a clone without browserd.

use super::LIMIT;
use launcher::cdp::Connection;
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The browser of a clone, over its debugging socket.
pub struct Page {
    cdp: Connection,
    session: String,
}

impl Page {
    /// Open a page in the browser at this endpoint.
    pub fn open(endpoint: &str) -> Page {
        let path = endpoint.strip_prefix("cdp+unix://").unwrap_or_else(|| panic!("{endpoint}"));
        let stream = UnixStream::connect(path).expect("the browser's socket");
        let write = OwnedFd::from(stream.try_clone().expect("a copy"));
        let mut cdp = Connection::new(stream.into(), write);
        let target = cdp.call("Target.createTarget", json!({ "url": "about:blank" }), LIMIT).expect("a page");
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = cdp.call("Target.attachToTarget", attach, LIMIT).expect("a session");
        let session = session["sessionId"].as_str().expect("a session's name").to_owned();
        Page { cdp, session }
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.cdp
            .call_in(Some(&self.session), method, params, LIMIT)
            .unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Load a page and return its title, or an empty title and the error if it cannot be loaded in time.
    pub fn load(&mut self, url: &str, patience: Duration) -> (String, String) {
        self.call("Page.enable", json!({}));
        let reply =
            match self.cdp.call_in(Some(&self.session), "Page.navigate", json!({ "url": url }), patience) {
                Ok(reply) => reply,
                Err(error) => {
                    self.call("Page.stopLoading", json!({}));
                    return (String::new(), error.to_string());
                }
            };
        if let Some(error) = reply["errorText"].as_str() {
            return (String::new(), error.to_owned());
        }
        self.cdp.wait_event("Page.loadEventFired", LIMIT).expect("the page is loaded");
        let title = self.call("Runtime.evaluate", json!({ "expression": "document.title" }));
        (title["result"]["value"].as_str().unwrap_or_default().to_owned(), String::new())
    }

    /// The value of a script in the page.
    pub fn evaluate(&mut self, script: &str) -> Value {
        let params = json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{script}: {answer}");
        answer["result"]["value"].clone()
    }

    /// A screenshot of the page as PNG, in base64.
    pub fn screenshot(&mut self) -> String {
        self.call("Page.captureScreenshot", json!({ "format": "png" }))["data"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}
