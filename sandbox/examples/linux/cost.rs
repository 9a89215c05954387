//! See `examples/cost.rs`.

use sandbox::{FileRule, HostFacts, Launch, Network, Policy, Program, SandboxPlan, Timings};
use std::time::Duration;

type Phase = (&'static str, fn(&Timings) -> Duration);

fn plan(program: &str, arguments: &[&str]) -> Result<SandboxPlan, Box<dyn std::error::Error>> {
    let mut policy = Policy::new("cost");
    policy.network = Network::Proxy { port: 3128 };
    policy.files = FileRule::system_programs();
    policy.files.extend(FileRule::identity_files(&policy.identity, "user", "/tmp"));
    for path in ["/etc/fonts", "/etc/ssl/certs", "/etc/localtime", "/etc/hosts"] {
        policy.files.push(FileRule::read_only_if_present(path));
    }
    policy.files.push(FileRule::temporary("/tmp", 64 << 20));
    policy.files.push(FileRule::temporary("/dev/shm", 64 << 20));
    policy.identity.host_uid = nix::unistd::geteuid().is_root().then_some(kernel::user_ids::EXAMPLES);
    let program =
        Program { path: program.into(), arguments: arguments.iter().map(|a| (*a).to_owned()).collect() };
    Ok(policy.plan(&HostFacts::gather(&policy)?, &program)?)
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(50), |n| n.parse())?;
    let mut timings = Vec::new();
    for _ in 0..rounds {
        let mut sandbox = Launch::new(plan("/usr/bin/true", &[])?).spawn()?;
        timings.push(sandbox.timings());
        sandbox.wait()?;
    }
    let phases: [Phase; 4] = [
        ("prepare", |t| t.prepare),
        ("confine", |t| t.confine),
        ("execute", |t| t.execute),
        ("total", Timings::total),
    ];
    for (name, phase) in phases {
        let mut values: Vec<f64> = timings.iter().map(|t| phase(t).as_secs_f64() * 1000.0).collect();
        values.sort_by(f64::total_cmp);
        println!("{name}-min {:.2} ms", values[0]);
        println!("{name}-median {:.2} ms", values[values.len() / 2]);
    }
    let mut sandbox = Launch::new(plan("/usr/bin/sleep", &["1000"])?).spawn()?;
    let mut all = 0;
    for (name, pid) in processes(&sandbox) {
        let pss = proportional_memory(pid);
        println!("memory-{name} {pss} KiB");
        all += pss;
    }
    println!("memory-total {all} KiB");
    sandbox.kill()?;
    Ok(())
}

/// The launcher, stage 1 and bubblewrap's two processes.
fn processes(sandbox: &sandbox::Sandbox) -> Vec<(&'static str, u32)> {
    let inner = parent(sandbox.program_pid());
    vec![
        ("launcher", std::process::id()),
        ("guard", sandbox.guard_pid()),
        ("bubblewrap-outside", parent(inner)),
        ("bubblewrap-inside", inner),
    ]
}

fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or_default()
}

/// Proportional set size (PSS) of a process, in KiB.
fn proportional_memory(pid: u32) -> u64 {
    std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}
