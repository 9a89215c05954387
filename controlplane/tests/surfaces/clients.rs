//! The clients that people use, unchanged, through the relay to a real browserd with Chromium.

use crate::rig::{RealBrowser, Rig, repository};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const SCOPES: [&str; 3] = ["read", "write", "cdp"];

/// The HTTP form and the WebSocket form of a new session's address.
fn addresses(rig: &Rig) -> (String, String) {
    let (key, _) = rig.key("a", &SCOPES);
    let session = rig.open(&key);
    let path = format!("/v1/sessions/{session}/cdp-address");
    let answer = rig.remote("POST", &path, Some(&key), Some(json!({})));
    assert_eq!(answer.status, 201, "{answer:?}");
    (answer.text("http_url"), answer.text("cdp_url"))
}

/// A site with one page.
fn site() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let page = "<title>through the relay</title><button onclick=\"document.title='pressed'\">press</button>";
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{page}",
                    page.len()
                );
            });
        }
    });
    address
}

fn script(program: &str, text: &str, arguments: &[&str], uid: Option<u32>) {
    let folder = repository().join("browserd/tests/clients");
    let mut command = Command::new(program);
    command.args(["--input-type=module", "-"]).args(arguments).current_dir(folder).stdin(Stdio::piped());
    if let Some(uid) = uid {
        command.uid(uid).gid(uid).env("HOME", "/nonexistent");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("all is well"), "{said}");
}

const PLAYWRIGHT: &str = r#"
import assert from "node:assert/strict";
import { chromium } from "playwright-core";
const [endpoint, site] = process.argv.slice(2);
const browser = await chromium.connectOverCDP(endpoint, { timeout: 0 });
const context = await browser.newContext();
context.setDefaultTimeout(0);
const page = await context.newPage();
await page.goto(site);
assert.equal(await page.title(), "through the relay");
await page.click("button");
assert.equal(await page.title(), "pressed");
assert.equal((await page.screenshot()).subarray(1, 4).toString(), "PNG");
await context.close();
await browser.close();
console.log("all is well");
"#;

const PUPPETEER: &str = r#"
import assert from "node:assert/strict";
import puppeteer from "puppeteer-core";
const [endpoint, site] = process.argv.slice(2);
const how = endpoint.startsWith("ws") ? { browserWSEndpoint: endpoint } : { browserURL: endpoint };
const browser = await puppeteer.connect({ ...how, protocolTimeout: 240000 });
const page = await browser.newPage();
await page.goto(site);
await page.click("button");
assert.equal(await page.title(), "pressed");
await page.close();
await browser.disconnect();
console.log("all is well");
"#;

#[test]
fn playwright_by_both_forms_of_the_address_and_from_another_user() {
    let real = RealBrowser::start();
    let rig = Rig::over(real.browser.clone(), |_| {});
    let (http, socket) = addresses(&rig);
    let site = format!("http://{}/", site());
    script("node", PLAYWRIGHT, &[&http, &site], None);
    script("node", PLAYWRIGHT, &[&socket, &site], None);
    if nix::unistd::geteuid().is_root() {
        script("node", PLAYWRIGHT, &[&socket, &site], Some(65534));
    }
}

#[test]
fn puppeteer_by_a_websocket() {
    let real = RealBrowser::start();
    let rig = Rig::over(real.browser.clone(), |_| {});
    let (_, socket) = addresses(&rig);
    script("node", PUPPETEER, &[&socket, &format!("http://{}/", site())], None);
}
