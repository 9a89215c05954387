# shellcheck shell=sh disable=SC2154 # setup-host sources this and defines step, changed and put
# setup-host for the control plane, if that is installed: a user of its own in the group hostd, folders, the service.

plane_user=controlplane
plane_state=/var/db/controlplane
# The default of recording.folder on FreeBSD.
plane_recordings=/var/db/browser-jail/sessions

plane_user_there() { pw usershow "$plane_user" >/dev/null 2>&1; }
plane_user_make() {
    pw useradd "$plane_user" -c "Sessions for browser clones" -d /nonexistent -s /usr/sbin/nologin -w no &&
        changed controlplane
}
step "user $plane_user, who runs the control plane" plane_user_there plane_user_make
# The last field has the members, separated by commas.
plane_member() { case ",$(pw groupshow hostd | cut -d: -f4)," in *",$plane_user,"*) ;; *) return 1 ;; esac; }
plane_join() { pw groupmod hostd -m "$plane_user"; }
step "$plane_user may call hostd: it is in the group hostd" plane_member plane_join

plane_folders_there() {
    for folder in "$plane_state" "$plane_recordings"; do
        [ "$(stat -f '%Su:%Sg:%Lp' "$folder" 2>/dev/null)" = "$plane_user:$plane_user:700" ] || return 1
    done
}
plane_folders_make() {
    install -d -o root -g wheel -m 755 "$(dirname "$plane_recordings")" &&
        install -d -o "$plane_user" -g "$plane_user" -m 700 "$plane_state" "$plane_recordings"
}
step "folders: $plane_state $plane_recordings" plane_folders_there plane_folders_make
plane_rc_there() { same rc.d/controlplane /usr/local/etc/rc.d/controlplane; }
plane_rc_put() { put rc.d/controlplane /usr/local/etc/rc.d/controlplane 555; }
step "the service: /usr/local/etc/rc.d/controlplane" plane_rc_there plane_rc_put
