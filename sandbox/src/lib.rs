//! What a confined Linux process may see and do, as a value; and the enforcement of it.
//!
//! This crate knows nothing of browsers. Its parts, in the order in which they are used:
//!
//! 1. [`Policy`]: files, environment, network, system calls, limits, layers. TOML, printable,
//!    comparable.
//! 2. [`Policy::plan`]: pure; needs only [`HostFacts`]. [`Plan::explain`] says in plain words what
//!    the program will see and may do, with the exact bubblewrap arguments.
//! 3. `preflight`: real probes of this machine, as a typed report with the fix for each gap.
//! 4. `Launch`: runs the plan. Ok means that every required layer is in force and the program has
//!    been executed; any error means that it never started.
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
//! policy.identity.host_uid = Some(60001);                             // root launchers only
//!
//! let program = Program { path: "/usr/bin/env".into(), arguments: vec![] };
//! let plan = policy.plan(&HostFacts::gather(&policy)?, &program)?;
//! println!("{}", plan.explain());
//!
//! let mut sandbox = Launch::new(plan).stdout(Stdio::Inherit).spawn()?;
//! println!("layers in force: {:?}", sandbox.layers());
//! let egress = sandbox.take_proxy_listener();   // accept() here what the program dials inside
//! sandbox.stop(Duration::from_secs(2))?;        // TERM, then KILL; dropping the handle kills too
//! # Ok(()) }
//! # #[cfg(not(target_os = "linux"))]
//! # fn main() {}
//! ```
//!
//! No program has to be installed and no function has to be called first in `main`: the small
//! static program that runs inside ("stage 2") is embedded in this library.

mod error;
mod explain;
mod facts;
mod plan;
mod policy;
mod presets;
mod syscalls;

pub use error::{Error, PolicyError};
pub use facts::{HostFacts, PathKind};
pub use plan::{Argument, HOST_FOLDER, Plan, Program};
pub use policy::{DeviceRule, FileRule, Identity, LandlockPolicy, Limits, Network, Policy};
pub use sandbox_inside::layer::{Layer, Layers, Requirement};
pub use sandbox_inside::protocol::ExpectedMount;
pub use syscalls::{
    Answer, Condition, NAMED_VALUES, NestedNamespace, SyscallPolicy, SyscallRule, Test, Value,
};

/// Everything that touches a machine is Linux only and lives in this folder.
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::*;
