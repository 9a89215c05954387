//! Compares the rendered rulesets of an example policy with the committed files.
//!
//! `UPDATE_GOLDEN=1 cargo test -p pf --test golden` rewrites the files.

#![allow(clippy::unwrap_used)] // The tests parse their own constants.

use pf::{Policy, PolicySpec, Slot};
use std::path::Path;

fn example() -> Policy {
    let mut spec = PolicySpec::new(vec!["192.168.72.0/24".parse().unwrap()]);
    spec.slots = (1..=4u8)
        .map(|slot| Slot {
            interface: format!("bt{slot:03}"),
            ip: [192, 168, 72, 100 + slot].into(),
            ip6: None,
        })
        .collect();
    spec.resolver = Some("192.168.72.1".parse().unwrap());
    spec.control_plane = vec!["192.168.72.1/32".parse().unwrap()];
    spec.external = Some("em0".into());
    spec.try_into().expect("the example is valid")
}

fn compare(name: &str, rendered: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, rendered).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        rendered, golden,
        "{name} differs from the rendered policy: run with UPDATE_GOLDEN=1 and review the change"
    );
}

#[test]
fn the_nftables_file_is_up_to_date() {
    compare("browser.nft", &pf::nftables::render(&example(), [], &Default::default()));
}

#[test]
fn the_pf_file_is_up_to_date() {
    compare("browser.conf", &pf::pf_conf::render(&example()));
}
