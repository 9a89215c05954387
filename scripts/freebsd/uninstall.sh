# shellcheck shell=sh disable=SC2154 # setup-host sources this and sets the variables
# setup-host --uninstall: undo what setup-host did. Every step checks first, so it can be repeated after a failure.
#
# The order matters: pf.conf must not refer to browser.conf any more when that file is removed. Otherwise pf.conf would not
# load as a whole at the next boot, and the host would be without rules.

removed=0
# undo WHAT CHECK APPLY: run APPLY if CHECK succeeds; then CHECK must fail.
undo() {
    "$2" || return 0
    printf 'undo  %s\n' "$1"
    "$3" || fail "$1: this step failed; run it again when the cause is mended"
    ! "$2" || fail "$1: this step succeeded, but it is still there"
    removed=$((removed + 1))
}

prefix_of_clones=$(setting pool.prefix)
anchor=$(setting freebsd.anchor)
table=$(setting freebsd.table)
aside=$parent/$prefix_of_clones-aside

# Clones would lose their firewall rules.
left=$(zfs list -H -o name -r -d 1 "$parent" 2>/dev/null | grep -E "^$parent/${prefix_of_clones}[0-9]{3}$" || true)
[ -z "$left" ] || fail "there are clones: $(echo "$left" | tr '\n' ' ')destroy them first: hostctl destroy, or hostctl reap"
left=$(jls -d name | grep -E "^${prefix_of_clones}[0-9]{3}$" || true)
[ -z "$left" ] || fail "there are jails of clones: $(echo "$left" | tr '\n' ' ')wait until jls -d does not show them"
left=$(zfs list -H -o name -r "$aside" 2>/dev/null | grep -vxF "$aside" || true)
[ -z "$left" ] || fail "there is storage that was moved aside: $(echo "$left" | tr '\n' ' ')hostd destroys it when it is no longer busy"

# The control plane goes first, so that no new session is opened.
plane_runs() { [ -e /usr/local/etc/rc.d/controlplane ] && service controlplane onestatus >/dev/null 2>&1; }
plane_stop() { service controlplane onestop >/dev/null; }
undo "the running control plane" plane_runs plane_stop
plane_enabled() { [ "$(sysrc -n controlplane_enable 2>/dev/null || true)" = YES ]; }
plane_disable() { sysrc -x controlplane_enable >/dev/null; }
undo "controlplane_enable in rc.conf" plane_enabled plane_disable

service_runs() { service hostd onestatus >/dev/null 2>&1; }
service_stop() { service hostd onestop >/dev/null; }
undo "the running service" service_runs service_stop
service_enabled() { [ "$(sysrc -n hostd_enable 2>/dev/null || true)" = YES ]; }
service_disable() { sysrc -x hostd_enable >/dev/null; }
undo "hostd_enable in rc.conf" service_enabled service_disable
cron_there() { [ -e /usr/local/etc/cron.d/hostd ]; }
cron_remove() { rm /usr/local/etc/cron.d/hostd; }
undo "/usr/local/etc/cron.d/hostd" cron_there cron_remove

# --- PF: pf.conf first, then the loaded rules, then the file -----------------------------------------------------

pf_on() { pfctl -s info 2>/dev/null | grep -q '^Status: Enabled'; }
# The lines that setup-host adds. Other lines stay as they are now, also those that were added after setup-host.
own_lines() {
    printf '%s\n' "table <$table> persist" "nat-anchor \"$anchor\"" "anchor \"$anchor\"" \
        "load anchor \"$anchor\" from \"$anchor_file\""
}
pf_conf_refers() { own_lines | grep -qxFf - "$pf_conf" 2>/dev/null; }
# The file that setup-host wrote on a host without one, without hostd's lines.
only_ours() { ! grep -vxF -e '# Written by setup-host: clones are filtered, everything else passes. Add your own rules below.' -e 'set skip on lo0' -e 'pass all' "$1" | grep -q .; }
pf_conf_restore() {
    own_lines | grep -vxFf - "$pf_conf" >"$pf_conf.hostd" || true
    chmod 600 "$pf_conf.hostd"
    pfctl -nf "$pf_conf.hostd" || return 1
    if pf_on; then pfctl -f "$pf_conf.hostd" || return 1; fi
    if was_changed pf.conf && only_ours "$pf_conf.hostd"; then
        if was_changed pf && pf_on; then pfctl -d || return 1; fi
        rm -f "$pf_conf.hostd" "$pf_conf"
    else
        mv "$pf_conf.hostd" "$pf_conf"
    fi
    if cmp -s "$pf_conf" "$pf_conf.before-hostd"; then rm "$pf_conf.before-hostd"; fi
}
undo "hostd's lines in $pf_conf" pf_conf_refers pf_conf_restore
pf_setting() { was_changed pf_enable && [ "$(sysrc -n pf_enable 2>/dev/null || true)" = YES ] && [ ! -e "$pf_conf" ]; }
pf_setting_remove() { sysrc -x pf_enable >/dev/null; }
undo "pf_enable in rc.conf, which setup-host set for its own pf.conf" pf_setting pf_setting_remove
anchor_has_rules() { [ -n "$(pfctl -a "$anchor" -s rules 2>/dev/null)" ]; }
anchor_flush() { pfctl -q -a "$anchor" -F all; }
undo "the rules in the anchor $anchor" anchor_has_rules anchor_flush
table_there() { pfctl -s Tables 2>/dev/null | grep -qxF "$table"; }
table_remove() { pfctl -q -t "$table" -T kill; }
undo "the table <$table>" table_there table_remove
anchor_file_there() { [ -e "$anchor_file" ] || [ -e "$anchor_file.loaded" ]; }
anchor_file_remove() { rm -f "$anchor_file" "$anchor_file.loaded"; }
undo "$anchor_file" anchor_file_there anchor_file_remove

# --- the rest ----------------------------------------------------------------------------------------------------

bridge_there() { ifconfig "$bridge" >/dev/null 2>&1; }
bridge_remove() { ifconfig "$bridge" destroy; }
undo "the bridge $bridge" bridge_there bridge_remove
bridge_kept() { [ -n "$(sysrc -n "ifconfig_$bridge" 2>/dev/null || true)" ]; }
bridge_forget() {
    sysrc "cloned_interfaces-=$bridge" >/dev/null || return 1
    [ -n "$(sysrc -n cloned_interfaces 2>/dev/null || true)" ] || sysrc -x cloned_interfaces >/dev/null || return 1
    sysrc -x "ifconfig_$bridge" >/dev/null
}
undo "the bridge $bridge in rc.conf" bridge_kept bridge_forget
bridge6_kept() { [ -n "$(sysrc -n "ifconfig_${bridge}_ipv6" 2>/dev/null || true)" ]; }
bridge6_forget() { sysrc -x "ifconfig_${bridge}_ipv6" >/dev/null; }
undo "the IPv6 address of $bridge in rc.conf" bridge6_kept bridge6_forget
gateway6_set() { was_changed ipv6_gateway_enable && [ "$(sysrc -n ipv6_gateway_enable 2>/dev/null || true)" = YES ]; }
gateway6_remove() { sysrc -x ipv6_gateway_enable >/dev/null; }
undo "ipv6_gateway_enable in rc.conf" gateway6_set gateway6_remove
gateway_set() { was_changed gateway_enable && [ "$(sysrc -n gateway_enable 2>/dev/null || true)" = YES ]; }
gateway_remove() { sysrc -x gateway_enable >/dev/null; }
undo "gateway_enable in rc.conf" gateway_set gateway_remove

for file in /usr/local/etc/rc.d/hostd /usr/local/etc/rc.d/controlplane /usr/local/etc/newsyslog.conf.d/hostd.conf /boot/loader.conf.d/hostd.conf \
    /boot/loader.conf.d/hostd-ipfw.conf; do
    file_there() { [ -e "$file" ]; }
    file_remove() { rm "$file"; }
    undo "$file" file_there file_remove
done

barrier_numbers() { ipfw list 2>/dev/null | sed -n 's,^0*\([1-9][0-9]*\) .*// hostd [0-9a-f]* [0-9]*$,\1,p'; }
barrier_there() { [ -n "$(barrier_numbers)" ]; }
# shellcheck disable=SC2046 # numbers are words
barrier_remove() { ipfw -q delete $(barrier_numbers); }
undo "hostd's rules of ipfw" barrier_there barrier_remove

sysctls_there() { grep -qxF '# For hostd:' /etc/sysctl.conf 2>/dev/null; }
# From the heading to the last of the lines that setup-host appended.
sysctls_remove() {
    { echo '# For hostd:'; cat "$here/sysctl.conf"; } | grep -vxFf - /etc/sysctl.conf >/etc/sysctl.conf.hostd || true
    mv /etc/sysctl.conf.hostd /etc/sysctl.conf
}
undo "hostd's lines in /etc/sysctl.conf" sysctls_there sysctls_remove
rules_there() { grep -qxF "[hostd_clone=$ruleset]" /etc/devfs.rules 2>/dev/null; }
rules_remove() {
    grep '^#' "$here/devfs.rules" | grep -vxFf - /etc/devfs.rules |
        awk -v ours="[hostd_clone=$ruleset]" '/^\[/ { skip = ($0 == ours) } !skip' >/etc/devfs.rules.hostd &&
        mv /etc/devfs.rules.hostd /etc/devfs.rules
}
undo "ruleset $ruleset in /etc/devfs.rules" rules_there rules_remove

aside_there() { zfs list -H -o name "$aside" >/dev/null 2>&1; }
aside_remove() { zfs destroy "$aside"; }
undo "the empty dataset $aside" aside_there aside_remove
staged=${clones%/jails}/templates/hostd
staged_there() { [ -d "$staged" ]; }
staged_remove() { rm -rf "$staged"; }
undo "$staged, which setup-template copied" staged_there staged_remove
plane_user_there() { was_changed controlplane && pw usershow controlplane >/dev/null 2>&1; }
plane_user_remove() { pw userdel controlplane; }
undo "the user controlplane" plane_user_there plane_user_remove
group_there() { was_changed group && pw groupshow hostd >/dev/null 2>&1; }
group_remove() { pw groupdel hostd; }
undo "the group hostd" group_there group_remove
rm -f "$changes"

[ "$removed" -gt 0 ] || echo "nothing of setup-host was there"
cat <<LEFT
These stay; remove them if you do not need them:
    $etc $state $(dirname "$audit")     configuration, records, audit log
    /usr/local/etc/controlplane /var/db/controlplane /var/db/browser-jail     the control plane's, if it was used
    bastille destroy -afy $(setting host.template)      the template
A changed kernel setting stays until the next boot.
LEFT
