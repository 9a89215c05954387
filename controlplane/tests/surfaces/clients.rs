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

const BROWSER_USE: &str = r"
import asyncio, os, sys
os.environ.update(ANONYMIZED_TELEMETRY='false')
from browser_use import BrowserProfile, BrowserSession

async def main(endpoint, site):
    profile = BrowserProfile(cdp_url=endpoint, enable_default_extensions=False)
    session = BrowserSession(browser_profile=profile)
    await session.start()
    await session.navigate_to(site)
    page = await session.get_current_page()
    await page.evaluate('() => document.querySelector(\'button\').click()')
    assert await page.evaluate('() => document.title') == 'pressed'
    await session.stop()
    print('all is well')

asyncio.run(main(*sys.argv[1:3]))
";

#[test]
fn browser_use_by_the_http_form_of_the_address() {
    let real = RealBrowser::start();
    let rig = Rig::over(real.browser.clone(), |_| {});
    let (http, _) = addresses(&rig);
    let python = repository().join(".cache/python-agents/bin/python");
    assert!(python.is_file(), "{} is missing: scripts/install-deps", python.display());
    let home = tempfile::tempdir().unwrap();
    let done = Command::new(python)
        .args(["-c", BROWSER_USE, &http, &format!("http://{}/", site())])
        .env("HOME", home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("all is well"), "{said}");
}

/// A client in a network of its own, which reaches the service only through a Unix socket that a forwarder serves, as a container
/// does: nothing but the address crosses.
#[test]
fn playwright_from_another_network_namespace() {
    if !nix::unistd::geteuid().is_root() {
        panic!("this test makes a network namespace: run it as root");
    }
    let real = RealBrowser::start();
    let rig = Rig::over(real.browser.clone(), |_| {});
    let (_, socket) = addresses(&rig);
    let forward = rig.folder.path().join("forward.sock");
    let (http, site) = (rig.http, format!("http://{}/", site()));
    let listener = std::os::unix::net::UnixListener::bind(&forward).unwrap();
    std::thread::spawn(move || {
        for inner in listener.incoming().flatten() {
            let outer = std::net::TcpStream::connect(http).unwrap();
            let (mut one, mut two) = (inner.try_clone().unwrap(), outer.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut one, &mut two));
            let (mut one, mut two) = (outer, inner);
            std::thread::spawn(move || std::io::copy(&mut one, &mut two));
        }
    });
    // Inside, the same address is served by a forwarder to the socket.
    let inside = format!(
        "import net from \"node:net\";\n\
         await new Promise((ready) => net.createServer((one) => {{ const two = net.connect({:?}); one.pipe(two).pipe(one); \
         one.on(\"error\", () => two.destroy()); two.on(\"error\", () => one.destroy()); }}).listen({}, \"127.0.0.1\", ready).unref());\n",
        forward.display().to_string(),
        http.port()
    );
    let folder = repository().join("browserd/tests/clients");
    let program = format!("ip link set lo up && exec node --input-type=module - {socket} {site}");
    let mut child = Command::new("unshare")
        .args(["--net", "sh", "-c", &program])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Imports are hoisted, so the forwarder comes first in the text only for the reader.
    child.stdin.take().unwrap().write_all((inside + PLAYWRIGHT).as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("all is well"), "{said}");
}
