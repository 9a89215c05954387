mod commands;
mod identity;
mod recorded;
mod scripted;

use crate::api::{CloneId, Limits, SnapshotName};
use crate::config::PoolConfig;
use crate::host::CloneSpec;
use crate::host::zfs::layout::Layout;
use crate::slot::{Slot, SlotNames, Slots};
use std::time::Duration;

const ID: &str = "0b0c8d1e4f5a4c639a3e2f1d7c5b6a70";
const OTHER: &str = "11111111222243338444555555555555";

fn slots() -> Slots {
    let clones_dir = "/usr/local/bastille/jails".into();
    Slots::new(&PoolConfig { clones_dir, ..PoolConfig::default() }).unwrap()
}

fn layout() -> Layout {
    Layout::new(&slots(), "browser")
}

fn names() -> SlotNames {
    slots().names(Slot::new(7).unwrap())
}

fn id(text: &str) -> CloneId {
    CloneId::try_from(text.to_owned()).unwrap()
}

fn snapshot(text: &str) -> SnapshotName {
    SnapshotName::try_from(text.to_owned()).unwrap()
}

fn spec() -> CloneSpec {
    let limits = Limits { disk_bytes: Some(10 << 30), ..Limits::default() };
    CloneSpec {
        names: names(),
        clone_id: id(ID),
        snapshot: snapshot("default"),
        limits,
        deadline: Duration::from_secs(3600),
        secret: None,
        warm_up: false,
    }
}
