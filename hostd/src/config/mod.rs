//! The configuration, checked completely before the daemon changes anything.
//!
//! The types are the only description; the crate `settings` makes the rest from them.

mod check;
mod clone_limits;
mod egress;
mod hosts;
mod lifecycle;
mod service;
mod trust;
mod types;

pub use clone_limits::CloneLimits;
pub use egress::{EgressConfig, ProbeTarget, Resolver};
pub use hosts::{
    DiskBound, FreebsdConfig, HostConfig, HostDriver, JailDriver, LimitsDemand, LinuxConfig, StorageDriver,
};
pub use lifecycle::{LifecycleConfig, PoolConfig};
pub use service::{AccessRule, LogConfig, LogFormat, MetricsConfig, ServerConfig};
pub use settings::{ConfigError, ConfigProblem, SettingOrigin, Settings};
pub use types::{Config, Paths};

#[cfg(test)]
mod tests {
    use super::*;
    use settings::sections;
    use std::collections::BTreeSet;

    #[test]
    fn every_key_has_a_description_and_its_own_variable() {
        let mut variables = BTreeSet::new();
        for section in sections::<Config>() {
            assert!(!section.doc.is_empty(), "{}", section.name);
            assert!(!section.keys.is_empty(), "{}", section.name);
            for key in &section.keys {
                assert!(!key.doc.is_empty(), "{}.{}", section.name, key.name);
                assert!(!key.default.is_null(), "{}.{}", section.name, key.name);
                if !section.list {
                    assert!(variables.insert(section.variable(Some(key))), "{}.{}", section.name, key.name);
                }
            }
            assert!(variables.insert(section.variable(None)), "{}", section.name);
        }
        for (reserved, _) in Config::RESERVED_VARIABLES {
            assert!(variables.insert((*reserved).to_owned()), "{reserved} is also a key");
        }
        assert!(variables.contains("HOSTD_CLONE_LIMITS_MEMORY_BYTES"));
    }

    #[test]
    fn the_catalogue_and_the_defaults_have_the_same_keys() {
        let defaults = serde_json::to_value(Config::default()).unwrap();
        let sections = sections::<Config>();
        assert_eq!(
            defaults.as_object().unwrap().keys().collect::<Vec<_>>(),
            sections.iter().map(|section| &section.name).collect::<Vec<_>>()
        );
        for section in sections.iter().filter(|section| !section.list) {
            let keys: Vec<_> = defaults[&section.name].as_object().unwrap().keys().collect();
            assert_eq!(
                keys,
                section.keys.iter().map(|key| &key.name).collect::<Vec<_>>(),
                "{}",
                section.name
            );
        }
    }

    #[test]
    fn the_two_systems_differ_only_in_folders() {
        let differ: Vec<_> = sections::<Config>()
            .into_iter()
            .flat_map(|section| section.keys.into_iter().filter(|key| key.default_freebsd.is_some()))
            .map(|key| key.name)
            .collect();
        assert_eq!(differ, ["socket", "state", "clones_dir"]);
    }
}
