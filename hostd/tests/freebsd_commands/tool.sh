#!/bin/sh
# One clone's worth of FreeBSD, for writing down which commands hostd runs: every tool is this file under its own name.
# It knows slot 1 of the pool and the answers of a host on which everything works. `@NAME@` is filled in by the test.
PATH=/bin:/usr/bin
here=${0%/*}
tool=${0##*/}
line=$tool
for word in "$@"; do
    case $word in *' '*) line="$line \"$word\"" ;; *) line="$line $word" ;; esac
done
printf '%s\n' "$line" >>"$here/log"

has() { [ -e "$here/state/$1" ]; }
put() { printf '%s\n' "$2" >"$here/state/$1"; }
get() { cat "$here/state/$1"; }
drop() { for name in "$@"; do rm -f "$here/state/$name"; done; }
say() { printf '%s\n' "$*"; }
complain() { printf '%s\n' "$*" >&2; }

jails=@JAILS@
parent=zroot/bastille/jails
clone=$parent/browsertask001
properties() { # dataset origin mounted place quota mark source
    printf '%s\torigin\t%s\t-\n%s\tmounted\t%s\t-\n' "$1" "$2" "$1" "$3"
    printf '%s\tmountpoint\t%s\tinherited from zroot\n%s\tcreation\t1700000000\t-\n' "$1" "$4" "$1"
    printf '%s\tquota\t%s\tlocal\n%s\torg.hostd:clone_id\t%s\t%s\n' "$1" "$5" "$1" "$6" "$7"
}
both() {
    has storage || return 0
    mounted=yes
    has unmounted && mounted=no
    properties $clone $parent/browser@default $mounted "$jails/browsertask001" 10737418240 "$(get storage)" local
    has root && properties $clone/root $parent/browser/root@default $mounted "$jails/browsertask001/root" 0 "$(get storage)" local
}
snapshot() {
    printf '%s\tcreatetxg\t77\t-\n%s\tdefer_destroy\toff\t-\n%s\torg.hostd:browser\t-\t-\n%s\torg.hostd:version\t-\t-\n' \
        "$1" "$1" "$1" "$1"
}

case "$tool $*" in
    "zfs get "*"@default"*) snapshot $parent/browser@default && snapshot $parent/browser/root@default ;;
    "zfs get "*"mounted,mountpoint,available,org.hostd:clone_id $parent")
        printf '%s\tmounted\tyes\t-\n%s\tmountpoint\t%s\tlocal\n%s\tavailable\t99999999999\t-\n%s\torg.hostd:clone_id\t-\t-\n' \
            $parent $parent "$jails" $parent $parent ;;
    "zfs get "*" $parent") properties $parent - yes "$jails" 0 - - && both ;;
    "zfs get "*" $clone")
        if has storage; then both; else complain "cannot open '$clone': dataset does not exist"; exit 1; fi ;;
    "zfs clone "*" $clone")
        for word in "$@"; do case $word in org.hostd:clone_id=*) put storage "${word#*=}" ;; esac; done
        mkdir -m 755 -p "$jails/browsertask001" ;;
    "zfs clone "*" $clone/root") put root && mkdir -m 755 "$jails/browsertask001/root" "$jails/browsertask001/root/etc" ;;
    "zfs destroy $clone/root")
        if has busy && ! has unmounted; then
            complain "cannot unmount '$jails/browsertask001/root': pool or dataset is busy"; exit 1
        fi
        drop root && rm -rf "${jails:?}/browsertask001/root" ;;
    "zfs destroy $clone") drop storage unmounted busy && rm -rf "${jails:?}/browsertask001" ;;
    "zfs unmount -f "*) put unmounted ;;
    "jls "*)
        running=
        has jail && running='{"name":"browsertask001","path":"'$jails'/browsertask001/root","jid":"46","dying":"false","vnet":"new","host.hostuuid":"'$(get jail)'"}'
        has dying && running='{"name":"browsertask001","path":"'$jails'/browsertask001/root","jid":"46","dying":"true","vnet":"new","host.hostuuid":"'$(get dying)'"}'
        say '{"__version": "2", "jail-information": {"jail": ['"$running"']}}' ;;
    "jail "*" -c "*)
        put jail "$(sed -n 's/^  host.hostuuid = "\(.*\)";$/\1/p' "$jails/browsertask001/jail.conf")"
        put process && put devfs ;;
    "jail "*" -r "*) if has busy; then put dying "$(get jail)"; fi; drop jail process devfs ;;
    "pkill -KILL -j 46") drop process ;;
    "ps "*) say "  PID JID STAT" && say "    1   0 ILs" && if has process; then say " 4711  46 SsJ"; fi ;;
    "mount -p")
        printf '/dev/vtbd0p2\t\t/\t\t\tufs\trw\t\t1 1\n'
        printf '%s\t%s zfs\trw\t\t0 0\n' "$parent" "$jails"
        has devfs && printf 'devfs\t\t\t%s devfs\trw\t\t0 0\n' "$jails/browsertask001/root/dev"
        true ;;
    "umount "*) drop devfs ;;
    "rctl ") has rules && get rules; true ;;
    "rctl -a "*) shift && put rules "$(for rule in "$@"; do say "$rule"; done)" ;;
    "rctl -r "*) drop rules ;;
    "arp -an") if has arp; then sed 's/^\([^ ]*\) \(.*\)$/? (\1) at \2 on bridge72 permanent [bridge]/' "$(get arp)"; fi ;;
    "ipfw list") if has ipfw; then sed -n 's/^-q add \([0-9]*\) set 31 /000\1 /p' "$(get ipfw)"; fi ;;
    "ipfw -f -q "*) put ipfw "$3" ;;
    "arp -f "*) put arp "$2" ;;
    "ifconfig -a")
        say "lo0: flags=1008049<UP,LOOPBACK,RUNNING,MULTICAST,LOWER_UP> metric 0 mtu 16384"
        printf '\tinet 127.0.0.1 netmask 0xff000000\n\tgroups: lo\n'
        say "em0: flags=1008843<UP,BROADCAST,RUNNING,SIMPLEX,MULTICAST,LOWER_UP> metric 0 mtu 1500"
        if has down; then flags='1008842<'; else flags='1008843<UP,'; fi
        say "bridge72: flags=${flags}BROADCAST,RUNNING,SIMPLEX,MULTICAST,LOWER_UP> metric 0 mtu 1500"
        printf '\tinet @GATEWAY@ netmask 0xfffffc00 broadcast 127.87.67.255\n'
        has member && printf '\tmember: e0a_bt001 flags=943<LEARNING,DISCOVER,PRIVATE,AUTOEDGE,AUTOPTP>\n'
        printf '\tgroups: bridge\n'
        if has pair; then
            say "e0a_bt001: flags=1008943<UP,BROADCAST,RUNNING,PROMISC,SIMPLEX,MULTICAST,LOWER_UP> metric 0 mtu 1500"
            printf '\tdescription: %s\n\tether %s\n\tgroups: epair\n' "$(get pair)" "$(get mac)"
        fi ;;
    "ifconfig epair10001 create "*) put mac "$4" && put pair "$6" && say e0a_bt001 ;;
    "ifconfig epair10001b "*) say e0b_bt001 ;;
    "ifconfig bridge72 addm "*) put member ;;
    "ifconfig bridge72 down") put down ;;
    "ifconfig bridge72 up") drop down ;;
    "ifconfig e0a_bt001 destroy")
        if has pair; then drop pair member mac; else complain "ifconfig: interface e0a_bt001 does not exist"; exit 1; fi ;;
    "pfctl -s info")
        if has off; then say "Status: Disabled for 0 days 00:00:02          Debug: Urgent"
        else say "Status: Enabled for 0 days 00:00:01           Debug: Urgent"; fi ;;
    "pfctl -v -s Interfaces -i bridge72") say bridge72 ;;
    "pfctl -vvsT") cat "$here/tables" ;;
    "pfctl -sr") say 'anchor "browser" all' ;;
    "pfctl -sn") say 'nat-anchor "browser" all' ;;
    "pfctl -a browser -P -sr") has emptied || cat "$here/rules" ;;
    "pfctl -a browser -P -sn") has emptied || cat "$here/nat" ;;
    "pfctl -a browser -t browser_denied -T show")
        if has emptied; then complain "pfctl: Table does not exist."; exit 255; else cat "$here/denied"; fi ;;
    "pfctl -a browser -f "*) drop emptied ;;
    "pfctl -t browser_tasks -T show") if has granted; then say "   @ADDRESS@"; fi ;;
    "pfctl -t browser_tasks -T add @ADDRESS@") put granted && complain "1/1 addresses added." ;;
    "pfctl -t browser_tasks -T delete @ADDRESS@")
        if has granted; then complain "1/1 addresses deleted."; else complain "0/1 addresses deleted."; fi
        drop granted ;;
    "pfctl -M -k "*) complain "killed 0 states from 1 sources and 0 destinations" ;;
    "bastille start "*)
        put jail "$(sed -n 's/^  host.hostuuid = "\(.*\)";$/\1/p' "$jails/browsertask001/jail.conf")"
        put process && put devfs && complain "[browsertask001]:" ;;
    "bastille stop "*) drop jail process devfs && complain "[browsertask001]:" ;;
    "sysctl "*)
        say "kern.racct.enable: 1"
        say "net.inet.ip.forwarding: 1"
        say "net.inet6.ip6.forwarding: 0"
        say "net.link.bridge.pfil_member: 0"
        say "net.link.bridge.pfil_bridge: 0" ;;
    *) complain "$tool: no such command here: $*"; exit 99 ;;
esac
