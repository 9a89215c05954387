//! What a confined program sees, and what the handle reports.
#![cfg(target_os = "linux")]

mod common;

use common::{as_ordinary_user, in_own_network, is_root, output, policy, private_uid, program, shell, uid};
use sandbox::{
    Error, FileRule, Launch, Layer, LayerState, LimitEnforcer, Network, Requirement, Stdio, preflight,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::time::Duration;

#[test]
fn the_program_sees_only_what_the_policy_names() {
    let folder = tempfile::tempdir().expect("folder");
    chown(folder.path(), Some(private_uid()), Some(private_uid())).expect("chown");
    let mut policy = policy();
    policy.files.push(FileRule::writable(folder.path(), "/data"));
    policy.files.push(FileRule::hidden("/usr/share"));
    policy.environment.insert("GREETING".into(), "hello".into());
    let script = "env | sort; echo; cat /etc/passwd; echo; id -u; uname -n; ls /usr/share 2>&1; \
                  ls -d /home /root /sys /var /etc/shadow 2>/dev/null; echo x > /data/file; \
                  ls /proc/self/fd | tr '\\n' ' '; pwd";
    let (status, text) = output(&policy, script);
    assert_eq!(status, 0, "{text}");
    assert!(text.starts_with("GREETING=hello\nPATH=/usr/bin:/bin\nPWD=/tmp\n\nroot:x:0:0"), "{text}");
    assert!(text.contains("tester:x:1000:1000"), "{text}");
    assert!(text.contains("\n1000\ntest\n"), "{text}");
    assert!(text.contains("/usr/share': Permission denied"), "{text}");
    assert!(text.ends_with("0 1 2 3 /tmp\n"), "{text}");
    for absent in ["/home", "/root\n", "/sys", "/var", "shadow"] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
    let written = std::fs::read_to_string(folder.path().join("file")).expect("written");
    assert_eq!(written, "x\n");
}

#[test]
fn descriptors_arrive_under_their_numbers() {
    let (mut from_program, write_end) = std::io::pipe().expect("pipe");
    let (read_end, mut to_program) = std::io::pipe().expect("pipe");
    let mut sandbox = Launch::new(shell(&policy(), "read line <&3; echo \"got $line\" >&4"))
        .descriptor(3, read_end.into())
        .descriptor(4, write_end.into())
        .spawn()
        .expect("starts");
    to_program.write_all(b"word\n").expect("write");
    let mut text = String::new();
    // Ends only if the program alone holds the other end.
    from_program.read_to_string(&mut text).expect("read");
    assert_eq!(text, "got word\n");
    assert!(sandbox.wait().expect("ends").success());
}

#[test]
fn invalid_descriptor_numbers_are_refused() {
    for number in [-1, 0, 2, 100, 5000] {
        let file = std::fs::File::open("/dev/null").expect("open");
        let result = Launch::new(shell(&policy(), "true")).descriptor(number, file.into()).spawn();
        assert!(matches!(result, Err(Error::Descriptor(n)) if n == number));
    }
}

#[test]
fn the_handle_reports_layers_and_exit_status() {
    let mut sandbox = Launch::new(shell(&policy(), "exit 3")).spawn().expect("starts");
    let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.program_pid()));
    if let Ok(status) = status {
        assert!(status.contains(&format!("Uid:\t{}\t", private_uid())), "{status}");
    }
    for layer in Layer::ALL {
        assert!(sandbox.has(layer), "{layer}: {:?}", sandbox.layers());
    }
    assert_eq!(*sandbox.limits(), LimitEnforcer::NotNeeded);
    assert!(sandbox.timings().total() > Duration::ZERO);
    assert_eq!(sandbox.wait().expect("ends").code(), Some(3));
    assert_eq!(sandbox.wait().expect("still ended").code(), Some(3));
}

#[test]
fn the_host_sees_the_program_confined() {
    let mut sandbox = Launch::new(program(&policy(), "/usr/bin/sleep", &["1000"])).spawn().expect("starts");
    let pid = sandbox.program_pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(field("Name"), "sleep");
    assert_eq!(field("Seccomp"), "2");
    assert_eq!(field("NoNewPrivs"), "1");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    let private = private_uid().to_string();
    assert!(field("Uid").split_whitespace().all(|uid| uid == private));
    assert_eq!(field("Groups"), "", "no supplementary groups");
    let bubblewrap = std::fs::read(format!("/proc/{}/environ", parent(pid))).expect("environ");
    assert!(bubblewrap.is_empty(), "bubblewrap has no environment");
    sandbox.kill().expect("ends");
}

fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let (_, rest) = stat.rsplit_once(')').expect("name");
    let field = rest.split_whitespace().nth(1).expect("parent");
    field.parse().expect("a pid")
}

#[test]
fn a_missing_program_is_a_typed_error() {
    let result = Launch::new(program(&policy(), "/usr/bin/no-such-program", &[])).spawn();
    match result {
        Err(Error::Exec { program, reason }) => {
            assert_eq!(program, "/usr/bin/no-such-program");
            assert!(reason.contains("No such file"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_proxy_port_leads_to_the_launcher_and_back_inside() {
    proxy_and_connect_inside();
}

#[test]
fn the_proxy_port_works_for_an_ordinary_user() {
    as_ordinary_user("ordinary_user_proxy");
}

#[test]
#[ignore = "run as an ordinary user by the test above"]
fn ordinary_user_proxy() {
    assert!(!is_root());
    proxy_and_connect_inside();
}

fn proxy_and_connect_inside() {
    const SCRIPT: &str = r#"
import socket, sys
out = socket.create_connection(("127.0.0.1", 3128)); out.sendall(b"from inside")
out.shutdown(socket.SHUT_WR); out.recv(1)
ear = socket.socket(); ear.bind(("127.0.0.1", 9222)); ear.listen()
print("listening", flush=True)
line, _ = ear.accept(); line.sendall(b"hello outside"); line.close()
import os; os.write(4, os.read(3, 100))
"#;
    let mut policy = policy();
    policy.network = Network::Proxy { port: 3128 };
    let (mut reader, writer) = std::io::pipe().expect("pipe");
    // Together with descriptors, because both use low numbers inside.
    let (mut from_program, write_end) = std::io::pipe().expect("pipe");
    let (read_end, mut to_program) = std::io::pipe().expect("pipe");
    let mut sandbox = Launch::new(program(&policy, "/usr/bin/python3", &["-c", SCRIPT]))
        .stdout(Stdio::Descriptor(writer.into()))
        .descriptor(3, read_end.into())
        .descriptor(4, write_end.into())
        .spawn()
        .expect("starts");
    let listener = sandbox.take_proxy_listener().expect("mode proxy");
    let (mut connection, from) = listener.accept().expect("the program connects");
    assert!(from.ip().is_loopback());
    let mut text = String::new();
    connection.read_to_string(&mut text).expect("read");
    assert_eq!(text, "from inside");
    drop(connection);
    let mut line = [0; 10];
    reader.read_exact(&mut line).expect("the program listens");
    let mut inside = sandbox.connect_inside(9222).expect("connects");
    let mut text = String::new();
    inside.read_to_string(&mut text).expect("read");
    assert_eq!(text, "hello outside");
    to_program.write_all(b"through 3 and 4").expect("write");
    let mut text = String::new();
    from_program.read_to_string(&mut text).expect("read");
    assert_eq!(text, "through 3 and 4");
    assert!(sandbox.wait().expect("ends").success());
    // The port exists only inside.
    assert!(TcpStream::connect(("127.0.0.1", 9222)).is_err());
}

#[test]
fn a_prepared_network_namespace_is_joined() {
    in_own_network(&["10.77.0.1/32"], || {
        let listener = TcpListener::bind("10.77.0.1:0").expect("listen");
        let port = listener.local_addr().expect("address").port();
        let namespace = std::fs::File::open("/proc/thread-self/ns/net").expect("namespace");
        let mut policy = policy();
        policy.network = Network::Filtered;
        let script =
            format!("import socket; socket.create_connection(('10.77.0.1', {port})).sendall(b'joined')");
        let plan = program(&policy, "/usr/bin/python3", &["-c", &script]);
        // From another thread in the machine's own network.
        let launch = Launch::new(plan).network_namespace(namespace.into());
        let mut sandbox = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let main = std::fs::File::open("/proc/self/ns/net").expect("main network");
                    nix::sched::setns(main, nix::sched::CloneFlags::CLONE_NEWNET).expect("setns");
                    launch.spawn()
                })
                .join()
                .expect("thread")
                .expect("starts")
        });
        let (mut connection, _) = listener.accept().expect("the program connects");
        let mut text = String::new();
        connection.read_to_string(&mut text).expect("read");
        assert_eq!(text, "joined");
        assert!(sandbox.has(Layer::Network));
        assert!(sandbox.wait().expect("ends").success());
    });
}

#[test]
fn limits_are_written_to_a_delegated_cgroup() {
    // An ordinary folder with the same files: this tests everything but the kernel.
    let parent = tempfile::tempdir().expect("folder");
    let write = |name: &str, text: &str| std::fs::write(parent.path().join(name), text).expect("write");
    write("cgroup.controllers", "cpu memory pids\n");
    write("cgroup.subtree_control", "cpu memory pids\n");
    let mut policy = policy();
    policy.limits.memory_bytes = Some(512 << 20);
    policy.limits.processes = Some(64);
    policy.limits.cpu_percent = Some(200);
    let mut sandbox =
        Launch::new(shell(&policy, "true")).cgroup_parent(parent.path()).spawn().expect("starts");
    let LimitEnforcer::Cgroup(folder) = sandbox.limits().clone() else {
        panic!("{:?}", sandbox.limits());
    };
    assert!(sandbox.has(Layer::Limits));
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("read");
    assert_eq!(read("memory.max"), "536870912");
    assert_eq!(read("pids.max"), "64");
    assert_eq!(read("cpu.max"), "200000 100000");
    assert_eq!(read("cgroup.procs"), "0", "stage 1 entered the cgroup first");
    sandbox.wait().expect("ends");
}

#[test]
fn a_layer_that_is_off_is_reported_as_off() {
    let mut policy = policy();
    policy.layers.set(Layer::Seccomp, Requirement::Off);
    let mut sandbox = Launch::new(shell(&policy, "true")).spawn().expect("starts");
    assert!(sandbox.layers().contains(&(Layer::Seccomp, LayerState::Off)));
    assert!(sandbox.has(Layer::Landlock));
    sandbox.wait().expect("ends");
}

#[test]
fn the_preflight_succeeds_on_this_machine() {
    let report = preflight::check(None, 6);
    let problems: Vec<_> = report.problems().collect();
    assert!(problems.is_empty(), "{report}");
    assert!(report.bubblewrap_version.is_some());
    let json = serde_json::to_value(&report).expect("serializes");
    assert_eq!(json["probes"][0]["name"], "bubblewrap");
}

#[test]
fn the_preflight_succeeds_for_an_ordinary_user() {
    as_ordinary_user("ordinary_user_preflight");
}

#[test]
#[ignore = "run as an ordinary user by the test above"]
fn ordinary_user_preflight() {
    assert!(!is_root());
    let report = preflight::check(None, 6);
    assert!(report.is_good(), "{report}");
}

#[test]
fn two_sandboxes_do_not_see_each_other() {
    let first = tempfile::tempdir().expect("folder");
    let mut one = policy();
    one.identity.host_uid = Some(uid(1));
    chown(first.path(), Some(uid(1)), Some(uid(1))).expect("chown");
    one.files.push(FileRule::writable(first.path(), "/data"));
    let script = "echo mine > /data/secret; echo x > /dev/shm/shared; sleep 1000";
    let mut running = Launch::new(shell(&one, script)).spawn().expect("starts");
    common::eventually("the first one wrote", || first.path().join("secret").exists());
    let mut two = policy();
    two.identity.host_uid = Some(uid(2));
    two.files.push(FileRule::temporary("/data", 1 << 20));
    let (status, text) = output(&two, "ls -A /data /dev/shm; ls /proc | grep -c '^[0-9]'");
    assert_eq!(status, 0, "{text}");
    // Process 1, the shell, ls and grep.
    assert_eq!(text.lines().last(), Some("4"), "{text}");
    assert!(!text.contains("secret") && !text.contains("shared"), "{text}");
    running.kill().expect("ends");
}

#[test]
fn several_sandboxes_start_concurrently() {
    let threads: Vec<_> = (0..8)
        .map(|number| std::thread::spawn(move || output(&policy(), &format!("echo {number}; exit {number}"))))
        .collect();
    for (number, thread) in threads.into_iter().enumerate() {
        let (status, text) = thread.join().expect("thread");
        assert_eq!((status, text), (number as i32, format!("{number}\n")));
    }
}
