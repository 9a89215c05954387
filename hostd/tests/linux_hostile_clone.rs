//! A hostile clone on the real kernel: what it writes, floods and holds never harms the host or another clone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod daemon;
mod lab;
mod life;

use daemon::{Home, create};
use hostd::api::CloneInfo;
use lab::{LIMIT, Lab, PORT, PUBLIC, Page, in_private_machine};
use life::{block_on, destroy, home, made};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The bound of a clone's log, as documented.
const LOG_BYTES: u64 = 64 << 10;

fn run_folder(home: &Home, clone: &CloneInfo) -> PathBuf {
    home.path().join("state/run").join(clone.name.as_str())
}

/// The mounts that a process sees: ID and device.
fn mounts(process: &str) -> BTreeMap<u64, (String, PathBuf)> {
    let text = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        Some((fields[0].parse().ok()?, (fields[2].to_owned(), PathBuf::from(fields[4]))))
    };
    text.lines().filter_map(parse).collect()
}

/// Whether a descriptor is open for writing, and the mount it is on.
fn mode_and_mount(process: u32, number: &str) -> Option<(bool, u64)> {
    let text = fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
    Some((flags & libc::O_ACCMODE != libc::O_RDONLY, field("mnt_id:")?.parse().ok()?))
}

/// Look at every descriptor of every process of a clone. The result is how many processes and descriptors there were.
fn check_descriptors(home: &Home, clone: &CloneInfo) -> (usize, usize) {
    let clones = home.path().join("clones");
    let of_host: BTreeSet<String> = mounts("self")
        .into_values()
        .filter(|(_, at)| !at.starts_with(&clones) || *at == clones)
        .map(|(device, _)| device)
        .collect();
    let processes = lab::processes(&run_folder(home, clone));
    let known: BTreeMap<u64, String> = processes
        .keys()
        .flat_map(|pid| mounts(&pid.to_string()))
        .map(|(id, (device, _))| (id, device))
        .collect();
    let mut looked = 0;
    for (pid, command) in &processes {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let number = entry.file_name().into_string().unwrap();
            // A descriptor that is closed meanwhile is none.
            let (Ok(link), Ok(meta)) = (fs::read_link(entry.path()), fs::metadata(entry.path())) else {
                continue;
            };
            let Some((is_writable, mount)) = mode_and_mount(*pid, &number) else { continue };
            looked += 1;
            let what = format!("descriptor {number} of {pid} ({command:?}) is {}", link.display());
            let kind = meta.file_type();
            // Memory devices (null, zero, random) have the major number 1; terminals have others.
            assert!(!kind.is_char_device() || libc::major(meta.rdev()) == 1, "{what}");
            assert!(!kind.is_block_device(), "{what}");
            if kind.is_file() && is_writable && !link.to_string_lossy().starts_with("/memfd:") {
                let device = known.get(&mount).unwrap_or_else(|| panic!("{what}, on no mount of the clone"));
                assert!(!of_host.contains(device), "{what}, a file of the host");
            }
        }
    }
    (processes.len(), looked)
}

/// The program beside hostd's own.
fn browserd() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name("browserd");
    assert!(path.is_file(), "{} is missing: cargo build -p browserd", path.display());
    path
}

#[test]
fn no_process_of_a_clone_holds_a_file_of_the_host() {
    in_private_machine("no_process_of_a_clone_holds_a_file_of_the_host", |lab| {
        for program in [browserd(), PathBuf::new()] {
            let home =
                home(lab, &[&format!("linux.browserd={}", program.display()), "paths.socket_group=daemon"]);
            block_on(async {
                let daemon = home.start().await;
                let client = daemon.client().await;
                let clone = made(&client, "descriptors", &home).await;
                if program.as_os_str().is_empty() {
                    let endpoint = clone.endpoint.clone().unwrap();
                    let title = tokio::task::block_in_place(|| {
                        Page::open(&endpoint).load(&format!("http://{PUBLIC}:{PORT}/"), LIMIT).0
                    });
                    assert_eq!(title, "rendered");
                    // The browser's socket has no authentication: root's alone, not the callers' group's.
                    let socket = fs::metadata(run_folder(&home, &clone).join("cdp")).unwrap();
                    let (mode, uid, gid) = (socket.permissions().mode() & 0o777, socket.uid(), socket.gid());
                    assert_eq!((mode, uid, gid), (0o600, 0, 0));
                }
                let (processes, descriptors) = check_descriptors(&home, &clone);
                assert!(processes > 4 && descriptors > 4 * processes, "{processes} with {descriptors}");
                let log = run_folder(&home, &clone).join("log");
                assert!(fs::read_to_string(&log).unwrap().contains("supervisor: "), "its own messages");
                assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
                destroy(&client, &clone).await;
                daemon.stop().await;
            });
        }
    });
}

/// A program in browserd's place.
fn stand_in(folder: &Path, name: &str, flood: &str) -> PathBuf {
    let path = folder.join(name);
    let text = format!(
        "#!/usr/bin/perl\nBEGIN {{ @INC = grep {{ m{{^/usr/(lib|share)/}} }} @INC }}\n\
         use IO::Socket::INET; $| = 1; my ($at) = $ARGV[0] =~ /=(.*)/;\n\
         my $socket = IO::Socket::INET->new(LocalAddr => $at, Listen => 5) or die;\n\
         if (!fork) {{ {flood} exit }}\n\
         select undef, undef, undef, 1;\n\
         print \"ready http://$at\\n\";\n\
         while (my $peer = $socket->accept) {{\n\
            1 while (<$peer> // '') =~ /\\S/; print $peer \"HTTP/1.1 200 OK\\r\\n\\r\\n\"; close $peer }}\n"
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The size of everything below a folder, and of the largest log.
fn sizes(folder: &Path) -> (u64, u64) {
    let (mut all, mut log) = (0, 0);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(meta) = entry.path().symlink_metadata() else { continue };
        if meta.is_dir() {
            let (below, largest) = sizes(&entry.path());
            (all, log) = (all + below, log.max(largest));
        } else if meta.is_file() {
            all += meta.len();
            log = log.max(if entry.file_name() == "log" { meta.len() } else { 0 });
        }
    }
    (all, log)
}

fn flooding_home(lab: &Lab, program: &Path) -> Home {
    home(lab, &[&format!("linux.browserd={}", program.display())])
}

#[test]
fn output_without_end_stays_in_the_clone() {
    in_private_machine("output_without_end_stays_in_the_clone", |lab| {
        let folder = tempfile::Builder::new().prefix("hostile").tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let floods = [
            ("lines", "my $x = \"flood \\x1b[2J\\n\" x 4096; 1 while syswrite STDERR, $x;"),
            ("bytes", "my $x = \"\\0\" x 65536; 1 while syswrite STDERR, $x;"),
            // By another way to the same descriptor, as code in the browser's place would take.
            (
                "proc",
                "open my $f, '>>', '/proc/self/fd/2' or die; my $x = 'p' x 65536; 1 while syswrite $f, $x;",
            ),
        ];
        for (name, flood) in floods {
            let home = flooding_home(lab, &stand_in(folder.path(), name, flood));
            block_on(async {
                let daemon = home.start().await;
                let client = daemon.client().await;
                let before = lab.inventory(home.path());
                let work = tokio::spawn(async move { client.create(create("flood")).await });
                let (mut largest_state, mut largest_log) = (0, 0);
                while !work.is_finished() {
                    let (state, log) = sizes(&home.path().join("state"));
                    (largest_state, largest_log) = (largest_state.max(state), largest_log.max(log));
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                // No renderer is ever seen, so the create fails; its error has the end of the output, escaped.
                let error = work.await.unwrap().unwrap_err().to_string();
                assert!(error.contains("not active") && error.contains("recent output: "), "{error}");
                assert!(!error.contains('\x1b') && error.len() < 16 << 10, "{} bytes", error.len());
                assert!(largest_log > 0 && largest_log <= LOG_BYTES, "{name}: a log of {largest_log} bytes");
                assert!(largest_state < 1 << 20, "{name}: {largest_state} bytes of state");
                assert!(daemon.memory("VmHWM") < 256 << 10, "{} kB of memory", daemon.memory("VmHWM"));
                life::until_empty(&daemon).await;
                life::same(&before, &lab.inventory(home.path()));
                daemon.stop().await;
            });
        }
    });
}
