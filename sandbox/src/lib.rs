//! Sandbox policies for Linux processes, and their enforcement.
//!
//! This crate knows nothing about browsers. Its parts, in the order of use:
//!
//! 1. [`Policy`]: files, environment, network, system calls, limits, layers. TOML, printable,
//!    comparable.
//! 2. [`Policy::plan`]: pure; needs only [`HostFacts`]. [`SandboxPlan::explain`] lists what the
//!    program will see and may do, with the exact bubblewrap arguments.
//! 3. `preflight`: real probes of this machine, as a typed report with the fix for each gap.
//! 4. `Launch`: runs the plan. Ok means that every required layer is enforced and the program was
//!    executed. Any error means that it never started.
//!
//! ```no_run
//! # #[cfg(target_os = "linux")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sandbox::{FileRule, HostFacts, Launch, Network, Policy, Program, Stdio};
//! use std::time::Duration;
//!
//! let mut policy = Policy::new("demo");
//! policy.network = Network::Proxy { port: 3128 };
//! policy.files = FileRule::system_programs();                         // /usr, /lib, /bin … to run
//! policy.files.extend(FileRule::identity_files(&policy.identity, "browser", "/home/browser"));
//! policy.files.push(FileRule::temporary("/tmp", 256 << 20));
//! policy.files.push(FileRule::temporary("/dev/shm", 512 << 20));
//! policy.files.push(FileRule::writable("/var/lib/demo/profile", "/home/browser"));
//! policy.environment.insert("HOME".into(), "/home/browser".into());
//! policy.identity.host_uid = Some(1_900_300_000);                     // root launchers only
//!
//! let program = Program { path: "/usr/bin/env".into(), arguments: vec![] };
//! let plan = policy.plan(&HostFacts::gather(&policy)?, &program)?;
//! println!("{}", plan.explain());
//!
//! let mut sandbox = Launch::new(plan).stdout(Stdio::Inherit).spawn()?;
//! println!("layers: {:?}", sandbox.layers());
//! let egress = sandbox.take_proxy_listener();   // accepts the connections that the program makes
//! sandbox.stop(Duration::from_secs(2))?;        // TERM, then KILL; dropping the handle kills too
//! # Ok(()) }
//! # #[cfg(not(target_os = "linux"))]
//! # fn main() {}
//! ```
//!
//! Callers install nothing and call nothing first in `main`: the small static program that runs
//! inside ("stage 2") is embedded in this library.

mod error;
mod explain;
mod facts;
mod plan;
mod policy;
mod presets;
mod syscalls;

pub use error::{Error, PolicyError, error_chain};
pub use facts::{HostFacts, PathKind};
pub use plan::{Argument, HOST_FOLDER, Program, SandboxPlan};
pub use policy::{DeviceRule, FileRule, Identity, LandlockPolicy, Limits, Network, Policy};
pub use sandbox_inside::layer::{Layer, Layers, Requirement};
pub use sandbox_inside::protocol::ExpectedMount;
pub use syscalls::{
    Condition, NAMED_VALUES, NestedNamespace, SyscallErrno, SyscallPolicy, SyscallRule, Test, Value,
};

/// Everything that does I/O is Linux only and lives in this folder.
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::*;
