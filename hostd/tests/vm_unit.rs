//! hostd as a service of systemd, on a machine with cgroup v2: what its units promise.
//!
//! No container and no namespace has these, so the tests run in a machine of their own: `scripts/test --vm`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod lab;
mod machine;

use hostd::api::{CloneState, Launch, StatusParams};
use machine::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Without browserd: the clone's endpoint is the browser's own socket.
const BROWSER: &str = r#"
[linux]
browserd = ""
[clone_limits]
memory_bytes = 1073741824
processes = 512
cpu_percent = 200
[lifecycle]
quarantine_seconds = 0
reconcile_interval_ms = 1000
step_timeout_seconds = 900
"#;

/// A program in browserd's place that can be told to turn on its host.
fn hostile() -> String {
    let here = std::env::var("HOSTD_VM").expect("only in the machine of scripts/vm-test");
    format!(
        r#"
[linux]
browserd = "{here}/vm/hostile-service"
[clone_limits]
memory_bytes = 536870912
processes = 150
cpu_percent = 50
[lifecycle]
quarantine_seconds = 0
reconcile_interval_ms = 1000
step_timeout_seconds = 900
"#
    )
}

fn title(page: &mut lab::Page) -> (String, String) {
    page.load("data:text/html,<title>rendered</title><h1>Hello</h1>", PATIENCE)
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn a_browser_outlives_every_restart_of_hostd() {
    let machine = Machine::install(BROWSER);
    let unit = Path::new("/sys/fs/cgroup/system.slice/hostd.service");
    let status =
        ask(async |client| client.status(StatusParams { metrics: false, checks: true }).await).unwrap();
    assert_eq!(status.host["limits"], format!("cgroup v2 below {CLONES}"));
    println!("{}", run("hostctl doctor"));
    until("hostd has looked at its host", || clones().is_empty());
    let before = Inventory::now();

    // Limits are the kernel's, and hostd's own unit holds hostd and nothing else.
    let clone = create("outlives");
    for stage in &clone.stages {
        println!("create {:<10} {:>8.1} s", stage.stage, stage.seconds);
    }
    let group = cgroup(&clone);
    assert_eq!(read(&group, "memory.max"), (1u64 << 30).to_string());
    assert_eq!(read(&group, "memory.swap.max"), "0");
    assert_eq!(read(&group, "pids.max"), "512");
    assert_eq!(read(&group, "cpu.max"), "200000 100000");
    // Supervisor, the sandbox's two stages and process 1, and the browser; its own children come and go.
    let browser: BTreeSet<u32> = inside(&group).into_iter().take(5).collect();
    assert_eq!(browser.len(), 5, "{browser:?}");
    assert_eq!(inside(unit).into_iter().collect::<Vec<_>>(), [main_pid()]);
    let mut page = lab::Page::open(clone.endpoint.as_ref().unwrap());
    assert_eq!(title(&mut page), ("rendered".to_owned(), String::new()));

    let lives = |what: &str| {
        until(what, || show("hostd.service", "ActiveState") == "active");
        let seen = until_state(&clone, CloneState::Ready);
        assert_eq!(seen.clone_id, clone.clone_id, "{what}");
        assert!(browser.is_subset(&inside(&group)), "{what}: {browser:?} became {:?}", inside(&group));
    };
    // A restart, as an update does it.
    let old = main_pid();
    run("systemctl restart hostd.service");
    assert_ne!(main_pid(), old);
    lives("after a restart");
    // A crash: systemd starts it again.
    let old = main_pid();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(old).unwrap()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    until("systemd starts it again", || ![0, old].contains(&main_pid()));
    lives("after a crash");
    // A stop. The socket is systemd's and stays, so the next call starts it again.
    run("systemctl stop hostd.service");
    assert_eq!(show("hostd.service", "ActiveState"), "inactive");
    assert!(browser.is_subset(&inside(&group)), "a stop leaves clones alone");
    assert_eq!(clones().len(), 1, "the socket starts it");
    lives("after a stop and a call");
    assert_eq!(show("hostd.service", "Type"), "notify");
    // The same page as before all this still works.
    assert_eq!(title(&mut page), ("rendered".to_owned(), String::new()));
    drop(page);

    destroy(&clone);
    until_empty();
    assert!(!group.exists(), "{}", group.display());
    before.until_again("the clone was taken away");
    machine.uninstall();
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn a_memory_hog_and_a_fork_bomb_hurt_only_their_clone() {
    let machine = Machine::install(&hostile());
    let (bystander, hog, bomb) = (create("bystander"), create("hog"), create("bomb"));
    let daemon = main_pid();
    let unharmed = |what: &str| {
        assert!(get(&bystander, "/readyz"), "{what}: the other clone answers");
        assert_eq!(until_state(&bystander, CloneState::Ready).clone_id, bystander.clone_id, "{what}");
        assert_eq!(main_pid(), daemon, "{what}: hostd goes on");
        assert_eq!(show("hostd-clones.service", "ActiveState"), "active", "{what}");
        assert!(Command::new("true").status().unwrap().success(), "{what}: the host starts processes");
    };

    // At its memory limit the kernel ends the hog; the clone is broken, and says why.
    assert!(get(&hog, "/hog"));
    let seen = until_state(&hog, CloneState::Broken);
    let problem = seen.problem.expect("a problem");
    assert!(problem.contains("ended at its memory limit"), "{problem}");
    assert!(count(&cgroup(&hog), "memory.events", "oom_kill") >= 1);
    println!("hog: {problem}; {}", read(&cgroup(&hog), "memory.events").replace('\n', ", "));
    unharmed("a memory hog");
    destroy(&hog);

    // At its limit of processes a bomb gets no more of them; hostd still sees the clone and takes it away.
    assert!(get(&bomb, "/bomb"));
    let group = cgroup(&bomb);
    until("the bomb is at its limit", || count(&group, "pids.events", "max") > 0);
    let current: u64 = read(&group, "pids.current").parse().unwrap();
    assert!(current <= 150, "{current} processes");
    println!("bomb: {current} of 150 processes, {}", read(&group, "pids.events"));
    unharmed("a fork bomb");
    destroy(&bomb);
    assert!(!group.exists(), "{}", group.display());
    unharmed("the end of a fork bomb");

    // Rates cannot be limited on Linux: doctor reports it and creates are refused.
    let config = fs::read_to_string("/etc/hostd/hostd.toml").unwrap();
    let rates = config.replace("cpu_percent = 50", "cpu_percent = 50\nread_bytes_per_second = 1000000");
    fs::write("/etc/hostd/hostd.toml", rates).unwrap();
    run("systemctl restart hostd.service");
    let doctor = Command::new("hostctl").arg("doctor").output().unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(!doctor.status.success() && said.contains("cannot be limited on Linux"), "{said}");
    let refused = Command::new("hostctl").args(["create", "--json"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(7), "{}", String::from_utf8_lossy(&refused.stdout));

    machine.uninstall();
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn browserd_in_a_folder_of_our_own() {
    // As without the unit: hostd makes the folder at the root of cgroup v2 itself, beside what systemd has there.
    let own = Path::new("/sys/fs/cgroup/hostd");
    let machine =
        Machine::install(&BROWSER.replace(r#"browserd = """#, r#"cgroup = "/sys/fs/cgroup/hostd""#));
    let status = ask(async |client| client.status(StatusParams::default()).await).unwrap();
    assert_eq!(status.host["limits"], format!("cgroup v2 below {}", own.display()));
    let clone = create("own");
    for stage in &clone.stages {
        println!("create {:<10} {:>8.1} s", stage.stage, stage.seconds);
    }
    assert!(get(&clone, "/readyz"), "browserd answers");
    let group = own.join(clone.name.as_str());
    assert_eq!(read(&group, "memory.max"), (1u64 << 30).to_string());
    assert!(inside(&group).len() >= 5, "{:?}", inside(&group));
    // systemd reads its units again and writes its own cgroups again: ours are left alone.
    run("systemctl daemon-reload");
    run("systemctl set-property --runtime system.slice CPUWeight=90 MemoryMax=infinity");
    assert_eq!(read(&group, "cpu.max"), "200000 100000");
    // Somebody else changes a limit: the next reconcile sets it again.
    fs::write(group.join("pids.max"), "max").unwrap();
    until("the limit is back", || read(&group, "pids.max") == "512");
    destroy(&clone);
    assert!(!group.exists(), "{}", group.display());
    run("systemctl revert system.slice");
    machine.uninstall();
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn a_member_of_the_warm_pool_is_frozen_by_the_kernel() {
    let machine = Machine::install(&format!("{BROWSER}[pool]\nsize = 1\nrefill_percent = 100\n"));
    let member = || {
        let status = ask(async |client| client.status(StatusParams::default()).await).unwrap();
        let members = status.warm_pool.expect("a warm pool").members;
        members.first().map(|member| Path::new(CLONES).join(member.name.as_str()))
    };
    let frozen = |group: &Path| count(group, "cgroup.events", "frozen") == 1;
    until("there is a member", || member().is_some());
    let group = member().unwrap();
    assert!(frozen(&group), "{}", read(&group, "cgroup.events"));
    let used = count(&group, "cpu.stat", "usage_usec");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(count(&group, "cpu.stat", "usage_usec"), used, "not one tick of a processor");

    let clone = create("warm");
    assert_eq!(clone.launch, Some(Launch::Warm), "{}", journal());
    for stage in &clone.stages {
        println!("create {:<10} {:>8.3} s", stage.stage, stage.seconds);
    }
    assert_eq!(cgroup(&clone), group);
    assert!(!frozen(&group), "{}", read(&group, "cgroup.events"));
    let mut page = lab::Page::open(clone.endpoint.as_ref().unwrap());
    assert_eq!(title(&mut page), ("rendered".to_owned(), String::new()));
    drop(page);
    // A crash of hostd leaves a member; the next one proves and adopts it.
    until("the next member is there", || member().is_some_and(|next| next != group && frozen(&next)));
    let next = member().unwrap();
    let processes = inside(&next);
    run("systemctl kill --signal=SIGKILL --kill-whom=main hostd.service");
    until("it is adopted", || member().as_deref() == Some(&next) && frozen(&next));
    // The same browser: a spare process of it may end when it is woken for the proof, none is new.
    let adopted = inside(&next);
    assert!(
        !adopted.is_empty() && adopted.is_subset(&processes),
        "{adopted:?}, {processes:?}: {}",
        journal()
    );
    assert_eq!(adopted.first(), processes.first(), "its first process");
    // Frozen or not, everything goes.
    machine.uninstall();
}

#[test]
#[ignore = "needs systemd and cgroup v2: scripts/test --vm"]
fn stopping_the_clones_unit_and_starting_the_machine_again() {
    let machine = Machine::install(&hostile());
    until("hostd has looked at its host", || clones().is_empty());
    let before = Inventory::now();
    let clone = create("stopped");
    let processes = inside(&cgroup(&clone));

    // The unit that holds the clones: stopping it ends every clone, and hostd, which needs it.
    run("systemctl stop hostd-clones.service");
    until("every process of the clone is gone", || {
        processes.iter().all(|pid| !Path::new(&format!("/proc/{pid}/exe")).exists())
    });
    until("hostd ended with it", || show("hostd.service", "ActiveState") == "inactive");
    let seen = until_state(&clone, CloneState::Broken);
    println!("after the unit's stop: {}", seen.problem.unwrap_or_default());
    assert_eq!(show("hostd-clones.service", "ActiveState"), "active", "the call started both");
    destroy(&clone);
    until_empty();

    // The machine starts again: no process, no mount, no link, no rule, another boot; only the disk is as it was.
    let clone = create("rebooted");
    run("systemctl stop hostd.service hostd-clones.service");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let ours = mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|at| at.contains("hostd"));
    for at in ours.collect::<Vec<_>>().into_iter().rev() {
        run(&format!("umount --lazy {at}"));
    }
    until("the links are gone with their namespaces", || !run("ip -o link").contains("bt0"));
    run("nft flush ruleset");
    let boot = Path::new("/run/another-boot");
    fs::write(boot, "11111111-2222-3333-4444-555555555555\n").unwrap();
    run("mount --bind /run/another-boot /proc/sys/kernel/random/boot_id");
    run("systemctl start hostd.service");
    until_empty();
    run("umount /proc/sys/kernel/random/boot_id");
    fs::remove_file(boot).unwrap();
    assert!(!cgroup(&clone).exists());
    before.until_again("the clone was taken away");
    machine.uninstall();
}
