//! The configuration files of a clone's jail, in Bastille's layout. Each is written completely from the slot.
//!
//! No text of the template is kept or edited, so two clones differ only in the values of their slots. The layout is Bastille's, so that `bastille list`, `console`, `cmd` and `stop` work:
//!
//! ```text
//! JAILS/browsertask001/jail.conf        how the jail is started; `NAME {` ends its line, as Bastille expects
//! JAILS/browsertask001/fstab            empty: a clone has no mounts but devfs
//! JAILS/browsertask001/settings.conf    boot="off": only hostd starts clones
//! JAILS/browsertask001/root/etc/rc.conf       browserd's settings
//! JAILS/browsertask001/root/etc/resolv.conf   the one resolver
//! JAILS/browsertask001/root/etc/browserd.secret   browserd's secret, for root only
//! ```
//!
//! browserd's rc.d script opens the file with the secret as root, removes it, and passes the descriptor to browserd. The
//! jail has no other process at that time.
//!
//! `exec.start` is four short commands instead of `/etc/rc`, which takes 90 % of a stock jail's start time. There is no
//! `exec.stop`: hostd kills all processes before it stops the jail. For others, such as `bastille stop`, jail(8) sends SIGTERM
//! and, after `stop.timeout`, SIGKILL.
//! hostd creates the interface pair itself instead of `exec.prestart`, so a start that fails half-way leaves no interface
//! that hostd does not know.

use super::files::{Folder, UnsafeFile};
use crate::api::CloneId;
use crate::host::{CloneSpec, HostError, HostErrorKind, HostResult};
use crate::slot::{SlotNames, Slots};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// browserd's rc.d script. It is run directly: service(8) is a shell script around it.
const SERVICE: &str = "/usr/local/etc/rc.d/browserd";
/// The file with browserd's secret, in the jail's /etc. The rc.d script removes it.
const SECRET: &str = "browserd.secret";
/// How long each command of a start may take. browserd's rc.d waits until it listens.
const EXEC_TIMEOUT: u32 = 30;
/// How long jail(8) waits between SIGTERM and SIGKILL. hostd has ended the processes before.
const STOP_TIMEOUT: u32 = 3;
/// Files of the template's jail that are removed, because Bastille would apply the template's limits and ports to the clone.
const TEMPLATE_FILES: [&str; 4] = ["rctl.conf", "cpuset.conf", "rdr.conf", "tags"];

/// What a clone's files are made from, besides its slot.
#[derive(Debug, Clone)]
pub(super) struct CloneSettings {
    pub(super) devfs_ruleset: u32,
    pub(super) console_logs: PathBuf,
    pub(super) port: u16,
    pub(super) resolver: Option<IpAddr>,
}

/// The jail's file.
pub(super) fn path(names: &SlotNames) -> PathBuf {
    names.folder.join("jail.conf")
}

/// The jail's root.
pub(super) fn root(names: &SlotNames) -> PathBuf {
    names.folder.join("root")
}

/// Write all files. The template has run before it was cloned, so no symbolic link below the root is followed.
pub(super) fn write(slots: &Slots, spec: &CloneSpec, style: &CloneSettings) -> HostResult<()> {
    let names = &spec.names;
    let failed = |path: &Path, error: UnsafeFile| {
        let hint = "check the template: its folders must belong to root, and its files must be regular files";
        HostError::new(HostErrorKind::Failed, path.display().to_string(), "its files cannot be written", hint)
            .caused_by(error)
    };
    let at = |error| failed(&names.folder, error);
    let folder = Folder::open(&names.folder).map_err(at)?;
    folder.write("jail.conf", &jail_conf(slots, names, &spec.clone_id, style)).map_err(at)?;
    folder.write("fstab", "").map_err(at)?;
    folder.write("settings.conf", "boot=\"off\"\ndepend=\"\"\npriority=\"99\"\n").map_err(at)?;
    for name in TEMPLATE_FILES {
        folder.remove(name).map_err(at)?;
    }
    let inside = |error| failed(&root(names), error);
    let etc = folder.enter("root").and_then(|root| root.enter("etc")).map_err(inside)?;
    etc.write("rc.conf", &rc_conf(slots, spec, style)).map_err(inside)?;
    etc.write("resolv.conf", &resolv_conf(style)).map_err(inside)?;
    match &spec.secret {
        Some(secret) => etc.write_secret(SECRET, secret.as_str()).map_err(inside),
        None => etc.remove(SECRET).map_err(inside),
    }
}

/// The clone's identity as the jail's `host.hostuuid`, which only the host can set.
pub(super) fn uuid(clone_id: &CloneId) -> String {
    let id = clone_id.as_str();
    format!("{}-{}-{}-{}-{}", &id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..])
}

/// The identity in a `host.hostuuid`. All zeroes is the default of jails without one.
pub(super) fn clone_id(uuid: &str) -> Option<CloneId> {
    let id = CloneId::try_from(uuid.replace('-', "")).ok()?;
    (self::uuid(&id) == uuid && id.as_str().bytes().any(|byte| byte != b'0')).then_some(id)
}

fn jail_conf(slots: &Slots, names: &SlotNames, clone_id: &CloneId, style: &CloneSettings) -> String {
    let SlotNames { name, epair_clone: interface, folder, .. } = names;
    let mut start = vec![
        "/sbin/ifconfig lo0 inet 127.0.0.1/8 up".to_owned(),
        format!("/sbin/ifconfig {interface} inet {}/{} up", names.ip, slots.subnet().prefix_len()),
        format!("/sbin/route -q add default {}", slots.gateway()),
    ];
    if let (Some(ip6), Some(net), Some(gateway)) = (names.ip6, slots.subnet6(), slots.gateway6()) {
        // no_dad: the address belongs to this slot alone, and duplicate address detection takes a second.
        start.push(format!("/sbin/ifconfig {interface} inet6 {ip6}/{} no_dad up", net.prefix_len()));
        start.push(format!("/sbin/route -q -6 add default {gateway}"));
    }
    start.push(format!("{SERVICE} onestart"));

    let mut text = format!("{name} {{\n");
    let mut line = |setting: String| text.push_str(&format!("  {setting};\n"));
    line("enforce_statfs = 2".into());
    line(format!("devfs_ruleset = {}", style.devfs_ruleset));
    line("exec.clean".into());
    // A console log also keeps the jail's daemons from holding jail(8)'s output open.
    line(format!("exec.consolelog = \"{}/{name}_console.log\"", style.console_logs.display()));
    for (at, command) in start.iter().enumerate() {
        line(format!("exec.start {} \"{command}\"", if at == 0 { "=" } else { "+=" }));
    }
    line(format!("exec.timeout = {EXEC_TIMEOUT}"));
    line(format!("stop.timeout = {STOP_TIMEOUT}"));
    line(format!("host.hostname = {name}"));
    line(format!("host.hostuuid = \"{}\"", uuid(clone_id)));
    line("allow.noset_hostname".into());
    line("mount.devfs".into());
    line(format!("mount.fstab = \"{}/fstab\"", folder.display()));
    line(format!("path = \"{}/root\"", folder.display()));
    line("securelevel = 2".into());
    line("vnet".into());
    line(format!("vnet.interface = {interface}"));
    // persist: the jail must not end with its last process.
    line("persist".into());
    text.push_str("}\n");
    text
}

fn rc_conf(slots: &Slots, spec: &CloneSpec, style: &CloneSettings) -> String {
    let SlotNames { name, epair_clone: interface, ip, .. } = &spec.names;
    let flags = if spec.warm_up { "--warm-up" } else { "" };
    let prefix = slots.subnet().prefix_len();
    format!(
        "# Written by hostd for {name}; the template's is not used.\n\
         hostname=\"{name}\"\n\
         ifconfig_{interface}=\"inet {ip}/{prefix}\"\n\
         defaultrouter=\"{}\"\n\
         browserd_enable=\"YES\"\n\
         browserd_listen=\"{ip}:{}\"\n\
         browserd_flags=\"{flags}\"\n\
         syslogd_enable=\"NO\"\n\
         cron_enable=\"NO\"\n\
         sendmail_enable=\"NONE\"\n",
        slots.gateway(),
        style.port
    )
}

fn resolv_conf(style: &CloneSettings) -> String {
    match style.resolver {
        Some(resolver) => format!("nameserver {resolver}\n"),
        None => "# egress.resolver is empty: clones resolve nothing.\n".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PoolConfig;
    use crate::slot::Slot;

    fn style() -> CloneSettings {
        CloneSettings {
            devfs_ruleset: 13,
            console_logs: "/var/log/bastille".into(),
            port: 8080,
            resolver: Some([192, 168, 72, 1].into()),
        }
    }

    fn slots(change: impl FnOnce(&mut PoolConfig)) -> Slots {
        let mut config =
            PoolConfig { clones_dir: "/usr/local/bastille/jails".into(), ..PoolConfig::default() };
        change(&mut config);
        Slots::new(&config).unwrap()
    }

    fn id() -> CloneId {
        CloneId::try_from("0123456789abcdef0123456789abcdef".to_owned()).unwrap()
    }

    #[test]
    fn the_jails_file_is_what_bastille_and_jail_read() {
        let slots = slots(|_| {});
        let text = jail_conf(&slots, &slots.names(Slot::new(1).unwrap()), &id(), &style());
        let expected = r#"browsertask001 {
  enforce_statfs = 2;
  devfs_ruleset = 13;
  exec.clean;
  exec.consolelog = "/var/log/bastille/browsertask001_console.log";
  exec.start = "/sbin/ifconfig lo0 inet 127.0.0.1/8 up";
  exec.start += "/sbin/ifconfig e0b_bt001 inet 10.87.64.16/22 up";
  exec.start += "/sbin/route -q add default 10.87.64.1";
  exec.start += "/usr/local/etc/rc.d/browserd onestart";
  exec.timeout = 30;
  stop.timeout = 3;
  host.hostname = browsertask001;
  host.hostuuid = "01234567-89ab-cdef-0123-456789abcdef";
  allow.noset_hostname;
  mount.devfs;
  mount.fstab = "/usr/local/bastille/jails/browsertask001/fstab";
  path = "/usr/local/bastille/jails/browsertask001/root";
  securelevel = 2;
  vnet;
  vnet.interface = e0b_bt001;
  persist;
}
"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn a_pool_with_both_families_gives_both_addresses() {
        let slots = slots(|config| config.subnet6 = Some("fd12:3456::/64".parse().unwrap()));
        let text = jail_conf(&slots, &slots.names(Slot::new(2).unwrap()), &id(), &style());
        assert!(text.contains("ifconfig e0b_bt002 inet6 fd12:3456::11/64 no_dad up"), "{text}");
        assert!(text.contains("route -q -6 add default fd12:3456::1"), "{text}");
    }

    #[test]
    fn the_clones_own_files_name_its_address_and_resolver() {
        let slots = slots(|_| {});
        let spec = CloneSpec {
            names: slots.names(Slot::new(1).unwrap()),
            clone_id: id(),
            snapshot: "default".parse().unwrap(),
            limits: Default::default(),
            deadline: std::time::Duration::from_secs(3600),
            secret: None,
            warm_up: false,
        };
        let text = rc_conf(&slots, &spec, &style());
        for line in ["browserd_listen=\"10.87.64.16:8080\"", "ifconfig_e0b_bt001=\"inet 10.87.64.16/22\""] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in {text}");
        }
        let ahead = rc_conf(&slots, &CloneSpec { warm_up: true, ..spec }, &style());
        assert!(ahead.contains("browserd_flags=\"--warm-up\"") && !text.contains("--warm-up"), "{ahead}");
        assert_eq!(resolv_conf(&style()), "nameserver 192.168.72.1\n");
        let none = CloneSettings { resolver: None, ..style() };
        assert!(resolv_conf(&none).starts_with('#'));
    }

    #[test]
    fn a_jails_uuid_is_the_clones_identity() {
        assert_eq!(clone_id(&uuid(&id())), Some(id()));
        for other in
            ["", "00000000-0000-0000-0000-000000000000", "01234567-89ab", "x", &"0".repeat(32), id().as_str()]
        {
            assert_eq!(clone_id(other), None, "{other}");
        }
    }
}
