//! Properties: what they are, where they come from, how they are shown.

use super::{bytes, parent, tree};
use crate::world::World;

/// What the pool has left.
const FREE: u64 = 20_236_848_128;

/// Properties of which this fake knows the value. The others of the list are known and have none.
fn is_native(name: &str) -> bool {
    let listed = super::PROPERTIES.lines().filter_map(|line| line.split_whitespace().next());
    name == "name" || listed.into_iter().any(|known| known == long_name(name))
}

fn long_name(name: &str) -> &str {
    match name {
        "avail" => "available",
        "refer" => "referenced",
        "compress" => "compression",
        other => other,
    }
}

/// A user property has a colon and no capital letter.
pub(super) fn is_user(name: &str) -> bool {
    name.contains(':')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.:".contains(&byte))
}

pub(super) fn exists(name: &str) -> bool {
    is_native(name) || is_user(name)
}

/// Why a property cannot be set to a value; none if it can.
pub(super) fn refuses(world: &World, dataset: Option<&str>, property: &str, value: &str) -> Option<String> {
    if is_user(property) {
        return None;
    }
    match property {
        "quota" | "refquota" | "reservation" | "refreservation" if value != "none" => match bytes(value) {
            None => Some(format!("bad numeric value '{value}'")),
            Some(size) if size > 0 && dataset.is_some_and(|name| taken(world, name, property) > size) => {
                Some("size is less than current used or reserved space".to_owned())
            }
            Some(_) => None,
        },
        "canmount" if ["on", "off", "noauto"].contains(&value) => None,
        "quota" | "refquota" | "reservation" | "refreservation" | "mountpoint" => None,
        "readonly" | "atime" | "exec" | "setuid" | "devices" if ["on", "off"].contains(&value) => None,
        "readonly" | "atime" | "exec" | "setuid" | "devices" | "canmount" => {
            Some(format!("'{property}' must be one of 'on | off'"))
        }
        "compression" | "recordsize" | "sync" | "primarycache" => None,
        _ => Some(format!("invalid property '{property}'")),
    }
}

/// What a limit on the whole tree, or on one dataset alone, is compared with.
fn taken(world: &World, name: &str, property: &str) -> u64 {
    match property {
        "quota" => used(world, name),
        _ => world.datasets[name].referenced,
    }
}

pub(super) fn used(world: &World, name: &str) -> u64 {
    tree(world, name).iter().map(|dataset| world.datasets[dataset].own).sum()
}

/// A property's value and where it is from.
pub(super) fn value(world: &World, name: &str, property: &str, exact: bool) -> (String, String) {
    let none = || ("-".to_owned(), "-".to_owned());
    let fixed = |text: String| (text, "-".to_owned());
    let size = |bytes: u64| if exact { bytes.to_string() } else { human(bytes) };
    if name.contains('@') {
        return of_snapshot(world, name, property, exact);
    }
    let dataset = &world.datasets[name];
    let property = long_name(property);
    let local = dataset.properties.get(property);
    match property {
        "name" => fixed(name.to_owned()),
        "type" => fixed("filesystem".to_owned()),
        "used" => fixed(size(used(world, name))),
        "referenced" => fixed(size(dataset.referenced)),
        "usedbydataset" => fixed(size(dataset.own)),
        "available" => {
            let left = |key: &str, used: u64| {
                let quota =
                    dataset.properties.get(key).and_then(|quota| bytes(quota)).filter(|quota| *quota > 0);
                quota.map_or(FREE, |quota| quota.saturating_sub(used))
            };
            fixed(size(left("quota", used(world, name)).min(left("refquota", dataset.referenced))))
        }
        "origin" => fixed(dataset.origin.clone().unwrap_or_else(|| "-".to_owned())),
        "creation" => fixed(if exact { dataset.created.to_string() } else { creation(dataset.created) }),
        "guid" | "objsetid" | "createtxg" => fixed(dataset.id.to_string()),
        "mounted" => fixed(if world.mount_of(name).is_some() { "yes" } else { "no" }.to_owned()),
        "quota" | "refquota" | "reservation" | "refreservation" => {
            let set = local.and_then(|text| bytes(text)).filter(|bytes| *bytes > 0);
            match set {
                Some(bytes) => (size(bytes), "local".to_owned()),
                None => (if exact { "0" } else { "none" }.to_owned(), "default".to_owned()),
            }
        }
        "mountpoint" => mountpoint(world, name),
        "canmount" => (local.map_or("on", String::as_str).to_owned(), source(local)),
        "readonly" => inherited(world, name, property).unwrap_or(("off".into(), "default".into())),
        _ if is_user(property) => inherited(world, name, property).unwrap_or_else(none),
        _ => none(),
    }
}

fn of_snapshot(world: &World, name: &str, property: &str, exact: bool) -> (String, String) {
    let fixed = |text: String| (text, "-".to_owned());
    let Some(snapshot) = world.snapshots.iter().find(|snapshot| snapshot.name == name) else {
        return fixed("-".to_owned());
    };
    let clones = || -> Vec<String> {
        let of = |(name, dataset): (&String, &crate::Dataset)| {
            (dataset.origin.as_deref() == Some(snapshot.name.as_str())).then(|| name.clone())
        };
        world.datasets.iter().filter_map(of).collect()
    };
    match long_name(property) {
        "name" => fixed(name.to_owned()),
        "type" => fixed("snapshot".to_owned()),
        "used" => fixed(if exact { "0" } else { "0B" }.to_owned()),
        "creation" => fixed(if exact { snapshot.created.to_string() } else { creation(snapshot.created) }),
        "guid" => fixed(snapshot.id.to_string()),
        "createtxg" => fixed(snapshot.transaction.to_string()),
        "userrefs" => fixed(snapshot.holds.len().to_string()),
        "defer_destroy" => fixed(if snapshot.deferred { "on" } else { "off" }.to_owned()),
        "clones" if clones().is_empty() => fixed(String::new()),
        "clones" => fixed(clones().join(",")),
        "referenced" => {
            let bytes = world.datasets.get(super::dataset_of(name)).map_or(0, |dataset| dataset.referenced);
            fixed(if exact { bytes.to_string() } else { human(bytes) })
        }
        user if snapshot.properties.contains_key(user) => (snapshot.properties[user].clone(), "local".into()),
        user if is_user(user) => {
            inherited(world, super::dataset_of(name), user).unwrap_or(("-".into(), "-".into()))
        }
        _ => fixed("-".to_owned()),
    }
}

fn source(local: Option<&String>) -> String {
    if local.is_some() { "local" } else { "default" }.to_owned()
}

/// The nearest setting of a property, on the dataset or above.
fn inherited(world: &World, name: &str, property: &str) -> Option<(String, String)> {
    let mut at = Some(name);
    while let Some(dataset) = at {
        if let Some(value) = world.datasets.get(dataset).and_then(|found| found.properties.get(property)) {
            let source =
                if dataset == name { "local".to_owned() } else { format!("inherited from {dataset}") };
            return Some((value.clone(), source));
        }
        at = parent(dataset);
    }
    None
}

/// Where a dataset belongs.
pub(super) fn mountpoint(world: &World, name: &str) -> (String, String) {
    let mut at = Some(name);
    while let Some(dataset) = at {
        if let Some(value) = world.datasets.get(dataset).and_then(|found| found.properties.get("mountpoint"))
        {
            let rest = &name[dataset.len()..];
            let source =
                if dataset == name { "local".to_owned() } else { format!("inherited from {dataset}") };
            return match value.as_str() {
                "none" | "legacy" => (value.clone(), source),
                path => (format!("{}{rest}", path.trim_end_matches('/')), source),
            };
        }
        at = parent(dataset);
    }
    (format!("/{name}"), "default".to_owned())
}

/// Bytes as zfs shows them without `-p`.
fn human(bytes: u64) -> String {
    let mut unit = 0;
    let mut whole = bytes;
    while whole >= 1024 {
        (whole, unit) = (whole / 1024, unit + 1);
    }
    let letter = ["B", "K", "M", "G", "T", "P"][unit];
    let power = 1u64 << (10 * unit);
    if bytes.is_multiple_of(power) {
        return format!("{}{letter}", bytes / power);
    }
    let value = bytes as f64 / power as f64;
    // Three digits, as many behind the point as fit.
    let digits = (0..=2).rev().find(|digits| format!("{value:.digits$}").len() <= 4).unwrap_or(0);
    format!("{value:.digits$}{letter}")
}

/// When a dataset was made, as zfs shows it without `-p`, in UTC: a blank before a single digit of the hour.
fn creation(seconds: u64) -> String {
    date(seconds, |hour| format!("{hour:>2}"))
}

/// Since when a snapshot is held: as above, but with a zero there.
pub(super) fn held_since(seconds: u64) -> String {
    date(seconds, |hour| format!("{hour:02}"))
}

fn date(seconds: u64, padded: fn(u64) -> String) -> String {
    let days = i64::try_from(seconds / 86_400).unwrap_or(0);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][usize::try_from(days % 7).unwrap_or(0)];
    // Howard Hinnant's days-to-civil.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let name = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let name = name[usize::try_from(month - 1).unwrap_or(0)];
    let (hour, minute) = (padded(seconds % 86_400 / 3600), seconds % 3600 / 60);
    format!("{weekday} {name} {day:>2} {hour}:{minute:02} {year}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_hours_and_days_are_padded_as_zfs_does() {
        // Of the recordings: the same moment as a creation and as a hold.
        let recorded = 1_794_792_600;
        assert_eq!(creation(recorded), "Mon Nov 16  1:30 2026");
        assert_eq!(held_since(recorded), "Mon Nov 16 01:30 2026");
        assert_eq!(held_since(1_793_491_199), "Sat Oct 31 23:59 2026");
        assert_eq!(held_since(1_793_491_200), "Sun Nov  1 00:00 2026");
    }
}
