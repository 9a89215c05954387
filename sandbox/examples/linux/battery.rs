//! See `examples/battery.rs`.

use sandbox::battery::{Options, run};
use sandbox::{FileRule, Layer, Policy, Requirement};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut policy = Policy::new("battery");
    policy.files = FileRule::system_programs();
    policy.files.extend(FileRule::identity_files(&policy.identity, "user", "/tmp"));
    policy.files.push(FileRule::temporary("/tmp", 16 << 20));
    policy.files.push(FileRule::temporary("/dev/shm", 16 << 20));
    policy.limits.open_files = 256;
    policy.identity.host_uid = nix::unistd::geteuid().is_root().then_some(kernel::user_ids::EXAMPLES);
    for name in std::env::args().skip(1) {
        let layer = Layer::ALL
            .into_iter()
            .find(|layer| layer.name() == name)
            .ok_or_else(|| format!("no layer is called {name:?}"))?;
        policy.layers.set(layer, Requirement::Off);
    }
    // Default options: the battery dials only its own listeners on the loopback.
    print!("{}", run(&policy, &Options::default())?);
    Ok(())
}
