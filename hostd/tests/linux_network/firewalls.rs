//! hostd beside the packet filters of other programs: the programs themselves, in the private machine.
//!
//! `scripts/install-deps` fetches their packages and installs nothing: firewalld would close the machine that runs the tests.
//! Here the packages are unpacked over a copy-on-write view of this machine's files.

use super::{NAMED, findings, namespace, of, resolvers};
use crate::lab::{self, Lab, PORT, PUBLIC, in_private_machine, reaches, resolves, set_resolv_conf};
use crate::life::{block_on, home, made};
use hostd::api::Severity;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const ROOT: &str = "/run/firewalls/root";
const PATIENCE: Duration = Duration::from_secs(2);

/// This machine's files with the packages unpacked over them.
struct Programs;

impl Programs {
    fn unpack() -> Programs {
        let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/firewalls");
        assert!(packages.join(".fetched").exists(), "{}: run scripts/install-deps", packages.display());
        for folder in ["up", "work", "root"] {
            fs::create_dir_all(Path::new("/run/firewalls").join(folder)).unwrap();
        }
        let layers = "lowerdir=/,upperdir=/run/firewalls/up,workdir=/run/firewalls/work";
        lab::run(&format!("mount -t overlay firewalls -o {layers} {ROOT}"));
        for entry in fs::read_dir(packages).unwrap().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "deb") {
                continue;
            }
            let unpack = format!(
                "dpkg-deb --fsys-tarfile '{}' | tar -x --keep-directory-symlink -C {ROOT}",
                path.display()
            );
            let done = Command::new("sh").args(["-ec", &unpack]).output().unwrap();
            assert!(done.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&done.stderr));
        }
        for folder in ["proc", "sys", "dev"] {
            lab::run(&format!("mount --rbind /{folder} {ROOT}/{folder}"));
        }
        lab::run(&format!("mount -t tmpfs run {ROOT}/run"));
        let programs = Programs;
        // What the packages' own scripts do when they are installed.
        programs.run(
            "for t in iptables ip6tables; do for s in '' -save -restore; do \
                 ln -sf xtables-nft-multi /usr/sbin/$t$s; done; done\n\
             mkdir -p /run/lock /run/dbus /tmp && cp /usr/share/ufw/ufw.conf \
                 /usr/share/ufw/iptables/*.rules /etc/ufw/\n\
             [ -e /etc/default/ufw ] || cp /usr/share/ufw/ufw.default /etc/default/ufw\n\
             cd /usr/share/polkit-1/actions && ln -sf org.fedoraproject.FirewallD1.server.policy.choice \
                 org.fedoraproject.FirewallD1.policy",
        );
        programs
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("chroot");
        command.args([ROOT, "/bin/sh", "-ec", script]).env_clear().stdin(Stdio::null());
        command.env("PATH", "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
        command
    }

    fn try_run(&self, script: &str) -> Output {
        self.command(script).output().unwrap()
    }

    fn run(&self, script: &str) {
        let done = self.try_run(script);
        let said = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(done.status.success(), "{script}: {}{}", said[0], said[1]);
    }

    /// A program that runs until the private machine ends.
    fn start(&self, script: &str, is_up: &str) {
        let log = format!("{ROOT}/tmp/{}.log", script.split(' ').next().unwrap());
        let log = fs::File::create(log).unwrap();
        let mut command = self.command(&format!("exec {script}"));
        let mut child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let began = Instant::now();
        while !self.try_run(is_up).status.success() {
            let ended = child.try_wait().unwrap();
            if ended.is_some() || began.elapsed() > lab::LIMIT {
                let log = format!("{ROOT}/tmp/{}.log", script.split(' ').next().unwrap());
                panic!("{script}: {ended:?}\n{}", fs::read_to_string(log).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::spawn(move || child.wait());
    }
}

/// A clone beside a program that is started by `close`: doctor names it and the fix, and with the fix the clone works.
fn beside(test: &str, program: &str, names_too: bool, close: impl FnOnce(&Programs)) {
    in_private_machine(test, |lab: &Lab| {
        resolvers();
        set_resolv_conf("nameserver 127.0.0.53\n");
        let programs = Programs::unpack();
        let home = home(lab, &[NAMED]);
        block_on(async {
            let daemon = home.start().await;
            let clone = made(&daemon.client().await, "beside", &home).await;
            let inside = namespace(&home, &clone);
            lab::serve(&inside, std::net::SocketAddr::new(super::ip("::"), 8080));
            let works = || {
                let public = reaches(&inside, super::ip(PUBLIC), PORT, PATIENCE);
                (resolves(&inside, super::ip(super::GATEWAY)), public)
            };
            assert_eq!(works(), (true, true), "before {program}");

            close(&programs);
            assert_eq!(works(), (!names_too, false), "{program} cuts clones off");
            let seen = findings(&daemon).await;
            let finding = of(&seen, "other-firewalls");
            assert_eq!(finding.severity, Severity::Error, "{finding:?}");
            assert!(finding.message.contains(program), "{finding:?}");
            println!("{}\n  {}", finding.message, finding.fix);
            assert_eq!(of(&seen, "internet").severity, Severity::Error);

            let (commands, _) = finding.fix.split_once(" (docs/linux.md").unwrap();
            commands.split("; ").for_each(|command| programs.run(command));
            assert_eq!(works(), (true, true), "after the fix of {program}");
            let calls = reaches(Path::new(super::HOST), clone.ip.into(), 8080, PATIENCE);
            assert!(calls, "the host calls the clone's browserd");
            let seen = findings(&daemon).await;
            for check in ["names", "internet", "other-firewalls"] {
                assert_eq!(of(&seen, check).severity, Severity::Ok, "{:?}", of(&seen, check));
            }
            // What hostd forbids stays forbidden, whatever the other program accepts.
            for closed in ["10.1.2.3", "198.51.100.1", super::GATEWAY, super::ROUTER] {
                assert!(!reaches(&inside, super::ip(closed), PORT, PATIENCE), "{closed}");
            }
            daemon.stop().await;
        });
    });
}

#[test]
fn beside_ufw() {
    beside("firewalls::beside_ufw", "(ufw)", true, |programs| programs.run("ufw --force enable"));
}

#[test]
fn beside_firewalld() {
    beside("firewalls::beside_firewalld", "(firewalld)", true, |programs| {
        programs.start("dbus-daemon --system --nofork --nopidfile", "[ -S /run/dbus/system_bus_socket ]");
        programs.start("firewalld --nofork --nopid", "firewall-cmd --state");
    });
}

#[test]
fn beside_docker() {
    beside("firewalls::beside_docker", "(Docker)", false, |programs| {
        // Docker drops what it does not know if it is the one that turns forwarding on.
        fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
        programs.start("containerd", "[ -S /run/containerd/containerd.sock ]");
        programs.start("dockerd", "[ -S /run/docker.sock ] && iptables -S FORWARD | grep -q DOCKER-USER");
    });
}
