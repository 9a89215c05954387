//! The ZFS driver on real ZFS: clones come and go, stay busy, are interrupted, and nothing is left.
//!
//! ZFS is no part of the kernel that tests usually run on, so these run in a machine of their own: `scripts/test --vm`,
//! or `scripts/vm-test run zfs`. The number of kills is an argument: `HOSTD_TEST_CYCLES`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;
mod zfs_rig;

use daemon::create;
use hostd::api::{CloneState, CreateParams, Limits, ListParams, StatusParams};
use hostd::client::ClientError;
use hostd::host::command::{Tools, runs_of};
use hostd::host::linux::LinuxHost;
use hostd::host::zfs::Zfs;
use hostd::host::{CloneSpec, Host, HostErrorKind, Identity, Part, Unmount};
use hostd::slot::{Slot, Slots};
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use zfs_rig::*;

fn named(id: &str, name: &str) -> CreateParams {
    CreateParams { name: Some(name.parse().unwrap()), ..create(id) }
}

#[test]
#[ignore = "needs ZFS: scripts/test --vm"]
fn a_clone_comes_and_goes() {
    with_zfs("a_clone_comes_and_goes", &[], |rig| {
        block_on(async {
            let daemon = rig.start().await;
            let client = patient(&daemon).await;
            let before = rig.datasets();
            for cycle in 0..2 {
                let clone = client.create(create(format!("cycle-{cycle}"))).await.unwrap().clone;
                assert_eq!(clone.state, CloneState::Ready);
                let (name, id) = (clone.name.to_string(), clone.clone_id.clone().unwrap());
                for part in [name.clone(), format!("{name}/root")] {
                    assert_eq!(rig.property(&part, "org.hostd:clone_id"), format!("{id} local"));
                    assert_eq!(rig.property(&part, "mounted"), "yes -");
                    for property in ["devices", "setuid", "exec"] {
                        assert_eq!(rig.property(&part, property), "off local");
                    }
                }
                assert_eq!(rig.property(&name, "quota"), format!("{} local", 10u64 << 30));
                assert_eq!(rig.property(&name, "origin"), format!("{}/browser@default -", rig.parent));
                let root = rig.clones().join(&name).join("root");
                assert!(root.join("profile").is_dir(), "what the template has");
                std::fs::write(root.join("changed"), "x").unwrap();
                client.destroy(params(&clone)).await.unwrap();
                rig.until_empty(&client).await;
                assert_eq!(rig.datasets(), before);
                assert!(!rig.clones().join("browser/root/changed").exists(), "the template is as it was");
            }
            let status = client.status(StatusParams { checks: true, metrics: true }).await.unwrap();
            let zfs: Vec<_> = status.findings.unwrap().into_iter().filter(|f| f.check == "zfs").collect();
            assert_eq!(zfs.len(), 1, "{zfs:?}");
            assert_eq!(zfs[0].severity, hostd::api::Severity::Ok, "{zfs:?}");
            assert!(status.metrics.unwrap().contains("hostd_tool_runs_total{tool=\"zfs\"}"));
            daemon.stop().await;
        });
    });
}

#[test]
#[ignore = "needs ZFS: scripts/test --vm"]
fn busy_for_a_while_is_waited_for() {
    with_zfs("busy_for_a_while_is_waited_for", &["lifecycle.busy_patience_ms=600000"], |rig| {
        block_on(async {
            let daemon = rig.start().await;
            let client = patient(&daemon).await;
            for kind in ["folder", "file", "mounts"] {
                let clone = client.create(create(kind)).await.unwrap().clone;
                let root = rig.clones().join(clone.name.as_str()).join("root");
                let holder = match kind {
                    "folder" => Holder::in_folder(&root),
                    "file" => Holder::of_file(&root.join("open")),
                    _ => Holder::of_mounts(),
                };
                let refused = |log: &str| log.matches("is busy").count();
                let before = refused(&rig.home.log());
                let other = patient(&daemon).await;
                let destroy = tokio::spawn(async move { other.destroy(params(&clone)).await });
                until(rig, "the dataset was found busy", async || {
                    refused(&rig.home.log()) > before || destroy.is_finished()
                })
                .await;
                assert!(!destroy.is_finished(), "{kind}: it was not busy\n{}", rig.home.log());
                drop(holder);
                let stages = destroy.await.unwrap().unwrap().stages;
                assert!(stages.iter().all(|stage| stage.stage != "move-aside"), "{kind}: {stages:?}");
                rig.until_empty(&client).await;
            }
            assert!(!rig.datasets().contains("browsertask-aside"), "nothing was moved aside");
            daemon.stop().await;
        });
    });
}

#[test]
#[ignore = "needs ZFS: scripts/test --vm"]
fn what_never_gets_free_is_moved_aside_and_goes_later() {
    with_zfs(
        "what_never_gets_free_is_moved_aside_and_goes_later",
        &["lifecycle.busy_patience_ms=200"],
        |rig| {
            block_on(async {
                let daemon = rig.start().await;
                let client = patient(&daemon).await;
                for kind in ["folder", "mounts"] {
                    let clone = client.create(named(kind, "browsertask001")).await.unwrap().clone;
                    let root = rig.clones().join("browsertask001/root");
                    let holder =
                        if kind == "folder" { Holder::in_folder(&root) } else { Holder::of_mounts() };
                    let gone = client.destroy(params(&clone)).await.unwrap();
                    assert!(gone.stages.iter().any(|stage| stage.stage == "move-aside"), "{:?}", gone.stages);
                    let aside = format!("browsertask-aside/{}", clone.clone_id.clone().unwrap());
                    if kind == "folder" {
                        assert!(rig.datasets().contains(&aside), "{:?}", rig.datasets());
                        assert_eq!(rig.property(&aside, "mounted"), "no -");
                    }
                    assert!(rig.mounts().iter().all(|place| !place.contains("browsertask")));

                    // The slot is free for the next one, which is another clone, once its record is released.
                    until(rig, "the record is released", async || {
                        client.list(ListParams::default()).await.is_ok_and(|list| list.clones.is_empty())
                            && client.create(named(&format!("{kind}-next"), "browsertask001")).await.is_ok()
                    })
                    .await;
                    let next = client.list(ListParams::default()).await.unwrap().clones.remove(0);
                    assert_ne!(next.clone_id, clone.clone_id);
                    client.destroy(params(&next)).await.unwrap();
                    // A mount elsewhere was seen not to hold a dataset that was renamed; a process inside does.
                    assert!(kind != "folder" || rig.datasets().contains(&aside), "still held");
                    drop(holder);
                    until(rig, "what was moved aside is gone", async || !rig.datasets().contains(&aside))
                        .await;
                    rig.until_empty(&client).await;
                }
                daemon.stop().await;
            });
        },
    );
}

#[test]
#[ignore = "needs ZFS: scripts/test --vm"]
fn the_quota_holds_and_snapshots_go_along() {
    with_zfs("the_quota_holds_and_snapshots_go_along", &[], |rig| {
        block_on(async {
            let daemon = rig.start().await;
            let client = patient(&daemon).await;
            let limits = Limits { disk_bytes: Some(16 << 20), ..Limits::default() };
            let clone =
                client.create(CreateParams { limits: Some(limits), ..create("q") }).await.unwrap().clone;
            let name = clone.name.to_string();
            let mut file = std::fs::File::create(rig.clones().join(&name).join("root/big")).unwrap();
            let mut written = 0;
            let error = loop {
                match file.write_all(&vec![7; 1 << 20]).and_then(|()| file.sync_data()) {
                    Ok(()) => written += 1,
                    Err(error) => break error,
                }
                assert!(written < 64, "no end after {written} MiB");
            };
            drop(file);
            assert_eq!(error.raw_os_error(), Some(nix::libc::EDQUOT), "{error}");
            println!("quota of 16 MiB: refused after {written} MiB");
            assert!((8..=32).contains(&written), "{written} MiB");
            // At the quota: what is removed can be written again, and a neighbour has its own.
            let root = rig.clones().join(&name).join("root");
            std::fs::remove_file(root.join("big")).unwrap();
            run(&["zpool", "sync"]);
            std::fs::write(root.join("again"), vec![7; 1 << 20]).unwrap();
            let beside = CreateParams { limits: Some(limits), ..create("beside") };
            let beside = client.create(beside).await.unwrap().clone;
            let place = rig.clones().join(beside.name.as_str()).join("root/fits");
            std::fs::write(place, vec![7; 4 << 20]).unwrap();
            client.destroy(params(&beside)).await.unwrap();

            run(&["zfs", "snapshot", "-r", &format!("{}/{name}@auto-1", rig.parent)]);
            run(&["zfs", "snapshot", &format!("{}/{name}/root@auto-2", rig.parent)]);
            client.destroy(params(&clone)).await.unwrap();
            rig.until_empty(&client).await;
            daemon.stop().await;
        });
    });
}

#[test]
#[ignore = "needs ZFS: scripts/test --vm"]
fn deadlines_and_orphans_are_reaped_and_nothing_foreign_is() {
    with_zfs("deadlines_and_orphans_are_reaped_and_nothing_foreign_is", &[], |rig| {
        block_on(async {
            let dataset = |name: &str| format!("{}/{name}", rig.parent);
            // A clone that no record knows, half made; a jail of somebody's; a clone of something else.
            let id = "org.hostd:clone_id=0b0c8d1e4f5a4c639a3e2f1d7c5b6a70";
            run(&["zfs", "clone", "-o", id, &dataset("browser@default"), &dataset("browsertask030")]);
            run(&["zfs", "create", &dataset("browsertask031")]);
            run(&["zfs", "create", &dataset("web")]);
            run(&["zfs", "snapshot", &dataset("web@default")]);
            run(&["zfs", "clone", &dataset("web@default"), &dataset("browsertask032")]);
            let daemon = rig.start().await;
            let client = patient(&daemon).await;
            let clone = client
                .create(CreateParams { deadline_seconds: Some(1), ..create("short") })
                .await
                .unwrap()
                .clone;
            until(rig, "orphan and deadline are gone", async || {
                let left = rig.datasets();
                !left.contains("browsertask030") && !left.contains(clone.name.as_str())
            })
            .await;
            let reaped = client.reap(Default::default()).await.unwrap();
            println!("{reaped:?}");
            let left = rig.datasets();
            assert!(left.contains("browsertask031") && left.contains("browsertask032"), "{left:?}");
            // Nor is it taken for free.
            let refused = client.create(named("in-the-way", "browsertask031")).await.unwrap_err();
            assert!(matches!(refused, ClientError::Rpc(_)), "{refused:?}");
            assert!(rig.datasets().contains("browsertask031"));
            daemon.stop().await;
        });
    });
}

#[test]
#[ignore = "needs ZFS: scripts/test --vm"]
fn killed_at_any_point_nothing_is_left() {
    with_zfs("killed_at_any_point_nothing_is_left", &["lifecycle.busy_patience_ms=500"], |rig| {
        let cycles = std::env::var("HOSTD_TEST_CYCLES").map_or(8, |text| text.parse().expect("a number"));
        block_on(async {
            let before = rig.datasets();
            let mut reached = Vec::new();
            for cycle in 0..cycles {
                let daemon = rig.start().await;
                let client = patient(&daemon).await;
                // Half of the time the destroy is what is interrupted.
                let doomed = match cycle % 2 {
                    0 => None,
                    _ => Some(client.create(create(format!("kill-{cycle}"))).await.unwrap().clone),
                };
                let mut commands = rig.home.log().matches("command=zfs").count();
                let work = tokio::spawn(async move {
                    match doomed {
                        None => client.create(create(format!("kill-{cycle}"))).await.map(drop),
                        Some(clone) => client.destroy(params(&clone)).await.map(drop),
                    }
                });
                // After so many commands of zfs, whatever time they take; each cycle a little later.
                commands += cycle / 2 * 2 + 1;
                until(rig, "it is under way", async || {
                    work.is_finished() || rig.home.log().matches("command=zfs").count() >= commands
                })
                .await;
                daemon.kill9().await;
                let _ = work.await;
                reached.push(rig.datasets().difference(&before).cloned().collect::<Vec<_>>().join(" "));
                let daemon = rig.start().await;
                let client = patient(&daemon).await;
                // One that became ready has an owner who may come back: it goes when it is told to.
                for clone in client.list(ListParams::default()).await.unwrap().clones {
                    if clone.state == CloneState::Ready {
                        client.destroy(params(&clone)).await.unwrap();
                    }
                }
                rig.until_empty(&client).await;
                daemon.stop().await;
            }
            println!("{cycles} kills; of the clone there was then: {reached:?}");
            assert_eq!(rig.datasets(), before);
        });
    });
}

/// The host alone, without a lifecycle above it.
fn parts(rig: &Rig) -> (LinuxHost, Zfs, CloneSpec) {
    let config = rig.config();
    let pool = Slots::new(&config.pool).unwrap();
    let tools = Tools::new(&config.host.tool_folders);
    let zfs = Zfs::new(&tools, &pool, config.pool.clones_dir.clone(), "browser", &[]);
    let spec = CloneSpec {
        names: pool.names(Slot::new(1).unwrap()),
        clone_id: hostd::api::CloneId::random(),
        snapshot: "default".parse().unwrap(),
        limits: Limits { disk_bytes: Some(64 << 20), ..Limits::default() },
        deadline: Duration::from_secs(3600),
        secret: None,
        warm_up: false,
    };
    (LinuxHost::open(&config, &pool).unwrap(), zfs, spec)
}

#[test]
#[ignore = "needs ZFS: scripts/test --vm"]
fn half_made_is_completed_and_ensuring_again_changes_nothing() {
    with_zfs("half_made_is_completed_and_ensuring_again_changes_nothing", &[], |rig| {
        block_on(async {
            let (host, zfs, spec) = parts(rig);
            let (names, dataset) = (&spec.names, spec.names.dataset.clone());
            let template = format!("{}/browser", rig.parent);
            let whole = async || {
                let seen = host.inspect(names, &[Part::Storage, Part::Mounts]).await.unwrap();
                assert!(seen.mounts.is_empty(), "{seen:?}");
                let storage = seen.storage.unwrap();
                assert!(
                    storage.mounted && storage.identity == Identity::Clone(spec.clone_id.clone()),
                    "{storage:?}"
                );
                assert_eq!(zfs.look_at(names).await.unwrap().get(&dataset).unwrap().quota, 64 << 20);
            };
            // As a crash between the two, or between a dataset and its mark, leaves it.
            let before = runs_of("zfs");
            zfs.ensure(&spec).await.unwrap();
            assert_eq!(runs_of("zfs") - before, 2, "a clone is two commands");
            whole().await;
            zfs.ensure(&spec).await.unwrap();
            whole().await;
            run(&["zfs", "destroy", &format!("{dataset}/root")]);
            zfs.ensure(&spec).await.unwrap();
            whole().await;
            let before = runs_of("zfs");
            zfs.destroy(names).await.unwrap();
            assert_eq!(runs_of("zfs") - before, 2, "a destroy is two commands");
            zfs.destroy(names).await.unwrap();
            run(&["zfs", "clone", &format!("{template}@default"), &dataset]);
            run(&["zfs", "clone", &format!("{template}/root@default"), &format!("{dataset}/root")]);
            run(&["zfs", "unmount", &dataset]);
            let seen = host.inspect(names, &[Part::Storage]).await.unwrap().storage.unwrap();
            assert!(seen.identity == Identity::Unmarked && !seen.mounted, "{seen:?}");
            zfs.ensure(&spec).await.unwrap();
            whole().await;

            // Another's is refused, whatever is asked.
            let other = CloneSpec { clone_id: hostd::api::CloneId::random(), ..spec.clone() };
            assert_eq!(zfs.ensure(&other).await.unwrap_err().kind, HostErrorKind::Foreign);
            let unknown = CloneSpec { snapshot: "unknown".parse().unwrap(), ..spec.clone() };
            zfs.destroy(names).await.unwrap();
            assert_eq!(zfs.ensure(&unknown).await.unwrap_err().kind, HostErrorKind::Template);
            assert!(host.inspect(names, Part::ALL).await.unwrap().storage.is_none());
        });
    });
}

#[test]
#[ignore = "needs ZFS: scripts/test --vm"]
fn mounts_are_told_from_storage_and_forced() {
    with_zfs("mounts_are_told_from_storage_and_forced", &[], |rig| {
        block_on(async {
            let (host, zfs, spec) = parts(rig);
            let names = &spec.names;
            host.ensure_storage(&spec).await.unwrap();
            let inside = rig.clones().join("browsertask001/root/media");
            run(&["mount", "-t", "tmpfs", "test", inside.to_str().unwrap()]);
            let seen = host.inspect(names, &[Part::Storage, Part::Mounts]).await.unwrap();
            assert_eq!(seen.mounts.len(), 1, "{seen:?}");
            assert_eq!(zfs.destroy(names).await.unwrap_err().kind, HostErrorKind::Busy);
            let holder = Holder::in_folder(&inside);
            assert!(host.unmount(names, Unmount::Gentle).await.is_err(), "in use");
            let deeper = Holder::in_folder(&rig.clones().join("browsertask001/root"));
            host.unmount(names, Unmount::Force).await.unwrap();
            let seen = host.inspect(names, &[Part::Storage, Part::Mounts]).await.unwrap();
            assert!(seen.mounts.is_empty() && !seen.storage.unwrap().mounted);
            assert_eq!(zfs.destroy(names).await.unwrap_err().kind, HostErrorKind::Busy, "still in use");
            drop(deeper);
            drop(holder);
            until(rig, "it can be destroyed", async || zfs.destroy(names).await.is_ok()).await;
            assert!(!Path::new(&names.folder).exists());
        });
    });
}

#[test]
#[ignore = "needs ZFS: scripts/test --vm"]
fn templates_are_made_listed_and_removed() {
    with_zfs("templates_are_made_listed_and_removed", &[], |rig| {
        let shown = rig.hostctl(&["template", "ls"]);
        assert!(
            shown.contains("default") && shown.contains("usable") && !shown.contains("unusable"),
            "{shown}"
        );
        let again = rig.hostctl(&["template", "create"]);
        assert!(again.contains("already exists"), "{again}");
        let second = rig.hostctl(&["template", "create", "--snapshot", "second"]);
        assert!(second.contains("snapshot second"), "{second}");

        // Two snapshots that were not taken at once, and one that nobody looked at.
        let dataset = |name: &str| format!("{}/{name}", rig.parent);
        run(&["zfs", "snapshot", &dataset("browser@separate")]);
        run(&["zfs", "snapshot", &dataset("browser/root@separate")]);
        run(&["zfs", "snapshot", "-r", &dataset("browser@by-hand")]);
        std::fs::write(rig.clones().join("browser/root/profile/Login Data"), "x").unwrap();
        let refused = rig.hostctl(&["template", "create", "--snapshot", "third"]);
        assert!(refused.contains("Login Data"), "{refused}");

        block_on(async {
            let (host, zfs, spec) = parts(rig);
            for (name, words) in
                [("separate", "one transaction"), ("by-hand", "hostctl template create"), ("none", "exist")]
            {
                let error = host.check_template(&name.parse().unwrap()).await.unwrap_err();
                assert_eq!(error.kind, HostErrorKind::Template, "{error:?}");
                assert!(error.message.contains(words), "{error:?}");
            }
            host.check_template(&"second".parse().unwrap()).await.unwrap();
            zfs.ensure(&spec).await.unwrap();
            let used = rig.hostctl(&["template", "rm", "default"]);
            assert!(used.contains("dependent clones"), "{used}");
            let unused = rig.hostctl(&["template", "rm", "second"]);
            assert!(unused.contains("is removed"), "{unused}");
            zfs.destroy(&spec.names).await.unwrap();
            let unused = rig.hostctl(&["template", "rm", "default"]);
            assert!(unused.contains("is removed"), "{unused}");
            assert_eq!(zfs.ensure(&spec).await.unwrap_err().kind, HostErrorKind::Template);
        });
    });
}

#[test]
#[ignore = "needs ZFS: scripts/test --vm"]
fn a_browser_runs_in_a_clone_on_zfs() {
    with_zfs("a_browser_runs_in_a_clone_on_zfs", &[], |rig| {
        block_on(async {
            let daemon = rig.home.start().await;
            let client = patient(&daemon).await;
            let before = rig.datasets();
            let created = client.create(create("browser")).await;
            let clone = created.unwrap_or_else(|error| panic!("{error:?}")).clone;
            assert_eq!(clone.state, CloneState::Ready);
            let endpoint = clone.endpoint.clone().unwrap();
            let title = tokio::task::block_in_place(|| {
                lab::Page::open(&endpoint)
                    .load("data:text/html,<title>rendered</title>", Duration::from_secs(400))
            });
            assert_eq!(title, ("rendered".to_owned(), String::new()));
            let profile = rig.clones().join(clone.name.as_str()).join("root/profile");
            assert!(
                std::fs::read_dir(&profile).unwrap().count() > 0,
                "the browser's profile is in the clone"
            );
            assert_eq!(std::fs::read_dir(rig.clones().join("browser/root/profile")).unwrap().count(), 0);
            client.destroy(params(&clone)).await.unwrap();
            rig.until_empty(&client).await;
            assert_eq!(rig.datasets(), before);
            daemon.stop().await;
        });
    });
}
