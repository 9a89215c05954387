//! Installs the system call filters that were compiled outside.

use super::Failure;
use crate::layer::{Layer, Requirement};
use crate::protocol::{Instruction, Seccomp};
use seccompiler::sock_filter;

/// Installs all filters. Returns `Some(reason)` if the kernel cannot and the layer is optional.
pub fn install(orders: &Seccomp) -> Result<Option<String>, Failure> {
    for program in &orders.programs {
        let program: Vec<sock_filter> = program.iter().map(unpack).collect();
        if let Err(error) = seccompiler::apply_filter(&program) {
            let reason = format!("install a system call filter: {error}");
            return match orders.requirement {
                Requirement::Optional => Ok(Some(reason)),
                _ => Err(Failure::of(Layer::Seccomp, reason)),
            };
        }
    }
    verify(orders).map(|()| None)
}

/// Checks `Seccomp:` in `/proc/self/status`; mode 2 is "filter".
fn verify(orders: &Seccomp) -> Result<(), Failure> {
    let status = super::verify::process_status()?;
    if orders.programs.is_empty() || status.get("Seccomp").map(String::as_str) == Some("2") {
        return Ok(());
    }
    Err(Failure::of(Layer::Seccomp, "the filter is not enforced"))
}

fn unpack(Instruction(code, jt, jf, k): &Instruction) -> sock_filter {
    sock_filter { code: *code, jt: *jt, jf: *jf, k: *k }
}
