//! Who can use a clone's browserd: its owner with the secret, and neither a page in the clone nor code in Chromium's place.

use super::*;
use crate::daemon::Daemon;
use crate::life::made_as;
use browserd::api::types::{NewTab, Snapshot};
use hostd::api::{CreateResult, ListParams};
use hostd::client::Client;

/// The status of a request to the clone with these further header lines.
fn status(clone: &CloneInfo, path: &str, headers: &str) -> u16 {
    let mut stream = TcpStream::connect((clone.ip, 8080)).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {}:8080\r\n{headers}Connection: close\r\n\r\n", clone.ip);
    stream.write_all(request.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default()
}

async fn created(client: &Client, id: &str, home: &Home) -> CreateResult {
    let created = client.create(create(id)).await;
    created.unwrap_or_else(|error| panic!("create: {error:?}\n{}", home.log()))
}

#[test]
fn only_the_owner_gets_the_secret_and_nobody_is_served_without_it() {
    in_private_machine("access::only_the_owner_gets_the_secret_and_nobody_is_served_without_it", |lab| {
        let home = home_with(lab, &browserd());
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let first = created(&client, "secret", &home).await;
            let clone = &first.clone;
            let secret = first.secret.as_ref().expect("a secret").as_str().to_owned();
            assert_eq!(secret_of(clone), secret);
            let other = made(&client, "another", &home).await;
            assert_ne!(secret_of(&other), secret);

            // The probes need no secret. Everything else does, in the header or in the path.
            let bearer = |secret: &str| format!("Authorization: Bearer {secret}\r\n");
            for path in ["/healthz", "/readyz"] {
                assert_eq!(status(clone, path, ""), 200, "{path}");
            }
            let raw = clone.cdp_endpoint.as_deref().unwrap().split_once(&secret).unwrap().1.to_owned();
            for path in
                ["/v1/cookies", "/v1/health", "/json/version", "/openapi.json", "/nothing", raw.as_str()]
            {
                assert_eq!(status(clone, path, ""), 401, "{path}");
                assert_eq!(status(clone, path, &bearer(secret_of(&other))), 401, "{path}");
                assert_eq!(status(clone, &format!("/{}{path}", secret_of(&other)), ""), 401, "{path}");
            }
            assert_eq!(status(clone, "/v1/cookies", &bearer(&secret)), 200);
            assert_eq!(status(clone, &format!("/{secret}/v1/cookies"), ""), 200);
            assert!(upgraded(clone, &raw).starts_with("HTTP/1.1 401 "));

            // The same create returns it again, also after a restart of the daemon.
            assert_eq!(created(&client, "secret", &home).await.secret, first.secret);
            daemon.stop().await;
            let daemon = home.start().await;
            let client = daemon.client().await;
            assert_eq!(created(&client, "secret", &home).await.secret, first.secret);
            client_of(clone).tabs().await.unwrap();
            let listed = client.list(ListParams::default()).await.unwrap();
            assert!(
                listed.clones.iter().any(|seen| seen.cdp_endpoint == clone.cdp_endpoint),
                "the owner's list"
            );

            // It is in the record and nowhere else: no log, no audit line, no file of the clone, no argument or variable.
            let held = lab::files_with(home.path(), &secret);
            let record = home.path().join("state/records").join("slot-001.json");
            assert_eq!(held, [record]);
            let run = home.path().join("state/run").join(clone.name.as_str());
            let processes = lab::processes(&run);
            assert!(processes.len() > 4, "{processes:?}");
            for pid in processes.keys() {
                for file in ["cmdline", "environ"] {
                    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                    assert!(!String::from_utf8_lossy(&bytes).contains(&secret), "{file} of {pid}");
                }
            }
            end(daemon, &client, &[clone, &other]).await;
        });
    });
}

async fn end(daemon: Daemon, client: &Client, clones: &[&CloneInfo]) {
    for clone in clones {
        destroy(client, clone).await;
    }
    daemon.stop().await;
}

/// How a page leads a tab to another address. The last part of each script is a promise or a value.
const TRICKS: [(&str, &str); 6] = [
    ("window.open", "window.open(URL); 0"),
    ("location", "location = URL; 0"),
    (
        "meta refresh",
        "const meta = document.createElement('meta'); meta.httpEquiv = 'refresh';
        meta.content = '0;url=' + URL; document.head.append(meta); 0",
    ),
    (
        "link",
        "const link = document.createElement('a'); link.href = URL; document.body.append(link); link.click(); 0",
    ),
    (
        "form",
        "const form = document.createElement('form'); form.action = URL; document.body.append(form); form.submit(); 0",
    ),
    (
        "frame",
        "const frame = document.createElement('iframe'); frame.src = URL; document.body.append(frame);
        new Promise((done) => frame.onload = () => done(0))",
    ),
];

/// Plays a trick in a new tab and returns everything that all tabs show afterwards.
async fn play(browser: &Browserd, (name, trick): (&str, &str), url: &str) -> String {
    let start = format!("http://{PUBLIC}:{PORT}/");
    let tab = browser.open_tab(&NewTab::default()).await.unwrap().tab;
    browser.navigate(&Navigate { tab: Some(tab.clone()), ..go("/") }).await.unwrap();
    let run = async |tab: &str, expression: String| {
        let evaluate = Evaluate { expression, tab: Some(tab.to_owned()), ..Evaluate::default() };
        // A page that leaves while it is asked is asked again.
        browser.evaluate(&evaluate).await.map(|done| done.value.as_str().unwrap_or_default().to_owned())
    };
    // A navigation may end the script before it returns.
    let _ = run(&tab, trick.replace("URL", &format!("'{url}'"))).await;
    let blank = ["about:blank".to_owned(), start.clone()];
    let mut shown = String::new();
    until(&format!("{name} leads somewhere"), async || {
        shown.clear();
        let mut arrived = name == "frame";
        for tab in browser.tabs().await.unwrap().tabs {
            let state = "document.readyState === 'complete' ? location.href : 'about:blank'".to_owned();
            let Ok(at) = run(&tab.tab, state).await else { return false };
            arrived |= !blank.contains(&at);
            let snapshot = Snapshot { tab: Some(tab.tab.clone()), ..Snapshot::default() };
            let Ok(snapshot) = browser.snapshot(&snapshot).await else { return false };
            shown.push_str(&format!("{} {at} {}\n", tab.title, snapshot.snapshot));
        }
        arrived
    })
    .await;
    for tab in browser.tabs().await.unwrap().tabs.into_iter().skip(1) {
        let _ = browser.close_tab(&tab.tab).await;
    }
    shown
}

#[test]
fn a_page_that_leads_a_tab_to_browserd_shows_nothing() {
    in_private_machine("access::a_page_that_leads_a_tab_to_browserd_shows_nothing", |lab| {
        let home = home_with(lab, &browserd());
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let clone = made_as(&client, create("tricked"), &home).await;
            let browser = client_of(&clone);
            let mut cookie: Cookie = serde_json::from_str(
                r#"{"name": "session", "value": "of-the-owner", "domain": "203.0.113.10", "path": "/", "expires": -1,
                    "httpOnly": true, "secure": false, "sameSite": "Lax"}"#,
            )
            .unwrap();
            cookie.domain = PUBLIC.to_string();
            browser.set_cookies(&SetCookies { cookies: vec![cookie], origins: vec![] }).await.unwrap();
            let (at, secret) = (format!("http://{}:8080", clone.ip), secret_of(&clone));
            for trick in TRICKS {
                // The trick works: the page of another server is shown, with what it was sent.
                let shown = play(&browser, trick, &format!("http://{PUBLIC}:{PORT}/cookies")).await;
                assert!(shown.contains("session=of-the-owner"), "{}: {shown}", trick.0);
                // Even a page that knows the secret gets no answer.
                for url in
                    [format!("{at}/v1/cookies"), format!("{at}/{secret}/v1/cookies"), format!("{at}/readyz")]
                {
                    let shown = play(&browser, trick, &url).await;
                    for word in ["of-the-owner", "success", "unauthorized", "SECRET"] {
                        assert!(!shown.contains(word), "{} to {url}: {shown}", trick.0);
                    }
                    assert!(trick.0 == "frame" || shown.contains("chrome-error:"), "{}: {shown}", trick.0);
                }
            }
            // Requests of a script fail before they are answered, also those whose answer the page could not read.
            browser.navigate(&go("/")).await.unwrap();
            let expression = format!(
                "(async () => {{ const tried = [];
                    for (const [url, options] of [['{at}/{secret}/v1/cookies', {{}}], ['{at}/readyz', {{mode: 'no-cors'}}]])
                        tried.push(await fetch(url, options).then(() => 'answered', () => 'failed'));
                    tried.push(await new Promise((done) => {{
                        const socket = new WebSocket('{}');
                        [socket.onopen, socket.onerror] = [() => done('open'), () => done('failed')];
                    }}));
                    return tried.join(); }})()",
                clone.cdp_endpoint.as_deref().unwrap()
            );
            let tried = browser.evaluate(&Evaluate { expression, ..Evaluate::default() }).await.unwrap();
            assert_eq!(tried.value, "failed,failed,failed");
            end(daemon, &client, &[&clone]).await;
        });
    });
}

/// The same stand-in as in browserd's tests, inside of the sandbox that hostd makes.
#[test]
fn code_in_chromiums_place_cannot_touch_browserd() {
    in_private_machine("access::code_in_chromiums_place_cannot_touch_browserd", |lab| {
        // Not in /tmp, which is the sandbox's own.
        let folder = tempfile::Builder::new().prefix("stand-in").tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let program = folder.path().join("stand-in");
        stand_in::write(&program);
        let manifest = format!("browser = {:?}\nversion = \"1\"\n", program.display().to_string());
        fs::write(lab.templates.join("browser/default/template.toml"), manifest).unwrap();
        let home = home_with(lab, &browserd());
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let error = client.create(create("attacked")).await.unwrap_err().to_string();
            let report = stand_in::parse(&error);
            stand_in::assert_refused(&report);
            // The sandbox refuses some of the calls on every process. The others work on a process of its own.
            let own = stand_in::worked(&report["child"]);
            for attempt in [
                "mem",
                "fd",
                "environ",
                "link-root",
                "kill",
                "tgkill",
                "pidfd_send_signal",
                "prlimit",
                "setpriority",
            ] {
                assert!(own.contains(&attempt), "{attempt} on its own child: {report:?}");
            }
            until_empty(&daemon).await;
            daemon.stop().await;
        });
    });
}
