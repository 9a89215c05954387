//! Rewrites messages between a client and the browser that name files of the host.
//!
//! A client names folders and files of the host, which the browser does not see. Download folders are replaced by staging
//! folders of the sandbox; finished downloads are moved to the client's folder before the client receives the event that
//! reports them. Files for a file input are copied into the sandbox. Every other message passes unchanged.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use crate::downloads::Downloads;
use crate::uploads::Uploads;

/// The longest message that is searched. A message about files is short; parsing a long one would take many times its size
/// in memory.
const MAX_LENGTH: usize = 1 << 20;

/// What happens to a message of the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Pass,
    Replace(String),
    /// The browser does not get the message; the client gets this answer.
    Answer(String),
}

/// The files that messages name.
#[derive(Debug)]
pub(crate) struct Rewriter {
    downloads: Mutex<Downloads>,
    uploads: Mutex<Uploads>,
    /// All traffic goes through the launcher's proxy, which has one upstream proxy at most.
    one_proxy: bool,
}

impl Rewriter {
    pub(crate) fn new(downloads: Downloads, uploads: Uploads, one_proxy: bool) -> Rewriter {
        Rewriter { downloads: Mutex::new(downloads), uploads: Mutex::new(uploads), one_proxy }
    }

    pub(crate) fn downloads(&self) -> MutexGuard<'_, Downloads> {
        self.downloads.lock().expect("no holder of the lock panics")
    }

    /// Whether a message may be about files, so that handling it may take long.
    pub(crate) fn concerns(message: &[u8]) -> bool {
        const WORDS: [&[u8]; 5] = [
            b"setDownloadBehavior",
            b"setFileInputFiles",
            b"loadUnpacked",
            b"createBrowserContext",
            b"downloadProgress",
        ];
        message.len() <= MAX_LENGTH && WORDS.iter().any(|word| contains(message, word))
    }

    /// Handles a message of the client.
    pub(crate) fn of_client(&self, message: &[u8]) -> Action {
        let Some(mut message) = parse(message) else {
            return Action::Pass;
        };
        match message["method"].as_str() {
            Some("Browser.setDownloadBehavior" | "Page.setDownloadBehavior") => {
                self.download_folder(message).map_or(Action::Pass, Action::Replace)
            }
            Some("DOM.setFileInputFiles") => {
                let files =
                    message["params"]["files"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
                let result = self.bring_in(files);
                result.map_or_else(
                    |problem| refuse(&message, &problem),
                    |()| Action::Replace(message.to_string()),
                )
            }
            Some("Extensions.loadUnpacked") => {
                let result = self.bring_in(std::slice::from_mut(&mut message["params"]["path"]));
                result.map_or_else(
                    |problem| refuse(&message, &problem),
                    |()| Action::Replace(message.to_string()),
                )
            }
            Some("Target.createBrowserContext") if self.one_proxy && names_a_proxy(&message) => refuse(
                &message,
                "a proxy of one context is not possible in the sandbox; set it for the whole browser, at its launch",
            ),
            _ => Action::Pass,
        }
    }

    /// The message with a staging folder, if it names a folder that the browser does not see.
    fn download_folder(&self, mut message: Value) -> Option<String> {
        let wanted = PathBuf::from(message["params"]["downloadPath"].as_str()?);
        let mut downloads = self.downloads();
        if downloads.sees(&wanted) {
            return None;
        }
        match downloads.stage(&wanted) {
            Ok(staging) => {
                message["params"]["downloadPath"] = json!(staging.to_str()?);
                Some(message.to_string())
            }
            // The browser gets the client's path, which it does not see, and cancels the downloads.
            Err(error) => {
                crate::say(&format!("downloads to {} are not possible: {error}", wanted.display()));
                None
            }
        }
    }

    /// Replaces the client's files by their copies in the sandbox.
    fn bring_in(&self, files: &mut [Value]) -> Result<(), String> {
        let mut uploads = self.uploads.lock().expect("no holder of the lock panics");
        for file in files {
            let Some(wanted) = file.as_str().map(PathBuf::from) else {
                continue;
            };
            let problem =
                |reason: String| format!("{} cannot be given to the browser: {reason}", wanted.display());
            let inside = uploads.bring_in(&wanted).map_err(|error| problem(error.to_string()))?;
            let inside = inside.to_str().ok_or_else(|| problem("its name is not valid UTF-8".into()))?;
            *file = json!(inside);
        }
        Ok(())
    }

    /// Handles a message of the browser. When a download is complete, moves it and returns the event with the client's
    /// path.
    pub(crate) fn of_browser(&self, message: &[u8]) -> Option<String> {
        let mut message = parse(message)?;
        let progress =
            matches!(message["method"].as_str()?, "Browser.downloadProgress" | "Page.downloadProgress");
        if !progress || message["params"]["state"] != "completed" {
            return None;
        }
        let mut downloads = self.downloads();
        downloads.move_and_report();
        let staged = Path::new(message["params"]["filePath"].as_str()?);
        let host_path = downloads.host_path(staged)?;
        message["params"]["filePath"] = json!(host_path.to_str()?);
        Some(message.to_string())
    }
}

/// Handles a message on a thread that may wait for files.
pub(crate) async fn without_blocking<T: Send + 'static>(
    rewriter: &Arc<Rewriter>,
    message: Vec<u8>,
    handle: fn(&Rewriter, &[u8]) -> T,
) -> Option<T> {
    let rewriter = Arc::clone(rewriter);
    tokio::task::spawn_blocking(move || handle(&rewriter, &message)).await.ok()
}

fn parse(message: &[u8]) -> Option<Value> {
    Rewriter::concerns(message).then(|| serde_json::from_slice(message).ok())?
}

fn names_a_proxy(message: &Value) -> bool {
    message["params"]["proxyServer"].as_str().is_some_and(|server| !server.is_empty())
}

/// The answer to a message that the browser does not get, in the form of the browser's own errors.
fn refuse(message: &Value, problem: &str) -> Action {
    let text = format!("browser-launcher: {problem}");
    let mut answer = json!({ "id": message["id"], "error": { "code": -32000, "message": text } });
    if let Some(session) = message.get("sessionId") {
        answer["sessionId"] = session.clone();
    }
    Action::Answer(answer.to_string())
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::blueprint::{STAGING, UPLOADS};

    pub(crate) fn rewriter(area: &Path) -> Rewriter {
        for name in ["in", "out"] {
            std::fs::create_dir(area.join(name)).expect("mkdir");
        }
        let downloads = Downloads::new(&area.join("out"), vec!["/shared".into()], None, None).expect("area");
        Rewriter::new(downloads, Uploads::new(area.join("in"), Vec::new(), Vec::new(), None), true)
    }

    fn changed(action: Action) -> Value {
        match action {
            Action::Replace(text) | Action::Answer(text) => serde_json::from_str(&text).expect("json"),
            Action::Pass => panic!("it was not changed"),
        }
    }

    #[test]
    fn a_finished_download_is_moved_to_the_folder_that_the_client_named() {
        let area = tempfile::tempdir().expect("folder");
        let wanted = tempfile::tempdir().expect("folder");
        let rewriter = rewriter(area.path());
        let ask = |path: &str| {
            json!({"id": 1, "method": "Browser.setDownloadBehavior", "params": {"behavior": "allowAndName", "downloadPath": path}}).to_string()
        };
        let seen = rewriter.of_client(ask("/shared/x").as_bytes());
        assert_eq!(seen, Action::Pass, "the folder is visible in the sandbox");
        assert_eq!(rewriter.of_client(b"{\"id\":2,\"method\":\"Page.enable\"}"), Action::Pass);
        let message = changed(rewriter.of_client(ask(wanted.path().to_str().expect("utf-8")).as_bytes()));
        assert_eq!(message["params"]["downloadPath"], format!("{STAGING}/0"));
        assert_eq!(message["params"]["behavior"], "allowAndName");

        std::fs::write(area.path().join("out/0/guid-1"), "content").expect("write");
        let event = |more: usize| {
            json!({"method": "Browser.downloadProgress", "params": {"guid": "guid-1", "state": "completed", "filePath": format!("{STAGING}/0/guid-1"), "more": "x".repeat(more)}}).to_string()
        };
        assert_eq!(rewriter.of_browser(event(MAX_LENGTH).as_bytes()), None, "too long");
        let message = rewriter.of_browser(event(0).as_bytes()).expect("changed");
        let message: Value = serde_json::from_str(&message).expect("json");
        assert_eq!(message["params"]["filePath"], wanted.path().join("guid-1").to_str().expect("utf-8"));
        assert_eq!(std::fs::read_to_string(wanted.path().join("guid-1")).expect("moved"), "content");
        assert!(!area.path().join("out/0/guid-1").exists());
    }

    #[test]
    fn files_of_the_client_are_copied_and_a_problem_is_answered() {
        let area = tempfile::tempdir().expect("folder");
        let home = tempfile::tempdir().expect("folder");
        let rewriter = rewriter(area.path());
        let file = home.path().join("photo.png");
        std::fs::write(&file, "picture").expect("write");
        let ask = |path: &Path| {
            json!({"id": 7, "sessionId": "S", "method": "DOM.setFileInputFiles", "params": {"files": [path], "objectId": "1"}}).to_string()
        };
        let message = changed(rewriter.of_client(ask(&file).as_bytes()));
        assert_eq!(message["params"]["files"], json!([format!("{UPLOADS}/0/photo.png")]));
        assert_eq!(message["params"]["objectId"], "1");
        let answer = changed(rewriter.of_client(ask(&home.path().join("absent")).as_bytes()));
        assert_eq!((&answer["id"], &answer["sessionId"]), (&json!(7), &json!("S")));
        let text = answer["error"]["message"].as_str().expect("text");
        assert!(text.contains("absent cannot be given to the browser"), "{text}");
    }

    /// The browser can write any message, but none of them brings a file in.
    #[test]
    fn a_message_of_the_browser_brings_nothing_in() {
        let area = tempfile::tempdir().expect("folder");
        let rewriter = rewriter(area.path());
        let message = r#"{"id":1,"method":"DOM.setFileInputFiles","params":{"files":["/etc/hostname"]}}"#;
        assert_eq!(rewriter.of_browser(message.as_bytes()), None);
        let message = r#"{"id":1,"method":"Browser.setDownloadBehavior","params":{"downloadPath":"/tmp"}}"#;
        assert_eq!(rewriter.of_browser(message.as_bytes()), None);
        for name in ["in", "out"] {
            assert_eq!(std::fs::read_dir(area.path().join(name)).expect("list").count(), 0);
        }
    }

    #[test]
    fn a_proxy_of_one_context_is_refused_with_the_reason() {
        let area = tempfile::tempdir().expect("folder");
        let rewriter = rewriter(area.path());
        let ask = |proxy: &str| {
            json!({"id": 3, "method": "Target.createBrowserContext", "params": {"proxyServer": proxy}})
                .to_string()
        };
        let answer = changed(rewriter.of_client(ask("http://proxy:80").as_bytes()));
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("at its launch")));
        assert_eq!(rewriter.of_client(ask("").as_bytes()), Action::Pass);
    }
}
