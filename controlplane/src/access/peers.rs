//! Local users: the credentials of the Unix socket's peer are the login.

use super::{Caller, DEFAULT_SCOPES, Identity, Scope};
use crate::config::AccessRule;
use crate::ids::TenantId;
use hostd::platform::Peer;
use hostd::server::access::{NameLookup, SystemNames};
use std::collections::BTreeSet;

/// The tenant of root and of the service's own user.
const DEFAULT_TENANT: &str = "default";

#[derive(Debug, Clone)]
struct ResolvedRule {
    uids: BTreeSet<u32>,
    gids: BTreeSet<u32>,
    tenant: TenantId,
    scopes: BTreeSet<Scope>,
}

/// The rules for local users, with all names resolved.
#[derive(Debug, Clone)]
pub struct PeerRules {
    rules: Vec<ResolvedRule>,
    own_uid: u32,
    warnings: Vec<String>,
}

impl PeerRules {
    /// Resolve the rules with the system's databases.
    pub fn new(rules: &[AccessRule]) -> Self {
        Self::resolve(rules, &SystemNames, nix::unistd::geteuid().as_raw())
    }

    fn resolve(rules: &[AccessRule], names: &dyn NameLookup, own_uid: u32) -> Self {
        let mut warnings = Vec::new();
        let mut resolved = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let number = index + 1;
            let mut ids = |kind: &str, list: &[String], find: &dyn Fn(&str) -> Option<u32>| {
                let mut ids = BTreeSet::new();
                for name in list {
                    match name.parse().ok().or_else(|| find(name)) {
                        Some(id) => drop(ids.insert(id)),
                        None => warnings.push(format!(
                            "access rule {number}: there is no {kind} {name:?}; the rule matches nobody through it"
                        )),
                    }
                }
                ids
            };
            let uids = ids("user", &rule.users, &|name| names.user(name));
            let gids = ids("group", &rule.groups, &|name| names.group(name));
            if rule.users.is_empty() && rule.groups.is_empty() {
                warnings
                    .push(format!("access rule {number} names no users and no groups; it matches nobody"));
            }
            let scopes = rule.scopes.iter().copied().collect();
            resolved.push(ResolvedRule { uids, gids, tenant: rule.tenant.clone(), scopes });
        }
        Self { rules: resolved, own_uid, warnings }
    }

    /// Unknown names and rules that match nobody.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Who the peer is and what it may do. The first rule that matches decides.
    pub fn caller(&self, peer: &Peer) -> Caller {
        let identity = Identity::User(peer.uid);
        let matches = |rule: &&ResolvedRule| {
            rule.uids.contains(&peer.uid) || peer.gids.iter().any(|gid| rule.gids.contains(gid))
        };
        if let Some(rule) = self.rules.iter().find(matches) {
            let (tenant, scopes) = (rule.tenant.clone(), rule.scopes.clone());
            return Caller { identity, tenant, scopes, all_tenants: false };
        }
        let tenant = |name: String| TenantId::try_from(name).expect("a valid name");
        if peer.uid == 0 || peer.uid == self.own_uid {
            let scopes = Scope::ALL.into_iter().filter(|scope| *scope != Scope::Evaluate).collect();
            let tenant = tenant(DEFAULT_TENANT.to_owned());
            return Caller { identity, tenant, scopes, all_tenants: true };
        }
        let tenant = tenant(format!("uid-{}", peer.uid));
        Caller { identity, tenant, scopes: DEFAULT_SCOPES.into(), all_tenants: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;
    impl NameLookup for Fixed {
        fn user(&self, name: &str) -> Option<u32> {
            (name == "alice").then_some(1000)
        }
        fn group(&self, name: &str) -> Option<u32> {
            (name == "ops").then_some(60)
        }
    }

    fn rule(users: &[&str], groups: &[&str], tenant: &str, scopes: &[Scope]) -> AccessRule {
        let owned = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        AccessRule {
            users: owned(users),
            groups: owned(groups),
            tenant: tenant.parse().unwrap(),
            scopes: scopes.to_vec(),
        }
    }

    fn caller(rules: &[AccessRule], uid: u32, gids: &[u32]) -> (String, Vec<Scope>) {
        let rules = PeerRules::resolve(rules, &Fixed, 77);
        let caller = rules.caller(&Peer { uid, gids: gids.to_vec(), pid: None });
        assert_eq!(caller.identity, Identity::User(uid));
        (caller.tenant.to_string(), caller.scopes.into_iter().collect())
    }

    #[test]
    fn without_a_rule_root_and_the_service_are_operators_and_others_have_a_tenant_of_their_own() {
        use Scope::{Admin, Cdp, Files, Read, Write};
        let operator = vec![Read, Write, Files, Cdp, Admin];
        assert_eq!(caller(&[], 0, &[0]), ("default".into(), operator.clone()));
        assert_eq!(caller(&[], 77, &[77]), ("default".into(), operator));
        assert_eq!(caller(&[], 1000, &[1000]), ("uid-1000".into(), vec![Read, Write, Files, Cdp]));
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = [
            rule(&["alice"], &[], "team", &[Scope::Read]),
            rule(&["1000"], &["ops"], "ops", &[Scope::Admin]),
            rule(&["root"], &[], "never", &[Scope::Read]),
        ];
        assert_eq!(caller(&rules, 1000, &[60]), ("team".into(), vec![Scope::Read]));
        assert_eq!(caller(&rules, 1001, &[5, 60]), ("ops".into(), vec![Scope::Admin]));
        assert_eq!(caller(&rules, 0, &[60]), ("ops".into(), vec![Scope::Admin]), "also of root");
        assert_eq!(caller(&rules, 1002, &[5]).0, "uid-1002");
    }

    #[test]
    fn a_rule_narrows_root_too() {
        let of = |rules: &[AccessRule]| {
            PeerRules::resolve(rules, &Fixed, 77).caller(&Peer { uid: 0, gids: vec![0], pid: None })
        };
        assert!(of(&[]).all_tenants);
        assert!(!of(&[rule(&["0"], &[], "team", &[Scope::Admin])]).all_tenants);
    }

    #[test]
    fn names_that_do_not_exist_and_rules_for_nobody_are_warnings() {
        let rules = [rule(&["nobody-here"], &["nothing"], "t", &[]), rule(&[], &[], "t", &[])];
        let rules = PeerRules::resolve(&rules, &Fixed, 77);
        assert_eq!(rules.warnings().len(), 3, "{:?}", rules.warnings());
        assert!(rules.warnings()[0].contains("user \"nobody-here\""));
    }
}
