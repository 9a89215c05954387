//! The identity of a slot's datasets.

use super::recorded::LOOK;
use super::*;
use crate::host::Identity;
use crate::host::zfs::datasets::Datasets;

const PARENT: &str = "zroot/bastille/jails";

fn lines(name: &str, origin: &str, mark: (&str, &str)) -> String {
    let folder = name.strip_prefix(PARENT).unwrap();
    let values = [
        ("origin", origin, "-"),
        ("mounted", "yes", "-"),
        ("mountpoint", &format!("/usr/local/bastille/jails{folder}"), "inherited from zroot/bastille"),
        ("creation", "1794792587", "-"),
        ("quota", "0", "default"),
        ("org.hostd:clone_id", mark.0, mark.1),
    ];
    values.map(|(property, value, source)| format!("{name}\t{property}\t{value}\t{source}\n")).concat()
}

/// A slot with these two datasets: origin and mark of each, the inner one if there is one.
fn seen(outer: (&str, (&str, &str)), root: Option<(&str, (&str, &str))>) -> (Identity, bool) {
    let dataset = names().dataset;
    let mut text = lines(PARENT, "-", ("-", "-")) + &lines(&dataset, outer.0, outer.1);
    if let Some((origin, mark)) = root {
        text += &lines(&format!("{dataset}/root"), origin, mark);
    }
    let storage = Datasets::read(&text, PARENT).unwrap().storage(&layout(), &names()).unwrap();
    (storage.identity, storage.mounted)
}

const TOP: &str = "zroot/bastille/jails/browser@default";
const ROOT: &str = "zroot/bastille/jails/browser/root@default";
const MARKED: (&str, &str) = (ID, "local");
const BARE: (&str, &str) = ("-", "-");

#[test]
fn the_mark_on_the_dataset_itself_decides() {
    let own = Identity::Clone(id(ID));
    assert_eq!(seen((TOP, MARKED), Some((ROOT, MARKED))), (own.clone(), true));
    assert_eq!(seen((TOP, MARKED), None), (own.clone(), false), "half made");
    assert_eq!(seen((TOP, MARKED), Some((ROOT, BARE))).0, own, "a crash before the second mark");
    assert_eq!(seen((TOP, BARE), Some((ROOT, MARKED))).0, own);
    assert_eq!(seen((TOP, BARE), None).0, Identity::Unmarked, "a crash before the first mark");
    let inherited = (ID, "inherited from zroot/bastille/jails");
    assert_eq!(seen((TOP, inherited), None).0, Identity::Unmarked, "the parent's mark is not its own");
    let inner = format!("inherited from {}", names().dataset);
    assert_eq!(seen((TOP, MARKED), Some((ROOT, (ID, inner.as_str())))).0, own);
}

#[test]
fn a_dataset_without_a_valid_mark_and_origin_is_foreign() {
    let foreign = |outer, root| match seen(outer, root) {
        (Identity::Foreign(why), _) => why,
        other => panic!("{other:?}"),
    };
    assert!(foreign(("-", BARE), None).contains("no clone"), "a jail that somebody made");
    assert!(foreign(("zroot/bastille/jails/web@default", BARE), None).contains("web@default"));
    assert!(foreign(("zroot/bastille/jails/browser2@default", BARE), None).contains("browser2"));
    assert!(
        foreign(("-", (ID, "received")), None).contains("no clone"),
        "a copy of a clone, sent and received"
    );
    assert!(foreign((TOP, ("me", "local")), None).contains("\"me\""), "somebody else's mark");
    assert!(foreign((TOP, ("-", "local")), None).contains("no clone's identity"));
    assert!(foreign((TOP, MARKED), Some((ROOT, (OTHER, "local")))).contains(OTHER));
    assert!(
        foreign((TOP, MARKED), Some(("-", BARE))).contains("its files"),
        "a dataset somebody made inside"
    );
    assert!(foreign((TOP, BARE), Some((TOP, BARE))).contains("its files"), "a clone of the wrong half");
}

#[test]
fn storage_is_mounted_only_at_its_own_path() {
    let slot = |number: u16| {
        let names = slots().names(Slot::new(number).unwrap());
        Datasets::read(LOOK, PARENT).unwrap().storage(&layout(), &names)
    };
    let whole = slot(1).unwrap();
    assert!(whole.mounted && whole.identity == Identity::Clone(id(ID)));
    assert_eq!(whole.snapshot, Some(snapshot("default")));
    assert!(whole.age.unwrap() > std::time::Duration::ZERO);
    assert!(!slot(2).unwrap().mounted, "its files are not mounted");
    assert!(!slot(3).unwrap().mounted, "mounted elsewhere");
    assert!(matches!(slot(4).unwrap().identity, Identity::Foreign(_)));
    assert!(slot(5).is_none());
}
