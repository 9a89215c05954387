//! The confined browser works and stays within its folders: with the real Chromium, as root and as an ordinary user.

mod common;

use std::path::Path;
use std::time::Duration;

use common::*;
use launcher::chromium::Flavor;
use launcher::{Browser, Launcher};
use sandbox::{Layer, LayerState};
use serde_json::json;

fn start(setup: &Setup, flavor: Flavor, arguments: &[&str]) -> Browser {
    let launcher = Launcher::new(setup.config.clone()).flavor(flavor);
    launcher
        .arguments(arguments.iter().chain(&["--headless"]))
        .expect("arguments")
        .launch()
        .unwrap_or_else(|error| panic!("{error}"))
}

fn shell(setup: &Setup) -> Browser {
    start(setup, Flavor::HeadlessShell, &[])
}

fn hello(_: &str, _: std::net::SocketAddr) -> Vec<u8> {
    html("<p id=marker>page of the allowed server</p>")
}

#[test]
fn a_file_address_shows_only_the_synthetic_passwd() {
    as_root_and_as_user("a_file_address_shows_only_the_synthetic_passwd", || {
        let setup = Setup::new();
        let output = setup.run(&["--headless", "--dump-dom", "file:///etc/passwd"]);
        let shown = text(&output.stdout);
        let names: Vec<&str> = shown
            .lines()
            .filter_map(|line| line.split_once(":x:"))
            .map(|(name, _)| name.rsplit('>').next().unwrap_or(name))
            .collect();
        assert_eq!(names, ["root", "browser", "nobody"], "{shown}\n{}", text(&output.stderr));
        for secret in ["/etc/shadow", "/root", "/etc/hostname", LAUNCHER] {
            let shown = text(&setup.run(&["--headless", "--dump-dom", &format!("file://{secret}")]).stdout);
            assert!(
                !shown.contains("<pre") && !shown.contains("$6$") && !shown.contains("addRow"),
                "{secret}: {shown}"
            );
        }
    });
}

#[test]
fn screenshots_are_written_only_to_the_media_folder() {
    as_root_and_as_user("screenshots_are_written_only_to_the_media_folder", || {
        let setup = Setup::new();
        let page = "data:text/html,<h1>picture</h1>";
        let picture = setup.media().join("test.png");
        let output = setup.run(&["--headless", &format!("--screenshot={}", picture.display()), page]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(is_png(&std::fs::read(&picture).expect("the screenshot")));

        let output = setup.run(&["--headless", "--screenshot=/etc/test.png", page]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            text(&output.stderr).contains("/etc/test.png: the browser cannot write there"),
            "{}",
            text(&output.stderr)
        );
        assert!(!Path::new("/etc/test.png").exists());

        let pdf = setup.media().join("page.pdf");
        let output = setup.run(&["--headless", &format!("--print-to-pdf={}", pdf.display()), page]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(std::fs::read(&pdf).expect("the PDF").starts_with(b"%PDF-"));
    });
}

#[test]
fn only_the_allowed_server_is_reached() {
    as_root_and_as_user("only_the_allowed_server_is_reached", || {
        let allowed = Server::start(hello);
        let other = Server::start(hello);
        let setup = Setup::new().allowing(&allowed);
        let shown = text(&setup.run(&["--headless", "--dump-dom", &allowed.url("/")]).stdout);
        assert!(shown.contains("page of the allowed server"), "{shown}");
        let shown = text(&setup.run(&["--headless", "--dump-dom", &other.url("/")]).stdout);
        assert!(shown.contains("egress proxy: 127.0.0.1 is denied"), "{shown}");
        assert_eq!(other.visits(), 0);
    });
}

#[test]
fn every_layer_and_chromiums_own_sandbox_are_on() {
    as_root_and_as_user("every_layer_and_chromiums_own_sandbox_are_on", || {
        let setup = Setup::new();
        for flavor in [Flavor::Full, Flavor::HeadlessShell] {
            let mut browser = start(&setup, flavor, &[]);
            assert_eq!(browser.chromium().flavor, flavor);
            assert!(browser.version().contains("Chrome/"), "{}", browser.version());
            for (layer, state) in browser.layers() {
                let not_for_users = layer == Layer::Identity && !is_root();
                assert!(
                    state == LayerState::On || (not_for_users && state == LayerState::Off),
                    "{layer}: {state:?}"
                );
            }
            let proof = browser.renderer().expect("proof").clone();
            assert!(proof.own_seccomp_filters >= 1 && proof.user_namespace != 0);
            if flavor == Flavor::Full {
                let cdp = browser.cdp();
                let page = Page::open(cdp, "chrome://sandbox");
                let status = page.evaluate(cdp, "document.body.innerText");
                assert!(status.as_str().expect("text").contains("You are adequately sandboxed"), "{status}");
            }
            let (pid, guard) = (browser.pid(), browser.guard_pid());
            stop(browser);
            assert!(!is_alive(pid) && !is_alive(guard), "the browser is gone");
        }
    });
}

#[test]
fn a_pdf_is_printed_over_the_pipe() {
    as_root_and_as_user("a_pdf_is_printed_over_the_pipe", || {
        let mut browser = shell(&Setup::new());
        let cdp = browser.cdp();
        let page = Page::open(cdp, "data:text/html,<h1>print me</h1>");
        let pdf = page.call(cdp, "Page.printToPDF", json!({}));
        assert!(base64(pdf["data"].as_str().expect("data")).starts_with(b"%PDF-"));
        stop(browser);
    });
}

fn download(path: &str, _: std::net::SocketAddr) -> Vec<u8> {
    match path {
        "/file" => b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Disposition: attachment; filename=report.bin\r\nContent-Length: 5\r\nConnection: close\r\n\r\n12345".to_vec(),
        _ => html("<a id=link href=/file>download</a>"),
    }
}

#[test]
fn downloads_are_written_only_to_their_folder() {
    as_root_and_as_user("downloads_are_written_only_to_their_folder", || {
        let server = Server::start(download);
        let setup = Setup::new().allowing(&server);
        let mut browser = shell(&setup);
        let cdp = browser.cdp();
        let page = Page::open(cdp, &server.url("/"));
        let mut into = |folder: &Path| {
            let behavior = json!({ "behavior": "allow", "downloadPath": folder, "eventsEnabled": true });
            cdp.call("Browser.setDownloadBehavior", behavior, LIMIT).expect("behavior");
            page.evaluate(cdp, "document.getElementById('link').click()");
            loop {
                let event = cdp.wait_event("Browser.downloadProgress", LIMIT).expect("progress");
                match event["params"]["state"].as_str() {
                    Some("inProgress") => continue,
                    state => return state.expect("state").to_owned(),
                }
            }
        };
        assert_eq!(into(&setup.downloads()), "completed");
        assert_eq!(std::fs::read(setup.downloads().join("report.bin")).expect("the file"), b"12345");
        // This user can write to the folder outside, but the browser does not see it.
        let elsewhere = setup.folder.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).expect("mkdir");
        assert_eq!(into(&elsewhere), "canceled");
        assert_eq!(into(Path::new("/etc")), "canceled");
        assert_eq!(std::fs::read_dir(&elsewhere).expect("list").count(), 0);
        assert!(!Path::new("/etc/report.bin").exists());
        stop(browser);
    });
}

#[test]
fn a_hidden_file_cannot_be_uploaded() {
    as_root_and_as_user("a_hidden_file_cannot_be_uploaded", || {
        let setup = Setup::new();
        let secret = setup.folder.path().join("id_test");
        std::fs::write(&secret, "secret key").expect("write");
        let shown = setup.media().join("shown.txt");
        std::fs::write(&shown, "for all").expect("write");
        let mut browser = shell(&setup);
        let cdp = browser.cdp();
        let page = Page::open(cdp, "data:text/html,<input type=file id=f>");
        let mut upload = |path: &Path| {
            let root = page.call(cdp, "DOM.getDocument", json!({}))["root"]["nodeId"].clone();
            let input =
                page.call(cdp, "DOM.querySelector", json!({ "nodeId": root, "selector": "#f" }))["nodeId"]
                    .clone();
            page.call(cdp, "DOM.setFileInputFiles", json!({ "nodeId": input, "files": [path] }));
            let read = "document.getElementById('f').files[0].text().then(text => 'read: ' + text, error => 'failed: ' + error.name)";
            page.evaluate(cdp, read).as_str().expect("text").to_owned()
        };
        assert_eq!(upload(&shown), "read: for all", "a visible file can be uploaded");
        for hidden in [secret.as_path(), Path::new("/etc/shadow"), Path::new("/proc/1/root/etc/shadow")] {
            let got = upload(hidden);
            assert!(got.starts_with("failed: Not"), "{}: {got}", hidden.display());
        }
        stop(browser);
    });
}

#[test]
fn text_is_drawn_with_fonts() {
    as_root_and_as_user("text_is_drawn_with_fonts", || {
        let mut browser = shell(&Setup::new());
        let cdp = browser.cdp();
        let page = Page::open(
            cdp,
            "data:text/html;charset=utf-8,<body style='font:40px DejaVu Sans'>Fonts: äß Ωλ Жд 123</body>",
        );
        // Without fonts every letter has the same width, or none.
        let width = |cdp: &mut _, letters: &str| {
            let script = format!(
                "(() => {{ const c = document.createElement('canvas').getContext('2d'); c.font = '40px DejaVu Sans'; return c.measureText('{letters}').width }})()"
            );
            page.evaluate(cdp, &script).as_f64().expect("a width")
        };
        let (narrow, wide, greek) = (width(cdp, "iiii"), width(cdp, "WWWW"), width(cdp, "ΩΩΩΩ"));
        assert!(narrow > 10.0 && wide > 2.0 * narrow && greek > narrow, "{narrow} {wide} {greek}");
        let fonts = page.evaluate(cdp, "document.fonts.check('40px DejaVu Sans')");
        assert_eq!(fonts, json!(true));
        let picture = page.screenshot(cdp);
        assert!(is_png(&picture));
        if let Ok(path) = std::env::var("LAUNCHER_TEST_PICTURE") {
            std::fs::write(path, &picture).expect("write the picture");
        }
        stop(browser);
    });
}

#[test]
fn webgl_works_in_software() {
    as_root_and_as_user("webgl_works_in_software", || {
        let setup = Setup::new();
        for flavor in [Flavor::HeadlessShell, Flavor::Full] {
            let mut browser = start(&setup, flavor, &[]);
            let cdp = browser.cdp();
            let page = Page::open(cdp, "data:text/html,<canvas id=c></canvas>");
            let script = "(() => {
                const gl = document.getElementById('c').getContext('webgl');
                if (!gl) return 'none';
                const info = gl.getExtension('WEBGL_debug_renderer_info');
                gl.clearColor(1, 0.5, 0, 1); gl.clear(gl.COLOR_BUFFER_BIT);
                const pixel = new Uint8Array(4); gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
                return gl.getParameter(info.UNMASKED_RENDERER_WEBGL) + ' ' + [...pixel].join();
            })()";
            let got = page.evaluate(cdp, script);
            let got = got.as_str().expect("text");
            assert!(got.contains("SwiftShader") && got.ends_with("255,128,0,255"), "{flavor:?}: {got}");
            stop(browser);
        }
    });
}

fn redirecting(path: &str, own: std::net::SocketAddr) -> Vec<u8> {
    match path.split_once("?to=") {
        Some(("/redirect", to)) => format!(
            "HTTP/1.1 302 Found\r\nLocation: http://{to}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .into_bytes(),
        _ => html(&format!("<p>served by {own}</p>")),
    }
}

#[test]
fn redirects_subresources_and_websockets_are_denied_alike() {
    as_root_and_as_user("redirects_subresources_and_websockets_are_denied_alike", || {
        let allowed = Server::start(redirecting);
        let denied = Server::start(redirecting);
        let setup = Setup::new().allowing(&allowed);
        let mut browser = shell(&setup);
        let cdp = browser.cdp();
        let page = Page::open(cdp, &allowed.url("/"));
        let to = denied.address;
        page.evaluate(cdp, &format!("new Promise(done => {{ const i = new Image(); i.onload = i.onerror = () => done(1); i.src = 'http://{to}/picture' }})"));
        page.evaluate(
            cdp,
            &format!("fetch('http://{to}/fetch', {{mode: 'no-cors'}}).then(() => 1, () => 2)"),
        );
        page.evaluate(cdp, &format!("fetch('/redirect?to={to}').then(() => 1, () => 2)"));
        page.evaluate(cdp, &format!("new Promise(done => {{ const s = new WebSocket('ws://{to}/socket'); s.onopen = () => done(1); s.onerror = () => done(2) }})"));
        // Names and other spellings of the same server.
        for host in [
            format!("localhost:{}", to.port()),
            format!("127.1:{}", to.port()),
            format!("[::ffff:127.0.0.1]:{}", to.port()),
            format!("0.0.0.0:{}", to.port()),
        ] {
            page.evaluate(
                cdp,
                &format!("fetch('http://{host}/name', {{mode: 'no-cors'}}).then(() => 1, () => 2)"),
            );
        }
        page.go(cdp, &allowed.url(&format!("/redirect?to={to}")));
        let shown = page.evaluate(cdp, "document.documentElement.innerText");
        assert!(shown.as_str().is_some_and(|text| text.contains("is denied")), "{shown}");
        assert_eq!(denied.visits(), 0, "nothing reached the denied server");

        // The same requests work with the allowed server, so the proxy denied them.
        page.go(cdp, &allowed.url("/"));
        let hello = page.evaluate(cdp, &format!("new Promise(done => {{ const s = new WebSocket('ws://{}/socket'); s.onmessage = m => done(m.data); s.onerror = () => done('error') }})", allowed.address));
        assert_eq!(hello, json!("hello"));
        let before = allowed.visits();
        page.evaluate(cdp, "fetch('/again').then(r => r.text())");
        assert!(allowed.visits() > before);
        stop(browser);
    });
}

#[test]
fn two_profiles_cannot_see_each_other() {
    as_root_and_as_user("two_profiles_cannot_see_each_other", || {
        let server = Server::start(hello);
        let setup = Setup::new().allowing(&server);
        let profile = |name: &str| setup.folder.path().join(name);
        let open = |name: &str| {
            let mut config = setup.config.clone();
            // For root, two browsers cannot share a folder.
            config.media = None;
            config.downloads = None;
            let launcher = Launcher::new(config).flavor(Flavor::HeadlessShell).profile(profile(name));
            launcher.launch().unwrap_or_else(|error| panic!("{error}"))
        };
        let (mut first, mut second) = (open("first"), open("second"));
        let page = Page::open(first.cdp(), &server.url("/"));
        page.evaluate(first.cdp(), "document.cookie = 'who=first; max-age=1000'; localStorage.who = 'first'");
        let other = Page::open(second.cdp(), &server.url("/"));
        assert_eq!(other.evaluate(second.cdp(), "document.cookie + localStorage.length"), json!("0"));
        // The other profile's files are not reachable by the host's path or through /proc.
        for path in [
            profile("first"),
            format!("/proc/{}/root", first.pid()).into(),
            format!("/proc/{}/environ", first.pid()).into(),
        ] {
            let error = other.go(second.cdp(), &format!("file://{}", path.display()));
            assert_eq!(error.as_deref(), Some("net::ERR_FILE_NOT_FOUND"), "{}", path.display());
        }
        // Each sees its own processes only.
        let listing = Page::open(second.cdp(), "file:///proc/")
            .evaluate(second.cdp(), "document.documentElement.outerHTML");
        let rows = listing.as_str().expect("a listing").split("addRow(\"");
        let processes = rows.filter(|row| row.starts_with(|first: char| first.is_ascii_digit())).count();
        assert!((2..40).contains(&processes), "only its own processes: {processes}");
        stop(first);
        stop(second);
        assert!(
            profile("first").join("Local State").exists() || profile("first").join("Default").exists(),
            "the profile was kept"
        );
    });
}

#[test]
fn a_dropped_handle_ends_the_browser() {
    as_root_and_as_user("a_dropped_handle_ends_the_browser", || {
        let browser = shell(&Setup::new());
        let (pid, guard) = (browser.pid(), browser.guard_pid());
        assert!(is_alive(pid) && is_alive(guard));
        drop(browser);
        eventually("the browser is gone", || !is_alive(pid) && !is_alive(guard));
    });
}

#[test]
fn the_browser_outlives_the_thread_that_started_it() {
    as_root_and_as_user("the_browser_outlives_the_thread_that_started_it", || {
        let mut browser = std::thread::spawn(|| shell(&Setup::new())).join().expect("thread");
        std::thread::sleep(Duration::from_millis(300));
        browser.cdp().call("Browser.getVersion", json!({}), LIMIT).expect("still there");
        stop(browser);
    });
}
