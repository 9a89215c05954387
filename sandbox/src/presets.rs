//! Sets of file rules that most policies need.

use crate::policy::{FileRule, Identity};

impl FileRule {
    /// Programs and libraries of the system, merged `/usr` or not.
    pub fn system_programs() -> Vec<FileRule> {
        let mut rules = vec![FileRule::programs("/usr")];
        rules.extend(
            ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"].map(FileRule::programs_if_present),
        );
        rules
    }

    /// `/etc/passwd`, `/etc/group` and `/etc/nsswitch.conf` with only the program's user, root and
    /// nobody. User lookups work without showing the host's users.
    pub fn identity_files(identity: &Identity, name: &str, home: &str) -> Vec<FileRule> {
        let (uid, gid) = (identity.uid, identity.gid);
        vec![
            FileRule::synthetic(
                "/etc/passwd",
                format!(
                    "root:x:0:0:root:/:/usr/sbin/nologin\n\
                     {name}:x:{uid}:{gid}:{name}:{home}:/usr/sbin/nologin\n\
                     nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
                ),
            ),
            FileRule::synthetic("/etc/group", format!("root:x:0:\n{name}:x:{gid}:\nnogroup:x:65534:\n")),
            FileRule::synthetic("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
        ]
    }
}
