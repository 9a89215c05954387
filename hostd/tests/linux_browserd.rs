//! A clone with browserd in it: its endpoint is an HTTP address that only the control plane reaches.
//!
//! browserd is a package of its own, so its program must have been built: `cargo build -p browserd`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[path = "linux_browserd/access.rs"]
mod access;
mod daemon;
mod lab;
mod life;
#[path = "../../browserd/tests/support/stand_in.rs"]
mod stand_in;

use browserd::api::types::{Cookie, Evaluate, Navigate, Screenshot, SetCookies, Text};
use browserd::client::Client as Browserd;
use daemon::{Home, create, until};
use hostd::api::{CloneInfo, CloneState, Launch, StatusParams};
use lab::{Lab, PORT, PUBLIC, in_private_machine};
use life::{block_on, destroy, home, made, same, until_empty};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::io::AsyncReadExt;

/// The program beside hostd's own.
fn browserd() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name("browserd");
    assert!(path.is_file(), "{} is missing: cargo build -p browserd", path.display());
    path
}

/// A daemon's home with this program as browserd; an empty path is none.
fn home_with(lab: &Lab, program: &Path) -> Home {
    home(lab, &[&format!("linux.browserd={}", program.display())])
}

/// The clone's secret: the first part of the path of its raw CDP endpoint.
fn secret_of(clone: &CloneInfo) -> &str {
    clone.cdp_endpoint.as_deref().unwrap().split('/').nth(3).unwrap()
}

/// The clone's browserd, by the endpoint and the secret of the create's answer.
fn client_of(clone: &CloneInfo) -> Browserd {
    let endpoint = clone.endpoint.as_deref().unwrap();
    let address = endpoint.strip_prefix("http://").unwrap().parse().unwrap();
    Browserd::new(address, secret_of(clone).parse().unwrap())
}

/// The first line of a clone's answer to somebody who wants a WebSocket at this path.
fn upgraded(clone: &CloneInfo, path: &str) -> String {
    let mut stream = TcpStream::connect((clone.ip, 8080)).unwrap();
    let question = format!(
        "GET {path} HTTP/1.1\r\nHost: {}:8080\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        clone.ip
    );
    stream.write_all(question.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

fn go(path: &str) -> Navigate {
    Navigate { url: Some(format!("http://{PUBLIC}:{PORT}{path}")), ..Navigate::default() }
}

#[test]
fn a_page_is_rendered_by_browserd() {
    in_private_machine("a_page_is_rendered_by_browserd", |lab| {
        let home = home_with(lab, &browserd());
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let before = lab.inventory(home.path());
            let mut earlier: Option<String> = None;
            for cycle in 0..3 {
                let clone = made(&client, &format!("browserd-{cycle}"), &home).await;
                assert_eq!(clone.state, CloneState::Ready);
                assert_eq!(clone.endpoint, Some(format!("http://{}:8080", clone.ip)));
                let raw = clone.cdp_endpoint.as_deref().expect("its raw CDP");
                let path = raw.strip_prefix(&format!("ws://{}:8080", clone.ip)).expect("at its address");
                assert!(upgraded(&clone, path).starts_with("HTTP/1.1 101 "));
                if let Some(earlier) = earlier.replace(path.to_owned()) {
                    assert!(upgraded(&clone, &earlier).starts_with("HTTP/1.1 401 "), "another clone's");
                }
                let browser = client_of(&clone);
                assert!(browser.ready().await.unwrap(), "Ready means that /readyz says yes");
                let page = browser.navigate(&go(&format!("/browserd-{cycle}"))).await.unwrap();
                assert_eq!((page.status, page.title.as_str()), (Some(200), "rendered"));
                let picture = browser.screenshot(&Screenshot::default()).await.unwrap();
                assert!(picture.image_base64.starts_with("iVBORw0KGgo"), "a PNG");
                println!("stages {:?}", clone.stages);
                destroy(&client, &clone).await;
            }
            // The record of the last slot is released a moment later.
            until_empty(&daemon).await;
            same(&before, &lab.inventory(home.path()));
            daemon.stop().await;
        });
    });
}

/// The seed's gate: cookies in, the page sees them, cookies out; and nobody else ever sees them.
#[test]
fn cookies_stay_in_their_clone() {
    in_private_machine("cookies_stay_in_their_clone", |lab| {
        let home = home_with(lab, &browserd());
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let (one, two) = (made(&client, "one", &home).await, made(&client, "two", &home).await);
            let (first, second) = (client_of(&one), client_of(&two));

            // As in a storageState file: a session cookie and a lasting one, both host-only.
            let state = r#"{"cookies": [
                {"name": "session", "value": "of-the-first", "domain": "203.0.113.10", "path": "/", "expires": -1,
                 "httpOnly": true, "secure": false, "sameSite": "Lax"},
                {"name": "lasting", "value": "also-first", "domain": "203.0.113.10", "path": "/", "expires": 4102444800,
                 "httpOnly": false, "secure": false, "sameSite": "Lax"}], "origins": []}"#;
            let state: SetCookies = serde_json::from_str(state).unwrap();
            first.set_cookies(&state).await.unwrap();
            assert_eq!(seen_by_page(&first).await, ["lasting=also-first", "session=of-the-first"]);

            // Out again as they went in, and the one that the page set.
            let mut out = first.cookies().await.unwrap().cookies;
            out.sort_by(|one, other| one.name.cmp(&other.name));
            let names: Vec<&str> = out.iter().map(|cookie| cookie.name.as_str()).collect();
            assert_eq!(names, ["lasting", "session", "visited"]);
            let given = |name: &str| state.cookies.iter().find(|cookie| cookie.name == name).unwrap();
            // Chromium keeps a lasting cookie for 400 days at most; everything else is as given.
            let lasting = Cookie { expires: out[0].expires, ..given("lasting").clone() };
            assert!(out[0].expires > 0.0 && out[0] == lasting, "{:?}", out[0]);
            assert!(&out[1] == given("session"), "{:?}", out[1]);

            // The other clone, alive at the same time, has none and sees none; what it gets stays with it.
            assert_eq!(second.cookies().await.unwrap().cookies, []);
            assert_eq!(seen_by_page(&second).await, ["none"]);
            let other = Cookie { value: "of-the-second".into(), ..given("session").clone() };
            second.set_cookies(&SetCookies { cookies: vec![other], origins: vec![] }).await.unwrap();
            assert_eq!(seen_by_page(&second).await, ["session=of-the-second", "visited=yes"]);
            assert_eq!(
                seen_by_page(&first).await,
                ["lasting=also-first", "session=of-the-first", "visited=yes"]
            );

            // Carried over to a third, in the place of the first: what was taken out, and nothing else.
            let carried = SetCookies { cookies: vec![out[1].clone()], origins: vec![] };
            destroy(&client, &one).await;
            let mut again = create("three");
            again.name = Some(one.name.clone());
            let three = loop {
                // The slot is free as soon as its quarantine is over.
                match client.create(again.clone()).await {
                    Ok(created) => break created.clone,
                    Err(error) => assert!(error.to_string().contains("not free"), "{error}"),
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            };
            assert_eq!((&three.name, &three.ip), (&one.name, &one.ip));
            let third = client_of(&three);
            assert_eq!(third.cookies().await.unwrap().cookies, []);
            third.set_cookies(&carried).await.unwrap();
            assert_eq!(seen_by_page(&third).await, ["session=of-the-first"]);

            let log = home.log();
            assert!(!log.contains("of-the-first") && !log.contains("of-the-second"), "no value in the log");
            destroy(&client, &two).await;
            destroy(&client, &three).await;
            daemon.stop().await;
        });
    });
}

/// The cookies that the page's server was sent.
async fn seen_by_page(browser: &Browserd) -> Vec<String> {
    let page = browser.navigate(&go("/cookies")).await.unwrap();
    assert_eq!(page.title, "cookies");
    let text = browser.text(&Text::default()).await.unwrap().text;
    let mut cookies: Vec<String> = text.trim().split("; ").map(str::to_owned).collect();
    cookies.sort();
    cookies
}

/// What confines the processes of one kind, compared with the first process of the sandbox.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Confinement {
    own_user_namespace: bool,
    own_seccomp_filters: bool,
    seccomp: String,
    no_new_privileges: String,
    capabilities: String,
    bounding: String,
    is_the_clones_user: bool,
}

/// By the kinds of Chromium's processes, everything that is seen of them in a clone.
fn confinements(home: &Home, clone: &CloneInfo) -> BTreeMap<String, BTreeSet<Confinement>> {
    let (mut browser, mut all) = (None, Vec::new());
    let slot: u32 = clone.name.as_str().trim_start_matches("browsertask").parse().unwrap();
    for (pid, command) in lab::processes(&home.path().join("state/run").join(clone.name.as_str())) {
        let kind = command.split([' ', '\0']).find_map(|word| word.strip_prefix("--type="));
        let is_browser = kind.is_none() && command.contains("--remote-debugging-pipe");
        let Some(kind) = kind.or(is_browser.then_some("browser")) else { continue };
        // One that ends while we look is none.
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let Ok(namespace) = fs::metadata(format!("/proc/{pid}/ns/user")) else { continue };
        if is_browser {
            browser = Some((namespace.ino(), field(&status, "Seccomp_filters")));
        }
        all.push((kind.to_owned(), namespace.ino(), status));
    }
    let (namespace, filters) = browser.expect("a browser runs in the clone");
    let mut kinds: BTreeMap<String, BTreeSet<Confinement>> = BTreeMap::new();
    for (kind, own, status) in all {
        let seen = Confinement {
            own_user_namespace: own != namespace,
            own_seccomp_filters: field(&status, "Seccomp_filters") != filters,
            seccomp: field(&status, "Seccomp"),
            no_new_privileges: field(&status, "NoNewPrivs"),
            capabilities: field(&status, "CapEff"),
            bounding: field(&status, "CapBnd"),
            is_the_clones_user: field(&status, "Uid")
                .split_whitespace()
                .all(|uid| uid == (lab::uid_base() + slot).to_string()),
        };
        kinds.entry(kind).or_default().insert(seen);
    }
    kinds
}

/// The same once it has settled: a process on its way into its sandbox shows what it was before.
async fn settled(home: &Home, clone: &CloneInfo) -> BTreeMap<String, BTreeSet<Confinement>> {
    let mut last = confinements(home, clone);
    until("every renderer is confined, twice in a row", async || {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let seen = confinements(home, clone);
        let confined = |one: &Confinement| one.own_user_namespace && one.own_seccomp_filters;
        let same = seen == last && seen.get("renderer").is_some_and(|all| all.iter().all(confined));
        last = seen;
        same
    })
    .await;
    last
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

/// Chromium is confined by browserd's sandbox as by the launcher's, and its own sandbox is alive in both.
#[test]
fn the_browser_is_confined_as_without_browserd() {
    in_private_machine("the_browser_is_confined_as_without_browserd", |lab| {
        let mut seen = Vec::new();
        for program in [browserd(), PathBuf::new()] {
            let home = home_with(lab, &program);
            block_on(async {
                let daemon = home.start().await;
                let client = daemon.client().await;
                let clone = made(&client, "confined", &home).await;
                if program.as_os_str().is_empty() {
                    let mut page = tokio::task::block_in_place(|| {
                        let mut page = lab::Page::open(clone.endpoint.as_deref().unwrap());
                        page.load(&format!("http://{PUBLIC}:{PORT}/"), lab::LIMIT);
                        page
                    });
                    seen.push(settled(&home, &clone).await);
                    tokio::task::block_in_place(|| page.screenshot());
                } else {
                    client_of(&clone).navigate(&go("/")).await.unwrap();
                    seen.push(settled(&home, &clone).await);
                    let log = home.path().join("state/run").join(clone.name.as_str()).join("log");
                    let log = fs::read_to_string(log).unwrap();
                    assert!(log.contains("RendererProof"), "the supervisor saw the renderer itself: {log}");
                }
                destroy(&client, &clone).await;
                daemon.stop().await;
            });
        }
        let (with, without) = (&seen[0], &seen[1]);
        println!("{with:#?}");
        for kind in ["browser", "renderer", "zygote"] {
            assert!(with.contains_key(kind), "no {kind} among {:?}", with.keys());
            assert_eq!(with[kind], without[kind], "{kind}");
        }
        for (kind, all) in with {
            for one in all {
                assert_eq!((one.seccomp.as_str(), one.no_new_privileges.as_str()), ("2", "1"), "{kind}");
                assert!(one.is_the_clones_user, "{kind}: {one:?}");
                // Chromium's zygotes have capabilities over the user namespace that they made themselves, and only there.
                assert!(
                    one.own_user_namespace || one.capabilities.trim_start_matches('0').is_empty(),
                    "{kind}"
                );
            }
        }
    });
}

/// A program that says it is ready, and even answers so, but whose browser nobody ever sees confined.
#[test]
fn a_word_alone_makes_no_clone_ready() {
    in_private_machine("a_word_alone_makes_no_clone_ready", |lab| {
        let folder = tempfile::Builder::new().prefix("false").tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let program = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let perl = "#!/usr/bin/perl\nBEGIN { @INC = grep { m{^/usr/(lib|share)/} } @INC }\n\
            use IO::Socket::INET; $| = 1; my ($at) = $ARGV[0] =~ /=(.*)/;\n\
            my $socket = IO::Socket::INET->new(LocalAddr => $at, Listen => 5) or die;\n\
            print \"ready http://$at\\n\";\n\
            while (my $peer = $socket->accept) { 1 while (<$peer> // '') =~ /\\S/; print $peer \"HTTP/1.1 STATUS x\\r\\n\\r\\n\"; close $peer }\n";
        let cases = [
            (program("no-renderer", &perl.replace("STATUS", "200")), "own sandbox is not active"),
            (program("not-ready", &perl.replace("STATUS", "503")), "/readyz answers HTTP/1.1 503"),
            (
                program("failed", "#!/usr/bin/perl\n$| = 1; print \"failed no browser\\n\"; sleep 100;\n"),
                "no browser",
            ),
            (program("ended", "#!/usr/bin/perl\nexit 4;\n"), "browserd"),
        ];
        for (program, expected) in cases {
            let home = home_with(lab, &program);
            block_on(async {
                let daemon = home.start().await;
                let client = daemon.client().await;
                let before = lab.inventory(home.path());
                let error = client.create(create("false")).await.unwrap_err().to_string();
                assert!(error.contains(expected), "{}: {error}", program.display());
                until_empty(&daemon).await;
                same(&before, &lab.inventory(home.path()));
                daemon.stop().await;
            });
        }
    });
}

/// Whoever is connected to a clone when it is destroyed is told so, and does not wait for a packet that never comes.
#[test]
fn a_caller_hears_of_the_clones_end() {
    in_private_machine("a_caller_hears_of_the_clones_end", |lab| {
        let home = home_with(lab, &browserd());
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            for cycle in 0..3 {
                let clone = made(&client, &format!("heard-{cycle}"), &home).await;
                let mut idle = tokio::net::TcpStream::connect((clone.ip, 8080)).await.unwrap();
                destroy(&client, &clone).await;
                let mut byte = [0];
                let patience = std::time::Duration::from_secs(2);
                let heard = tokio::time::timeout(patience, idle.read(&mut byte)).await;
                let heard = heard.expect("the connection ends with the clone");
                assert!(matches!(heard, Ok(0) | Err(_)), "{heard:?}");
            }
            daemon.stop().await;
        });
    });
}

/// A browser in a clone may not watch files, which would keep it from ending quickly; names are resolved all the same.
#[test]
fn names_are_resolved_though_no_file_is_watched() {
    in_private_machine("names_are_resolved_though_no_file_is_watched", |lab| {
        let resolver: std::net::IpAddr = "203.0.113.53".parse().unwrap();
        lab::run(&format!("ip -n internet addr add {resolver}/32 dev lo"));
        lab::resolve("internet", resolver, "10.1.2.3".parse().unwrap());
        let program = format!("linux.browserd={}", browserd().display());
        let home = home(lab, &[&program, &format!("egress.resolver={resolver}")]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let clone = made(&client, "resolves", &home).await;
            let by_name =
                Navigate { url: Some(format!("http://name.example:{PORT}/")), ..Navigate::default() };
            let page = client_of(&clone).navigate(&by_name).await.unwrap();
            assert_eq!((page.status, page.title.as_str()), (Some(200), "rendered"));
            let run = home.path().join("state/run").join(clone.name.as_str());
            let (mut looked, mut watching) = (0, Vec::new());
            for (pid, command) in lab::processes(&run) {
                let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
                looked += 1;
                let watches = |file: &Path| file.to_string_lossy().contains("inotify");
                if files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|link| watches(&link))) {
                    watching.push(command);
                }
            }
            assert!(looked > 5 && watching.is_empty(), "{looked} processes, of which watch: {watching:?}");
            destroy(&client, &clone).await;
            daemon.stop().await;
        });
    });
}

/// What a page of the same site finds: cookies, storage, caches, databases, how many pages came before.
const KNOWN: &str = "(async () => JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage},
    self.caches ? await caches.keys() : [], (await indexedDB.databases()).map(one => one.name), history.length]))()";

/// A clone of the warm pool has loaded a page of browserd's own: nothing of that, and nothing of an earlier task, is left.
#[test]
fn a_warm_browser_knows_of_nothing() {
    in_private_machine("a_warm_browser_knows_of_nothing", |lab| {
        let program = format!("linux.browserd={}", browserd().display());
        let home = home(lab, &[&program, "pool.size=1", "pool.refill_percent=100", "pool.last_slot=2"]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let run = async |browser: &Browserd, expression: String| {
                let wanted = Evaluate { expression, ..Evaluate::default() };
                browser.evaluate(&wanted).await.unwrap().value
            };
            for task in 0..4 {
                until("the pool is full", async || {
                    client
                        .status(StatusParams::default())
                        .await
                        .unwrap()
                        .warm_pool
                        .is_some_and(|pool| pool.members.len() == 1)
                })
                .await;
                let clone = made(&client, &format!("warm-{task}"), &home).await;
                assert_eq!(clone.launch, Some(Launch::Warm));
                let browser = client_of(&clone);
                let tabs = browser.tabs().await.unwrap().tabs;
                let open: Vec<&str> = tabs.iter().map(|tab| tab.url.as_str()).collect();
                assert_eq!(open, ["about:blank"], "one blank page");
                let blank = "[document.documentElement.outerHTML, history.length].join()".to_owned();
                assert_eq!(run(&browser, blank).await, "<html><head></head><body></body></html>,1");
                assert_eq!(browser.cookies().await.unwrap().cookies, []);
                let files = home.path().join("clones").join(clone.name.as_str());
                for earlier in 0..task {
                    let found = lab::files_with(&files, &format!("left-by-{earlier}-"));
                    assert!(found.is_empty(), "task {task} finds what task {earlier} left: {found:?}");
                }
                browser.navigate(&go("/")).await.unwrap();
                assert_eq!(run(&browser, KNOWN.to_owned()).await, "[\"\",{},{},[],[],2]");

                let mine = format!("left-by-{task}-{}", "x".repeat(12));
                let plant = format!(
                    "(async () => {{ document.cookie = '{mine}=1; max-age=86400'; localStorage['{mine}'] = 1;
                        const open = indexedDB.open('{mine}', 1);
                        await new Promise(good => open.onsuccess = good); return document.cookie }})()"
                );
                assert_eq!(run(&browser, plant).await, format!("{mine}=1"));
                browser.navigate(&go(&format!("/?{mine}"))).await.unwrap();
                fs::write(files.join("downloads").join(&mine), &mine).unwrap();
                assert!(!lab::files_with(&files, &mine).is_empty(), "what is planted is found");
                destroy(&client, &clone).await;
            }
            daemon.stop().await;
        });
    });
}

/// Nobody waits for an address that the policy refuses, and the error says so: by address, by name, after a redirect.
#[test]
fn an_address_that_the_policy_refuses_is_named_at_once() {
    in_private_machine("an_address_that_the_policy_refuses_is_named_at_once", |lab| {
        lab::run("ip addr add 127.0.0.53/32 dev lo");
        lab::resolve("/proc/self/ns/net", "127.0.0.53".parse().unwrap(), "10.1.2.3".parse().unwrap());
        lab::set_resolv_conf("nameserver 127.0.0.53\n");
        let home = home_with(lab, &browserd());
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let clone = made(&client, "refused", &home).await;
            let browser = client_of(&clone);
            for (url, reason) in [
                ("http://10.1.2.3/".to_owned(), "10.1.2.3: a private network"),
                ("http://169.254.169.254/latest/meta-data/".to_owned(), "a cloud metadata service"),
                ("http://[fd12::1]/".to_owned(), "unique local"),
                (format!("http://{PUBLIC}:{PORT}/redirect/192.168.7.7"), "192.168.7.7: a private network"),
                (format!("http://rebind.example:{PORT}/"), "10.1.2.3: a private network"),
            ] {
                let began = std::time::Instant::now();
                let request = Navigate { url: Some(url.clone()), ..Navigate::default() };
                let error = browser.navigate(&request).await.expect_err(&url).to_string();
                assert!(error.contains("address_refused") && error.contains(reason), "{url}: {error}");
                // The limit of a navigation is far above the first retransmission, and this is far below.
                assert!(began.elapsed() < std::time::Duration::from_secs(5), "{url}: {:?}", began.elapsed());
            }
            let page = browser.navigate(&go("/")).await.unwrap();
            assert_eq!((page.status, page.title.as_str()), (Some(200), "rendered"), "the tab goes on");
            destroy(&client, &clone).await;
            daemon.stop().await;
        });
    });
}
