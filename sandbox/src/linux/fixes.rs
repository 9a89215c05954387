//! How to fix a missing requirement, with the commands of each distribution.

use super::preflight::Distribution;

/// The distribution of this machine, from `/etc/os-release`.
pub(crate) fn distribution() -> Distribution {
    parse_os_release(&std::fs::read_to_string("/etc/os-release").unwrap_or_default())
}

fn parse_os_release(text: &str) -> Distribution {
    let value = |key: &str| {
        text.lines()
            .filter_map(|line| line.split_once('='))
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value.trim_matches('"').to_owned())
            .unwrap_or_default()
    };
    let names = format!("{} {}", value("ID"), value("ID_LIKE"));
    for name in names.split_whitespace() {
        match name {
            "ubuntu" => return Distribution::Ubuntu,
            "debian" => return Distribution::Debian,
            "fedora" | "rhel" | "centos" => return Distribution::Fedora,
            "arch" => return Distribution::Arch,
            _ => {}
        }
    }
    Distribution::Other
}

pub(crate) fn install_bubblewrap(distribution: Distribution) -> String {
    match distribution {
        Distribution::Debian | Distribution::Ubuntu => "apt install bubblewrap",
        Distribution::Fedora => "dnf install bubblewrap",
        Distribution::Arch => "pacman -S bubblewrap",
        Distribution::Other => "install the package bubblewrap",
    }
    .to_owned()
}

/// For machines that refuse user namespaces.
pub(crate) fn allow_user_namespaces(distribution: Distribution) -> String {
    match distribution {
        Distribution::Debian => {
            "sysctl -w kernel.unprivileged_userns_clone=1, and to keep it: echo \
             kernel.unprivileged_userns_clone=1 > /etc/sysctl.d/50-userns.conf"
        }
        Distribution::Ubuntu => UBUNTU_PROFILE,
        Distribution::Arch => {
            "use the kernel package linux instead of linux-hardened, or: sysctl -w \
             kernel.unprivileged_userns_clone=1 (to keep it: /etc/sysctl.d/50-userns.conf)"
        }
        Distribution::Fedora | Distribution::Other => {
            "sysctl -w user.max_user_namespaces=15000, and to keep it: echo \
             user.max_user_namespaces=15000 > /etc/sysctl.d/50-userns.conf. In a container: start \
             it with a seccomp profile that allows clone(CLONE_NEWUSER) and mount"
        }
    }
    .to_owned()
}

/// For machines that allow user namespaces but without capabilities in them.
pub(crate) fn allow_nested_user_namespaces(distribution: Distribution) -> String {
    match distribution {
        Distribution::Ubuntu => UBUNTU_PROFILE.to_owned(),
        other => allow_user_namespaces(other),
    }
}

const UBUNTU_PROFILE: &str = "AppArmor restricts user namespaces. Give bubblewrap a profile that \
    allows them also for what it starts: write to /etc/apparmor.d/bwrap the lines \
    `abi <abi/4.0>,`, `include <tunables/global>`, `profile bwrap /usr/bin/bwrap \
    flags=(unconfined) { userns, }`, remove /etc/apparmor.d/bwrap-userns-restrict if it is there \
    (apparmor_parser -R it first), then apparmor_parser -r /etc/apparmor.d/bwrap. For the whole \
    machine instead: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0";

pub(crate) fn mount_proc(distribution: Distribution) -> String {
    let general = "/proc of this machine is partly masked (a container?), and the kernel then \
                   refuses to mount another one. Start the container with an unmasked /proc (Docker: \
                   --security-opt systempaths=unconfined; Kubernetes: procMount: Unmasked)";
    match distribution {
        Distribution::Ubuntu => format!("{general}; or {UBUNTU_PROFILE}"),
        _ => general.to_owned(),
    }
}

pub(crate) fn landlock(distribution: Distribution, abi: u8) -> String {
    let kernel = match abi {
        0 | 1 => "5.13",
        2 => "5.19",
        3 => "6.2",
        4 => "6.7",
        5 => "6.10",
        6 => "6.12",
        7 => "6.15",
        _ => "7.1",
    };
    let how = match distribution {
        Distribution::Debian => "apt install -t backports linux-image-amd64 (or move to Debian 13)",
        Distribution::Ubuntu => "apt install linux-generic-hwe-24.04",
        Distribution::Fedora => "dnf upgrade kernel",
        Distribution::Arch => "pacman -Syu linux",
        Distribution::Other => "install a newer kernel",
    };
    format!(
        "Linux {kernel} or later with landlock in /sys/kernel/security/lsm: {how}; if the kernel is \
         new enough, add landlock to the lsm= list of the kernel command line. Or name a lower \
         landlock.abi in the policy"
    )
}

pub(crate) fn memory_programs() -> String {
    "sysctl -w vm.memfd_noexec=1 (2 forbids programs in memory files to everybody)".to_owned()
}

pub(crate) fn seccomp() -> String {
    "a kernel with CONFIG_SECCOMP_FILTER (every distribution's is); in a container, allow the \
     system call seccomp"
        .to_owned()
}

pub(crate) fn limits() -> String {
    "start it from a systemd user session (loginctl enable-linger USER gives one without login), or \
     pass a delegated cgroup v2 folder, or boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1); \
     or say layers.limits = \"optional\" in the policy"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_recognised() {
        let cases = [
            ("ID=debian\n", Distribution::Debian),
            ("ID=ubuntu\nID_LIKE=debian\n", Distribution::Ubuntu),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Distribution::Ubuntu),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Distribution::Fedora),
            ("ID=arch\n", Distribution::Arch),
            ("ID=void\n", Distribution::Other),
            ("", Distribution::Other),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_os_release(text), expected, "{text:?}");
        }
    }

    #[test]
    fn every_fix_names_a_command_of_its_distribution() {
        assert!(install_bubblewrap(Distribution::Fedora).starts_with("dnf"));
        assert!(allow_user_namespaces(Distribution::Debian).contains("unprivileged_userns_clone"));
        assert!(allow_user_namespaces(Distribution::Ubuntu).contains("apparmor"));
        assert!(landlock(Distribution::Arch, 6).contains("pacman"));
    }
}
