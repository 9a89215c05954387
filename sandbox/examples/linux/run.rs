//! See `examples/run.rs`.

use sandbox::{FileRule, HostFacts, Launch, Network, Policy, Program, Stdio};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let explain = words.first().is_some_and(|word| word == "--explain");
    if explain {
        words.remove(0);
    }
    let [path, arguments @ ..] = &words[..] else {
        return Err("usage: run [--explain] PROGRAM [ARGUMENT…]".into());
    };
    let mut policy = Policy::new("example");
    policy.network = Network::None;
    policy.files = FileRule::system_programs();
    policy.files.extend(FileRule::identity_files(&policy.identity, "user", "/tmp"));
    policy.files.push(FileRule::temporary("/tmp", 64 << 20));
    policy.files.push(FileRule::temporary("/dev/shm", 64 << 20));
    policy.environment.insert("PATH".into(), "/usr/bin:/bin".into());
    policy.working_folder = "/tmp".into();
    policy.identity.host_uid = nix::unistd::geteuid().is_root().then_some(kernel::user_ids::EXAMPLES);
    let program = Program { path: path.into(), arguments: arguments.to_vec() };
    let plan = policy.plan(&HostFacts::gather(&policy)?, &program)?;
    if explain {
        print!("{}", plan.explain());
        return Ok(());
    }
    // The program gets pipes, because a terminal is refused.
    let (mut output, its_output) = std::io::pipe()?;
    let (mut errors, its_errors) = std::io::pipe()?;
    let mut sandbox = Launch::new(plan)
        .stdout(Stdio::Descriptor(its_output.into()))
        .stderr(Stdio::Descriptor(its_errors.into()))
        .spawn()?;
    let copies = [
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::stdout())),
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::stderr())),
    ];
    let timings = sandbox.timings();
    let status = sandbox.wait()?;
    for copy in copies {
        copy.join().map_err(|_| "copying the program's output panicked")??;
    }
    eprintln!("{status}, started in {:?}", timings.total());
    std::process::exit(status.code().unwrap_or(1))
}
