//! The errors of the contract that the lifecycle answers with.

use super::registry::NoSlot;
use crate::api::{CloneName, ErrorCode, RpcError};
use crate::config::Config;
use crate::host::{HostError, HostErrorKind, chain};
use crate::slot::Slots;
use std::time::Duration;

/// What callers are told to wait when the real time is not known.
const SOON: Duration = Duration::from_secs(1);

/// A host's failure as the contract knows it, with the whole chain of causes in its message.
pub(super) fn host_error(error: &HostError) -> RpcError {
    let code = match error.kind {
        HostErrorKind::NoSpace => ErrorCode::DiskFull,
        HostErrorKind::Timeout => ErrorCode::Timeout,
        HostErrorKind::Template => ErrorCode::TemplateUnusable,
        HostErrorKind::NotReady => ErrorCode::HostNotReady,
        HostErrorKind::Busy | HostErrorKind::Foreign | HostErrorKind::Failed => ErrorCode::StepFailed,
    };
    RpcError::new(code, chain(error), error.hint.clone())
}

pub(super) fn host_not_ready(message: &str, hint: &str) -> RpcError {
    RpcError::new(ErrorCode::HostNotReady, message, hint).retry_after(SOON)
}

pub(super) fn shutting_down() -> RpcError {
    RpcError::new(ErrorCode::ShuttingDown, "hostd is stopping", "try again when it is back").retry_after(SOON)
}

/// An operation panicked.
pub(super) fn operation_died() -> RpcError {
    RpcError::new(
        ErrorCode::Internal,
        "the operation died inside hostd",
        "its log says where; the reaper removes what the operation left",
    )
}

pub(super) fn state_unavailable(config: &Config, error: &std::io::Error) -> RpcError {
    let path = config.paths.state.display();
    RpcError::new(
        ErrorCode::StateUnavailable,
        format!("{path}: the record cannot be written: {error}"),
        "free space on its disk or correct its permissions, then try again",
    )
}

pub(super) fn unknown_name(name: &str, slots: &Slots) -> RpcError {
    let range = match (slots.slots().next(), slots.slots().last()) {
        (Some(first), Some(last)) => format!("{} to {}", slots.name(first), slots.name(last)),
        _ => "none".into(),
    };
    RpcError::new(
        ErrorCode::InvalidParams,
        format!("{name} is not a clone name of this host"),
        format!("names here are {range}"),
    )
}

pub(super) fn name_taken(name: &str, why: &str) -> RpcError {
    RpcError::new(
        ErrorCode::NameTaken,
        format!("{name} is not free: {why}"),
        "leave name out to get any free slot; hostctl ls --all shows who has this one",
    )
}

pub(super) fn wrong_clone(name: &CloneName) -> RpcError {
    let message = format!("{name} is another clone by now; nothing was touched");
    RpcError::new(ErrorCode::WrongClone, message, "the clone you mean is gone already").about(name)
}

/// Why a create gets no slot. `name` is the requested name, if there is one.
pub(super) fn no_slot(
    why: NoSlot,
    config: &Config,
    slots: &Slots,
    name: Option<CloneName>,
    tenant: &str,
) -> RpcError {
    let server = &config.server;
    let error = match why {
        NoSlot::HostFull => RpcError::new(
            ErrorCode::HostFull,
            format!("this host has all of its {} clones", server.max_clones),
            "destroy one, or raise server.max_clones",
        ),
        NoSlot::TenantFull => RpcError::new(
            ErrorCode::TenantFull,
            format!("tenant {tenant} has all of its {} clones", server.max_clones_per_tenant),
            "destroy one, or raise server.max_clones_per_tenant",
        ),
        NoSlot::NoneFree => RpcError::new(
            ErrorCode::HostFull,
            format!("none of the {} slots is free", slots.len()),
            "freed slots stay unused for lifecycle.quarantine_seconds; hostctl ls --all shows them",
        ),
        NoSlot::Taken | NoSlot::Evict(_) => {
            let name = name.map_or("the slot".to_owned(), String::from);
            name_taken(&name, "it is in use, quarantined or not hostd's")
        }
    };
    error.retry_after(SOON)
}

/// The limit that a refusal is counted under.
pub(super) fn limit_label(why: NoSlot) -> Option<&'static str> {
    match why {
        NoSlot::HostFull => Some("clones"),
        NoSlot::TenantFull => Some("tenant_clones"),
        NoSlot::NoneFree => Some("slots"),
        NoSlot::Taken | NoSlot::Evict(_) => None,
    }
}
