//! The operator's template commands beside a running daemon: what is in use stays, and nobody gets half a template.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;
mod life;

use daemon::{Home, create};
use lab::in_private_machine;
use life::{block_on, code, destroy, home, made, same, until_empty};
use std::fs;
use std::process::{Command, Output};

/// The binary of the package hostctl, which `cargo build -p hostctl` makes.
fn hostctl() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name("hostctl")
}

/// `hostctl template` with the daemon's configuration.
fn template(lab: &lab::Lab, home: &Home, arguments: &[&str]) -> Output {
    let config = home.path().join("hostctl.toml");
    let text = format!(
        "[linux]\ntemplates = {:?}\n[pool]\nclones_dir = {:?}\n",
        lab.templates,
        home.path().join("clones")
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new(hostctl());
    command.arg("template").args(arguments).env_clear().env("HOSTD_CONFIG", &config);
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_template_in_use_stays() {
    in_private_machine("a_template_in_use_stays", |lab| {
        let home = home(lab, &[]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let clone = made(&client, "user", &home).await;

            // Refused, by name; also where the clone's mounts cannot be seen, as in a mount namespace of its own.
            let refused = template(lab, &home, &["rm", "default"]);
            assert_eq!(refused.status.code(), Some(5), "{}", said(&refused));
            assert!(said(&refused).contains(clone.name.as_str()), "{}", said(&refused));
            let view = home.path().join("clones").join(clone.name.as_str());
            let hidden = Command::new("unshare")
                .args(["--mount", "sh", "-c", "umount -l \"$0\" && exec \"$@\""])
                .arg(&view)
                .arg(hostctl())
                .args(["template", "rm", "default"])
                .env_clear()
                .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
                .env("HOSTD_CONFIG", home.path().join("hostctl.toml"))
                .output()
                .unwrap();
            assert_eq!(hidden.status.code(), Some(5), "{}", said(&hidden));

            // Another snapshot can come and go meanwhile.
            for arguments in [["create", "--snapshot", "other"].as_slice(), &["rm", "other"]] {
                let done = template(lab, &home, arguments);
                assert!(done.status.success(), "{}", said(&done));
            }

            // Unused it goes, creates are refused, and a new one of its name is used at once.
            destroy(&client, &clone).await;
            let done = template(lab, &home, &["rm", "default"]);
            assert!(done.status.success(), "{}", said(&done));
            assert_eq!(code(&client.create(create("none")).await.unwrap_err()), "template_unusable");
            let done = template(lab, &home, &["create"]);
            assert!(done.status.success(), "{}", said(&done));
            let again = made(&client, "again", &home).await;
            destroy(&client, &again).await;
            daemon.stop().await;
        });
    });
}

#[test]
fn commands_and_creates_do_not_meet() {
    in_private_machine("commands_and_creates_do_not_meet", |lab| {
        let home = home(lab, &[]);
        block_on(async {
            let daemon = home.start().await;
            let client = daemon.client().await;
            let before = lab.inventory(home.path());
            let operator = async {
                let (mut removed, mut refused) = (0, 0);
                for _ in 0..12 {
                    let rm = tokio::task::block_in_place(|| template(lab, &home, &["rm", "default"]));
                    match rm.status.code() {
                        Some(0) => {
                            removed += 1;
                            let made = tokio::task::block_in_place(|| template(lab, &home, &["create"]));
                            assert!(made.status.success(), "{}", said(&made));
                        }
                        Some(5) => refused += 1,
                        _ => panic!("{}", said(&rm)),
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                (removed, refused)
            };
            let caller = async {
                let (mut made, mut without) = (0, 0);
                for number in 0..8 {
                    match client.create(create(format!("race-{number}"))).await {
                        Ok(created) => {
                            made += 1;
                            // Its template is whole: the folders that every clone has are there.
                            let view = home.path().join("clones").join(created.clone.name.as_str());
                            assert!(view.join("profile").is_dir(), "{}", view.display());
                            destroy(&client, &created.clone).await;
                        }
                        Err(error) => {
                            assert_eq!(code(&error), "template_unusable", "{error:?}\n{}", home.log());
                            without += 1;
                        }
                    }
                }
                (made, without)
            };
            let ((removed, refused), (made, without)) = tokio::join!(operator, caller);
            println!(
                "templates: {removed} removed, {refused} in use; clones: {made} made, {without} without a template"
            );
            assert_eq!((removed + refused, made + without), (12, 8));
            fs::remove_file(home.path().join("hostctl.toml")).unwrap();
            until_empty(&daemon).await;
            same(&before, &lab.inventory(home.path()));
            daemon.stop().await;
        });
    });
}
