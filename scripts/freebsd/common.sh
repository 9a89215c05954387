# shellcheck shell=sh disable=SC2034,SC2154 # the scripts that source this set $config
# Shared by setup-host and setup-template: hostd's settings, and addresses in the clones' network.

# hostd refuses files that others can write.
umask 022

fail() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

[ "$(uname -s)" = FreeBSD ] || fail "this is $(uname -s); on Linux see docs/linux.md"
[ "$(id -u)" -eq 0 ] || fail "run it as root"
{ [ -x /usr/local/sbin/hostd ] && [ -x /usr/local/bin/hostctl ]; } ||
    fail "hostd and hostctl are not in /usr/local/sbin and /usr/local/bin; install them first (docs/freebsd.md)"

# hostd_says FLAG: the output of hostd with this configuration.
hostd_says() { /usr/local/sbin/hostd "$1" ${config:+--config "$config"} || fail "hostd's configuration cannot be used"; }

settings=$(hostd_says --print-config)
# setting KEY: its value without quotes; it may be empty.
setting() {
    printf '%s\n' "$settings" | grep -q "^$1 = " || fail "hostd --print-config does not show $1: install the hostd that belongs to these scripts"
    printf '%s\n' "$settings" | sed -n "s/^$1 = //p" | sed 's/^"\(.*\)"$/\1/'
}

# clones_resolver: the address that clones ask, as hostd finds it; empty if there is none.
clones_resolver() {
    resolver=$(setting egress.resolver)
    case $resolver in
        none) resolver= ;;
        auto) resolver=$(awk '$1 == "nameserver" && $2 ~ /^[0-9.]+$/ && $2 !~ /^(127\.|0\.0\.0\.0$)/ { print $2; exit }' /etc/resolv.conf) ;;
    esac
    printf '%s\n' "$resolver"
}

subnet=$(setting pool.subnet)
prefix=${subnet#*/}

# number ADDRESS: an IPv4 address as a number; address NUMBER: the reverse.
number() { printf '%s\n' "$1" | awk -F. '{ printf "%.0f\n", (($1 * 256 + $2) * 256 + $3) * 256 + $4 }'; }
address() { echo "$(($1 >> 24 & 255)).$(($1 >> 16 & 255)).$(($1 >> 8 & 255)).$(($1 & 255))"; }

network=$(number "${subnet%/*}")
network=$((network >> (32 - prefix) << (32 - prefix)))
# The first address of the clones' network is this host's, on the bridge.
gateway=$(address $((network + 1)))
