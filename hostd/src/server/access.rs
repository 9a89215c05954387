//! Access control: the configured rules, applied to the peer's credentials from the kernel.
//!
//! The default is to deny. A peer without a matching rule is disconnected. A peer with a rule may read (list, status,
//! discover) and call the methods of its rules. Operators may call everything. Names are looked up once at start by
//! [`SystemNames`]; nothing else here uses the system.

use crate::api::Method;
use crate::config::AccessRule;
use crate::platform::Peer;
use std::collections::BTreeSet;

/// Resolves names to ids.
pub trait NameLookup {
    /// The id of a user.
    fn user(&self, name: &str) -> Option<u32>;
    /// The id of a group.
    fn group(&self, name: &str) -> Option<u32>;
}

/// The system's user and group databases.
#[derive(Debug)]
pub struct SystemNames;

impl NameLookup for SystemNames {
    fn user(&self, name: &str) -> Option<u32> {
        nix::unistd::User::from_name(name).ok().flatten().map(|user| user.uid.as_raw())
    }

    fn group(&self, name: &str) -> Option<u32> {
        nix::unistd::Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ResolvedRule {
    uids: BTreeSet<u32>,
    gids: BTreeSet<u32>,
    methods: BTreeSet<Method>,
    operator: bool,
}

impl ResolvedRule {
    fn names(&self, peer: &Peer) -> bool {
        self.uids.contains(&peer.uid) || peer.gids.iter().any(|gid| self.gids.contains(gid))
    }
}

/// The rules, with all names resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    rules: Vec<ResolvedRule>,
    warnings: Vec<String>,
}

/// What one peer may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessGrant {
    methods: BTreeSet<Method>,
    operator: bool,
}

impl AccessGrant {
    /// Whether the peer may call this method.
    pub fn allows(&self, method: Method) -> bool {
        self.methods.contains(&method)
    }

    /// Whether the peer may act on all clones.
    pub fn operator(&self) -> bool {
        self.operator
    }
}

impl Access {
    /// Resolve the rules with the system's databases.
    pub fn new(rules: &[AccessRule]) -> Access {
        Access::resolve(rules, &SystemNames)
    }

    /// Resolve the rules with these databases.
    pub fn resolve(rules: &[AccessRule], names: &dyn NameLookup) -> Access {
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
            let methods = if rule.operator {
                Method::ALL.into()
            } else {
                let reading = Method::ALL.into_iter().filter(|method| !method.mutates());
                let listed = rule.operations.iter().copied();
                // The configuration check refuses such a rule; this is a second guard.
                let listed = listed.filter(|method| *method != Method::ForceUnmount);
                reading.chain(listed).collect()
            };
            resolved.push(ResolvedRule { uids, gids, methods, operator: rule.operator });
        }
        if resolved.is_empty() {
            warnings.push("there are no access rules: nobody may call anything".to_owned());
        }
        Access { rules: resolved, warnings }
    }

    /// Unknown names and rules that match nobody.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What the peer may do, or `None` if no rule matches.
    pub fn grant(&self, peer: &Peer) -> Option<AccessGrant> {
        let matching: Vec<&ResolvedRule> = self.rules.iter().filter(|rule| rule.names(peer)).collect();
        if matching.is_empty() {
            return None;
        }
        Some(AccessGrant {
            methods: matching.iter().flat_map(|rule| rule.methods.iter().copied()).collect(),
            operator: matching.iter().any(|rule| rule.operator),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;
    impl NameLookup for Fixed {
        fn user(&self, name: &str) -> Option<u32> {
            (name == "plane").then_some(500)
        }
        fn group(&self, name: &str) -> Option<u32> {
            (name == "ops").then_some(60)
        }
    }

    const READING: [Method; 3] = [Method::List, Method::Status, Method::Discover];

    fn rule(users: &[&str], groups: &[&str], operations: &[Method], operator: bool) -> AccessRule {
        let owned = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        AccessRule { users: owned(users), groups: owned(groups), operations: operations.to_vec(), operator }
    }

    fn access(rules: &[AccessRule]) -> Access {
        Access::resolve(rules, &Fixed)
    }

    fn peer(uid: u32, gids: &[u32]) -> Peer {
        Peer { uid, gids: gids.to_vec(), pid: None }
    }

    fn allowed(grant: &AccessGrant) -> Vec<Method> {
        Method::ALL.into_iter().filter(|method| grant.allows(*method)).collect()
    }

    #[test]
    fn without_rules_nobody_may_do_anything() {
        let access = access(&[]);
        for uid in [0, 1, 500, u32::MAX] {
            assert_eq!(access.grant(&peer(uid, &[0, 60])), None);
        }
        assert_eq!(access.warnings(), ["there are no access rules: nobody may call anything"]);
    }

    #[test]
    fn a_user_is_matched_by_name_and_by_number() {
        let access = access(&[rule(&["plane", "0"], &[], &[Method::Create], false)]);
        assert!(access.warnings().is_empty());
        for uid in [500, 0] {
            let grant = access.grant(&peer(uid, &[9])).unwrap();
            assert_eq!(allowed(&grant), [Method::Create, Method::List, Method::Status, Method::Discover]);
            assert!(!grant.operator());
        }
        assert_eq!(access.grant(&peer(501, &[9])), None);
        assert_eq!(access.grant(&peer(9, &[500])), None, "a group id is not a user id");
    }

    #[test]
    fn any_group_of_the_peer_counts() {
        let access = access(&[rule(&[], &["ops", "70"], &[], false)]);
        for gids in [&[60][..], &[1, 60], &[70, 1]] {
            assert_eq!(allowed(&access.grant(&peer(1, gids)).unwrap()), READING);
        }
        assert_eq!(access.grant(&peer(1, &[1, 2])), None);
        assert_eq!(access.grant(&peer(1, &[])), None);
        assert_eq!(access.grant(&peer(60, &[1])), None, "a user id is not a group id");
    }

    #[test]
    fn a_named_peer_may_read_and_call_the_listed_methods() {
        for method in [Method::Create, Method::Destroy, Method::Reap] {
            let access = access(&[rule(&["1"], &[], &[method], false)]);
            let grant = access.grant(&peer(1, &[1])).unwrap();
            for other in Method::ALL {
                assert_eq!(
                    grant.allows(other),
                    other == method || READING.contains(&other),
                    "{method}, {other}"
                );
            }
        }
    }

    #[test]
    fn operators_may_do_everything() {
        for operations in [&[][..], &[Method::ForceUnmount], &[Method::List]] {
            let access = access(&[rule(&["1"], &[], operations, true)]);
            let grant = access.grant(&peer(1, &[1])).unwrap();
            assert_eq!(allowed(&grant), Method::ALL);
            assert!(grant.operator());
            assert_eq!(access.grant(&peer(2, &[1])), None);
        }
    }

    #[test]
    fn rights_of_matching_rules_add_up() {
        let access = access(&[
            rule(&["1"], &[], &[Method::Create], false),
            rule(&["1", "2"], &[], &[Method::Reap], false),
            rule(&[], &["60"], &[], true),
        ]);
        let one = access.grant(&peer(1, &[1])).unwrap();
        assert!(one.allows(Method::Create) && one.allows(Method::Reap) && !one.allows(Method::Destroy));
        assert!(!one.operator());
        let two = access.grant(&peer(2, &[2])).unwrap();
        assert!(!two.allows(Method::Create) && two.allows(Method::Reap) && !two.operator());
        let both = access.grant(&peer(1, &[60])).unwrap();
        assert!(both.operator() && both.allows(Method::ForceUnmount));
    }

    #[test]
    fn force_unmount_is_for_operators_whatever_a_rule_lists() {
        let access = access(&[rule(&["1"], &[], &[Method::Create, Method::ForceUnmount], false)]);
        let grant = access.grant(&peer(1, &[1])).unwrap();
        assert!(grant.allows(Method::Create) && !grant.allows(Method::ForceUnmount));
    }

    #[test]
    fn unknown_names_match_nobody_and_are_reported() {
        let access = access(&[
            rule(&["ghost", "plane"], &["ghosts"], &[Method::Create], false),
            rule(&[], &[], &[Method::Reap], true),
        ]);
        assert_eq!(
            access.warnings(),
            [
                "access rule 1: there is no user \"ghost\"; the rule matches nobody through it",
                "access rule 1: there is no group \"ghosts\"; the rule matches nobody through it",
                "access rule 2 names no users and no groups; it matches nobody",
            ]
        );
        assert!(access.grant(&peer(500, &[])).is_some());
        assert_eq!(access.grant(&peer(0, &[0])), None);
    }

    #[test]
    fn the_system_knows_root() {
        let access = Access::new(&[rule(&["root"], &[], &[], true)]);
        assert!(access.grant(&peer(0, &[])).unwrap().operator());
        assert_eq!(access.grant(&peer(1, &[])), None);
        let group = nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(0)).unwrap().unwrap();
        assert_eq!(SystemNames.group(&group.name), Some(0));
        assert_eq!(SystemNames.group("no-such-group"), None);
        assert_eq!(SystemNames.user("no-such-user"), None);
    }
}
