//! The tools, each by its name.

mod arp;
mod bastille;
mod command;
mod ifconfig;
mod ifconfig_show;
mod ipfw;
mod jail;
mod jail_conf;
mod jls;
mod mount;
mod pfctl;
mod pfctl_show;
mod processes;
mod rctl;
mod service;
mod settings;
mod zfs;

use crate::fake::{Caller, Fake, Said};

/// Run a tool, from the host or inside a jail.
pub(crate) fn run(fake: &Fake, name: &str, arguments: &[String], caller: Caller) -> Said {
    match name {
        "arp" => arp::run(fake, arguments),
        "bastille" => bastille::run(fake, arguments, caller),
        "ifconfig" => ifconfig::run(fake, arguments, caller),
        "ipfw" => ipfw::run(fake, arguments),
        "jail" => jail::run(fake, arguments),
        "jexec" => command::jexec(fake, arguments),
        "jls" => jls::run(fake, arguments),
        "kill" => processes::kill(fake, arguments, caller),
        "mount" => mount::mount(fake, arguments),
        "pfctl" => pfctl::run(fake, arguments, caller),
        "pkill" => processes::pkill(fake, arguments),
        "ps" => processes::ps(fake, arguments, caller),
        "rctl" => rctl::run(fake, arguments, caller),
        "route" => settings::route(fake, arguments, caller),
        "service" => service::run(fake, arguments, caller),
        "sysctl" => settings::sysctl(fake, arguments),
        "kldload" | "kldunload" | "kldstat" => settings::kld(fake, name, arguments),
        "umount" => mount::umount(fake, arguments),
        "zfs" => zfs::run(fake, arguments, caller),
        other => Said::err(99, format!("fake-freebsd: there is no fake {other}\n")),
    }
}

/// What getopt and a tool say to arguments they do not know, noted as something that must not happen.
fn refused(fake: &Fake, tool: &str, arguments: &[String], why: crate::options::Refused, usage: &str) -> Said {
    fake.violation(format!("{tool} {}: {why:?}", arguments.join(" ")));
    Said::err(1, format!("{}{usage}", why.message(tool)))
}
