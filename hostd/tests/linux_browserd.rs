//! A clone with browserd in it: its endpoint is an HTTP address that only the control plane reaches.
//!
//! browserd is a package of its own, so its program must have been built: `cargo build -p browserd`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;

use daemon::{Home, create};
use hostd::api::{CloneParams, CloneState};
use hostd::host::linux::show;
use lab::{LIMIT, PORT, PUBLIC, in_private_machine};
use std::path::{Path, PathBuf};

/// The program beside hostd's own.
fn browserd() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name("browserd");
    assert!(path.is_file(), "{} is missing: cargo build -p browserd", path.display());
    path
}

#[test]
fn a_page_is_rendered_by_browserd() {
    in_private_machine("a_page_is_rendered_by_browserd", |lab| {
        let mut settings = lab.settings();
        settings.push(format!("linux.browserd={}", browserd().display()));
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let home = Home::new(&settings);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let before = lab.inventory(home.path());
            for cycle in 0..3 {
                let created = client.create(create(format!("browserd-{cycle}"))).await;
                let clone = created.unwrap_or_else(|error| panic!("{error:?}\n{}", home.log())).clone;
                assert_eq!(clone.state, CloneState::Ready);
                let endpoint = clone.endpoint.clone().unwrap();
                assert_eq!(endpoint, format!("http://{}:8080", clone.ip));
                let url = format!("http://{PUBLIC}:{PORT}/browserd-{cycle}");
                let seen = tokio::task::block_in_place(|| show::page(&endpoint, &url, LIMIT)).unwrap();
                assert_eq!(seen.title, "rendered");
                assert_eq!(&seen.picture[1..4], b"PNG");
                println!("stages {:?}", clone.stages);
                let params =
                    CloneParams { name: clone.name, clone_id: clone.clone_id.unwrap(), progress_token: None };
                client.destroy(params).await.unwrap();
            }
            for ((what, before), (_, after)) in before.iter().zip(&lab.inventory(home.path())) {
                // The record of the last slot is released a moment later.
                assert!(before == after || what == "files", "{what} before:\n{before}\nafter:\n{after}");
            }
            daemon.stop().await;
        });
    });
}
