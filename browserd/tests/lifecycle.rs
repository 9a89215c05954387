//! Start, crash and stop of the browser and of browserd, and the isolation between tasks.
#![allow(clippy::unwrap_used)]

mod support;

use browserd::api::types::*;
use nix::sys::signal::Signal;
use std::collections::HashSet;
use std::path::Path;
use support::site::{RULE, Site};
use support::{Browserd, chromium, code, processes_of, signal, wait};

fn to(url: String) -> Navigate {
    Navigate { url: Some(url), ..Default::default() }
}

/// The sum of a field of smaps_rollup over some processes, in KiB. `Pss` depends on other processes of the same program;
/// `Private_Dirty` counts only what the process itself has written.
fn memory(kind: &str, pids: &[u32]) -> u64 {
    let number = |line: &str| {
        line.strip_prefix(kind)?.strip_prefix(':')?.split_whitespace().next()?.parse::<u64>().ok()
    };
    pids.iter()
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok())
        .filter_map(|text| text.lines().find_map(number))
        .sum()
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
fn browserd_starts_confined_writes_its_files_and_stops_cleanly() {
    let mut browserd = Browserd::ready(&[]);
    let data = browserd.data();
    let number =
        |name: &str| std::fs::read_to_string(data.join(name)).unwrap().trim().parse::<u32>().unwrap();
    assert_eq!(number("browserd.pid"), browserd.pid());
    let chromium = number("chromium.pid");
    let health = browserd.health();
    assert_eq!(
        (health["status"].as_str(), health["browser_pid"].as_u64()),
        (Some("ready"), Some(chromium.into()))
    );
    // There is no debugging port, Chromium's sandbox is on, and seccomp confines the renderer.
    let arguments = std::fs::read_to_string(format!("/proc/{chromium}/cmdline")).unwrap();
    assert!(
        !arguments.contains("--remote-debugging-port") && !arguments.contains("--no-sandbox"),
        "{arguments}"
    );
    let renderer = browserd
        .processes()
        .into_iter()
        .find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.contains("--type=renderer"))
        })
        .expect("a renderer runs");
    let status = std::fs::read_to_string(format!("/proc/{renderer}/status")).unwrap();
    assert!(status.contains("Seccomp:\t2"), "{status}");

    // An idle browserd uses almost no processor time.
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", browserd.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = ticks();
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(ticks() - before <= 2, "{} ticks in an idle second", ticks() - before);

    // A second browserd cannot use the same data folder.
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_browserd"))
        .args(["--chromium", "/bin/false", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("used by another browserd"));

    assert!(browserd.stop().success());
    assert_eq!(browserd.processes(), Vec::<u32>::new(), "processes are left");
    for name in ["browserd.pid", "chromium.pid", "browserd.address"] {
        assert!(!data.join(name).exists(), "{name} is left");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_browser_is_reported_and_restarted_with_an_empty_profile() {
    let (mut browserd, site) = (Browserd::ready(&[RULE, "--max-restarts", "2"]), Site::start().await);
    let client = browserd.client();
    client.navigate(&to(site.url("/setcookie"))).await.unwrap();
    assert_eq!(client.cookies().await.unwrap().cookies.len(), 1);

    // Killed during a call.
    let slow = tokio::spawn({
        let (client, url) = (browserd.client(), site.url("/slow"));
        async move { client.navigate(&to(url)).await }
    });
    wait("the call to run", || (browserd.health()["calls"] == 1).then_some(()));
    let old: HashSet<u32> = browserd.processes().into_iter().collect();
    let first = browserd.health()["browser_pid"].as_u64().unwrap() as u32;
    signal(first, Signal::SIGKILL);
    assert_eq!(code(slow.await.unwrap()), "browser_gone");
    let health = wait("the restart", || {
        let health = browserd.health();
        (health["status"] == "ready" && health["browser_pid"] != first).then_some(health)
    });
    assert_eq!(browserd.get("/readyz").0, 200);
    assert_eq!((health["restarts"].as_u64(), health["status"].as_str()), (Some(1), Some("ready")));
    assert!(health["last_exit"].as_str().unwrap().contains("signal 9"), "{health}");
    let left: Vec<u32> = browserd.processes().into_iter().filter(|pid| old.contains(pid)).collect();
    assert_eq!(left, [browserd.pid()], "processes of the first browser are left");
    assert_eq!(client.cookies().await.unwrap().cookies.len(), 0, "the profile is empty");
    assert_eq!(client.navigate(&to(site.url("/title?again"))).await.unwrap().title, "again");

    // Above the restart limit the browser stays down; browserd still responds.
    for _ in 0..2 {
        let pid = wait("the browser", || {
            let health = browserd.health();
            health["browser_pid"].as_u64().filter(|_| health["status"] == "ready")
        });
        signal(pid as u32, Signal::SIGKILL);
        wait("its end to be noticed", || (browserd.health()["browser_pid"] != pid).then_some(()));
    }
    let health = browserd.wait_failed();
    assert_eq!(health["status"], "failed");
    assert_eq!(code(client.tabs().await), "browser_not_ready");
    assert!(!client.ready().await.unwrap());
    assert!(browserd.stop().success());
}

#[test]
fn a_killed_browserd_leaves_no_process_and_can_start_again() {
    // The test adopts the orphans instead of process 1, so that it can reap them.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_child_subreaper(true).unwrap();
    let mut browserd = Browserd::ready(&[]);
    let uid = browserd.uid;
    let group = browserd.health()["browser_pid"].as_i64().unwrap() as i32;
    assert!(browserd.processes().len() > 3);
    signal(browserd.pid(), Signal::SIGKILL);
    browserd.child.wait().unwrap();
    wait("the browser to end with browserd", || processes_of(uid).is_empty().then_some(()));
    let orphans = nix::unistd::Pid::from_raw(-group);
    while nix::sys::wait::waitpid(orphans, None).is_ok() {}
    browserd.start_again();
    assert_eq!(browserd.health()["restarts"], 0);
    assert!(browserd.stop().success());
}

#[test]
fn a_frozen_browser_is_killed_within_the_stop_timeout() {
    let mut browserd = Browserd::ready(&["--stop-timeout-ms", "900"]);
    let pid = browserd.health()["browser_pid"].as_u64().unwrap() as u32;
    // A frozen process does not handle SIGTERM; only SIGKILL ends it.
    signal(pid, Signal::SIGSTOP);
    assert!(browserd.stop().success());
    assert_eq!(browserd.processes(), Vec::<u32>::new());
}

#[test]
fn a_browser_that_cannot_start_is_reported_with_the_reason() {
    let browserd = Browserd::start_with(Path::new("/bin/false"), &["--max-restarts", "1"]);
    let health = browserd.wait_failed();
    assert!(health["last_exit"].as_str().unwrap().contains("exit status 1"), "{health}");
    let line = browserd.status_line();
    assert!(line.starts_with("failed ") && line.contains("exit status 1"), "{line}");
    let missing = Browserd::start_with(Path::new("/nonexistent/chromium"), &["--max-restarts", "0"]);
    let health = missing.wait_failed();
    assert!(health["last_exit"].as_str().unwrap().contains("/nonexistent/chromium"), "{health}");
    assert_eq!(missing.get("/v1/tabs").0, 503);
    assert!(chromium().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cookies_are_set_and_exported_and_not_shared_between_browsers() {
    let (first, second, site) = (Browserd::ready(&[RULE]), Browserd::ready(&[RULE]), Site::start().await);
    let (one, two) = (first.client(), second.client());
    let cookie = |name: &str, value: &str, domain: &str| Cookie {
        name: name.into(),
        value: value.into(),
        domain: domain.into(),
        path: "/".into(),
        expires: -1.0,
        http_only: false,
        secure: false,
        same_site: Some(SameSite::Lax),
        partition_key: None,
        has_cross_site_ancestor: None,
    };
    let in_an_hour =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as f64 + 3600.0;
    let given = vec![
        Cookie { http_only: true, ..cookie("hostonly", "SECRET-ONE", "app.test") },
        Cookie {
            expires: in_an_hour,
            same_site: Some(SameSite::Strict),
            ..cookie("wide", "SECRET-TWO", ".app.test")
        },
        Cookie {
            secure: true,
            same_site: Some(SameSite::None),
            path: "/deep".into(),
            ..cookie("tls", "SECRET-3", "app.test")
        },
    ];
    let set = one.set_cookies(&SetCookies { cookies: given.clone(), origins: vec![] }).await.unwrap();
    assert_eq!((set.set, set.not_kept), (3, vec![]));

    // Subdomains get only the domain cookie.
    let sent = |host: &'static str| {
        let (one, url) = (&one, site.url_at(host, "/cookies"));
        async move {
            one.navigate(&to(url)).await.unwrap();
            one.text(&Text { selector: Some("#sent".into()), ..Default::default() }).await.unwrap().text
        }
    };
    let at_host = sent("app.test").await;
    assert!(at_host.contains("hostonly=SECRET-ONE") && at_host.contains("wide=SECRET-TWO"), "{at_host}");
    assert_eq!(sent("sub.app.test").await, "wide=SECRET-TWO");
    assert_eq!(sent("elsewhere.test").await, "");

    // The exported cookies equal those that were set; host-only cookies stay host-only.
    let mut out = one.cookies().await.unwrap().cookies;
    out.sort_by(|a, b| a.name.cmp(&b.name));
    let mut want = given.clone();
    want.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(out.len(), 3);
    for (out, want) in out.iter().zip(&want) {
        assert!((out.expires - want.expires).abs() < 1.0, "{out:?}");
        assert_eq!(Cookie { expires: want.expires, ..out.clone() }, *want);
    }
    // Cookies that a site sets are exported in the same format.
    one.navigate(&to(site.url_at("app.test", "/setcookie"))).await.unwrap();
    let out = one.cookies().await.unwrap().cookies;
    let domain = |name: &str| out.iter().find(|cookie| cookie.name == name).unwrap().domain.clone();
    assert_eq!((domain("host"), domain("wide")), ("app.test".into(), ".app.test".into()));

    // The other browser has none of these cookies, and accepts the exported ones.
    assert_eq!(two.cookies().await.unwrap().cookies, []);
    two.navigate(&to(site.url_at("app.test", "/cookies"))).await.unwrap();
    let text = two.text(&Text { selector: Some("#sent".into()), ..Default::default() }).await.unwrap().text;
    assert_eq!(text, "");
    two.set_cookies(&SetCookies { cookies: out.clone(), origins: vec![] }).await.unwrap();
    assert_eq!(two.cookies().await.unwrap().cookies.len(), out.len());
    two.clear_cookies().await.unwrap();
    assert_eq!(two.cookies().await.unwrap().cookies, []);
    assert_eq!(one.cookies().await.unwrap().cookies.len(), out.len(), "the first browser is not affected");

    // An expired cookie is reported as not kept. Errors never contain a cookie's value.
    let expired = Cookie { expires: 1.0, ..cookie("old", "SECRET-4", "app.test") };
    let set = two
        .set_cookies(&SetCookies { cookies: vec![expired, cookie("ok", "v", "app.test")], origins: vec![] })
        .await;
    assert_eq!(set.unwrap().not_kept, [0]);
    for bad in [
        Cookie { same_site: Some(SameSite::None), ..cookie("bad", "SECRET-5", "app.test") },
        cookie("bad", "SECRET-5", "not a host"),
        cookie("bad", "SECRET-5\n", "app.test"),
        cookie("__Host-bad", "SECRET-5", ".app.test"),
    ] {
        let refused = two.set_cookies(&SetCookies { cookies: vec![bad], origins: vec![] }).await;
        assert!(!format!("{refused:?}").contains("SECRET"));
        assert_eq!(code(refused), "invalid_cookie");
    }
    let storage =
        SetCookies { cookies: vec![], origins: vec![serde_json::json!({"origin": "http://app.test"})] };
    assert_eq!(code(two.set_cookies(&storage).await), "bad_request");
    let (status, answer) = post_cookies(
        &second,
        r#"{"cookies":[{"name":"x","value":{"SECRET":"SECRET"},"domain":"app.test"}]}"#,
    );
    assert_eq!(status, 400);
    assert!(!answer.contains("SECRET"), "{answer}");
    for browserd in [&first, &second] {
        assert!(!browserd.log().contains("SECRET"), "a cookie's value is in the log");
    }
}

fn post_cookies(browserd: &Browserd, body: &str) -> (u16, String) {
    let host = browserd.address.to_string();
    let bearer = browserd.bearer();
    let headers =
        [("host", host.as_str()), ("authorization", bearer.as_str()), ("content-type", "application/json")];
    let (status, answer) = browserd.request("POST", "/v1/cookies", &headers, body);
    (status, answer.to_string())
}

/// Runs two hundred tasks, each in its own tab: open, load, type, read, take a screenshot, close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_tasks_leak_no_memory_processes_or_descriptors() {
    let (browserd, site) = (Browserd::ready(&[RULE]), Site::start().await);
    let client = browserd.client();
    let task = async |number: usize| {
        let tab = client.open_tab(&NewTab::default()).await.unwrap().tab;
        client.navigate(&to(site.url("/form"))).await.unwrap();
        let text = format!("task {number}");
        client
            .type_text(&Type {
                text: text.clone(),
                clear: true,
                selector: Some("#name".into()),
                ..Default::default()
            })
            .await
            .unwrap();
        let snapshot = client.snapshot(&Snapshot::default()).await.unwrap();
        assert!(snapshot.snapshot.contains(&text), "{}", snapshot.snapshot);
        if number.is_multiple_of(10) {
            client.screenshot(&Screenshot { format: ImageFormat::Jpeg, ..Default::default() }).await.unwrap();
        }
        client.close_tab(&tab).await.unwrap();
    };
    let measure = || {
        let all = browserd.processes();
        (
            all.len(),
            memory("Private_Dirty", &[browserd.pid()]),
            memory("Pss", &all),
            descriptors(browserd.pid()),
        )
    };
    let mut figures = Vec::new();
    for number in 0..200 {
        task(number).await;
        if matches!(number, 49 | 99 | 149 | 199) {
            figures.push((number + 1, measure()));
        }
    }
    for (tasks, (processes, own, all, descriptors)) in &figures {
        println!(
            "after {tasks} tasks: {processes} processes, browserd {own} KiB, all {all} KiB, {descriptors} descriptors"
        );
    }
    let ((_, early), (_, late)) = (&figures[0], &figures[3]);
    assert!(late.0 <= early.0 + 2, "processes: {} then {}", early.0, late.0);
    assert!(late.1 <= early.1 + 2048, "browserd's memory: {} then {} KiB", early.1, late.1);
    // Chromium fills caches; leaked tabs would take tens of megabytes each.
    assert!(late.2 <= early.2 + 150 * 1024, "all memory: {} then {} KiB", early.2, late.2);
    assert!(late.3 <= early.3 + 2, "descriptors: {} then {}", early.3, late.3);
    assert_eq!(client.tabs().await.unwrap().tabs.len(), 1);
}
