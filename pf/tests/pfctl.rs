//! The parsers of `pfctl`'s output, on recorded output and on mutations of it.

#![allow(clippy::unwrap_used)] // The tests parse their own constants.

use pf::pfctl::{self, Change, Failure, Finding, Observed};
use pf::{Policy, PolicySpec, pf_conf};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::IpAddr;

const RECORDED: &str = include_str!("transcripts/b-pf.txt");
const RECORDED_KILL: &str = include_str!("transcripts/m-pf-kill.txt");

/// One recorded command.
#[derive(Debug, Clone, Default)]
struct Run {
    command: String,
    stdout: String,
    stderr: String,
    exit: i32,
}

/// The commands of the transcript, stdout and stderr separated.
fn runs() -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut stream = None;
    for line in RECORDED.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            runs.push(Run { command: command.into(), ..Run::default() });
            stream = None;
        } else if let Some(rest) = line.strip_prefix("--- exit=") {
            runs.last_mut().unwrap().exit = rest.split_whitespace().next().unwrap().parse().unwrap();
            stream = None;
        } else if let Some(name) = line.strip_prefix("--- ") {
            stream = Some(name);
        } else if let (Some(name), Some(run)) = (stream, runs.last_mut()) {
            let text = if name == "stdout" { &mut run.stdout } else { &mut run.stderr };
            text.push_str(line);
            text.push('\n');
        }
    }
    runs
}

fn recorded(command: &str) -> Vec<Run> {
    let found: Vec<Run> = runs().into_iter().filter(|run| run.command == command).collect();
    assert!(!found.is_empty(), "{command} was not recorded");
    found
}

/// A recorded `-vvsT` listing of tables in use.
fn recorded_tables_in_use() -> String {
    let listing = RECORDED_KILL.split_once("$ pfctl -vvsT\n").unwrap().1.split_once("--- exit=").unwrap().0;
    // This transcript has stderr before stdout.
    let noise = ["No ALTQ support in kernel", "ALTQ related functions disabled"];
    listing.lines().filter(|line| !noise.contains(line)).map(|line| format!("{line}\n")).collect()
}

fn policy() -> Policy {
    let mut spec = PolicySpec::new(vec!["192.168.72.0/24".parse().unwrap()]);
    spec.resolver = Some("192.168.72.1".parse().unwrap());
    spec.control_plane = vec!["192.168.72.1/32".parse().unwrap()];
    spec.external = Some("em0".into());
    spec.try_into().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn built_commands_match_the_recorded_ones() {
    let line = |arguments: Vec<String>| format!("pfctl {}", arguments.join(" "));
    let policy = policy();
    let member = [ip("192.168.72.101")];
    for command in [
        line(pfctl::add(&policy, &member)),
        line(pfctl::show(&policy)),
        line(pfctl::delete(&policy, &[ip("192.168.72.103")])),
        line(pfctl::info()),
        line(pfctl::tables()),
        line(pfctl::main_rules()),
    ] {
        recorded(&command);
    }
    let [outgoing, incoming] = pfctl::kill_states(member[0]).map(line);
    assert!(RECORDED_KILL.contains(&format!("$ {outgoing}\n")), "{outgoing}");
    assert_eq!(incoming, "pfctl -M -k 0.0.0.0/0 -k 192.168.72.101");
    assert_eq!(line(pfctl::kill_states(ip("fd87::1"))[1].clone()), "pfctl -M -k ::/0 -k fd87::1");
    let [outgoing, incoming] = pfctl::kill_network_states(&"10.87.64.0/22".parse().unwrap()).map(line);
    assert_eq!(outgoing, "pfctl -M -k 10.87.64.0/22");
    assert_eq!(incoming, "pfctl -M -k 0.0.0.0/0 -k 10.87.64.0/22");
    assert_eq!(line(pfctl::main_nat()), "pfctl -sn");
    assert_eq!(line(pfctl::anchor_rules(&policy)), "pfctl -a browser -P -sr");
    assert_eq!(line(pfctl::anchor_nat(&policy)), "pfctl -a browser -P -sn");
    assert_eq!(line(pfctl::anchor_denied(&policy)), "pfctl -a browser -t browser_denied -T show");
    assert_eq!(line(pfctl::check_anchor(&policy, "/x")), "pfctl -a browser -nf /x");
    assert_eq!(line(pfctl::load_anchor(&policy, "/x")), "pfctl -a browser -f /x");
}

#[test]
fn the_enabled_state_is_parsed() {
    let seen: Vec<bool> = recorded("pfctl -s info")
        .iter()
        .filter(|run| run.exit == 0)
        .map(|run| pfctl::read_enabled(&run.stdout).unwrap())
        .collect();
    assert_eq!(seen, [false, true]);
    assert!(pfctl::read_enabled(&recorded("pfctl -vsi")[0].stdout).unwrap());
    for bad in [
        "",
        "\n",
        "Status: ",
        "Status: Enabled",
        "status: enabled for 1 day",
        "Statut : Activé for 1",
        "Status: Maybe for 0",
    ] {
        assert!(pfctl::read_enabled(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn members_of_every_recorded_table_are_parsed() {
    let shown = recorded("pfctl -t browser_tasks -T show");
    let sizes: Vec<usize> = shown.iter().map(|run| pfctl::read_members(&run.stdout).unwrap().len()).collect();
    assert_eq!(sizes, [1, 4, 3, 1, 2]);
    let networks = pfctl::read_members(&shown[2].stdout).unwrap();
    assert!(networks.contains(&"192.168.72.0/24".parse().unwrap()), "{networks:?}");
    assert_eq!(pfctl::read_members("").unwrap(), BTreeSet::new());
    for bad in [
        "192.168.72.101\n",
        "   999.1.1.1\n",
        "   !10.0.0.1\n",
        "   10.0.0.1 \n",
        "   \n",
        "\n",
        "   10.0.0.1\n   10.0.0.1\n",
    ] {
        assert!(pfctl::read_members(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn the_result_of_add_and_delete_is_parsed() {
    let seen = |command: &str| -> Vec<Change> {
        recorded(command)
            .iter()
            .filter(|run| run.exit == 0)
            .map(|run| pfctl::read_change(&run.stderr).unwrap())
            .collect()
    };
    let change = |table_created, changed, given| Change { table_created, changed, given };
    assert_eq!(
        seen("pfctl -t browser_tasks -T add 192.168.72.101"),
        [change(true, 1, 1), change(false, 1, 1), change(false, 0, 1), change(false, 1, 1)]
    );
    assert_eq!(
        seen("pfctl -t browser_tasks -T add 192.168.72.101 192.168.72.102 192.168.72.103"),
        [change(false, 2, 3)]
    );
    assert_eq!(
        seen("pfctl -t browser_tasks -T delete 192.168.72.103"),
        [change(false, 1, 1), change(false, 0, 1)]
    );
    assert_eq!(seen("pfctl -t 'bad name' -T add 10.0.0.1"), [change(true, 1, 1)]);
    for bad in [
        "",
        "1 table created.\n",
        "2/1 addresses added.\n",
        "+1/1 addresses added.\n",
        "1/1 addresses match.\n",
        "1 addresses added.\n",
        "1/1 adresses ajoutées.\n",
        "1/1 addresses added.\n1/1 addresses added.\n",
        "1/99999999999999999999999 addresses added.\n",
    ] {
        assert!(pfctl::read_change(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn the_number_of_killed_states_is_parsed() {
    assert_eq!(pfctl::read_killed(&recorded("pfctl -k 192.168.72.101")[0].stderr).unwrap(), 0);
    assert_eq!(pfctl::read_killed(&recorded("pfctl -k 192.168.72.101 -k 0.0.0.0/0")[0].stderr).unwrap(), 0);
    let line = RECORDED_KILL.split_once("$ pfctl -M -k 192.168.72.101\n").unwrap().1;
    assert_eq!(pfctl::read_killed(line).unwrap(), 2);
    for bad in [
        "",
        "killed",
        "killed many states from 1 sources",
        "killed 0 src nodes from 1 sources and 0 destinations",
    ] {
        assert!(pfctl::read_killed(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn tables_and_their_references_are_parsed() {
    let run = &recorded("pfctl -vvsT")[0];
    assert_eq!(pfctl::failure(&run.stderr), None, "the ALTQ notice is not an error");
    let tables = pfctl::read_tables(&run.stdout).unwrap();
    let names: Vec<(&str, usize, bool)> =
        tables.iter().map(|table| (table.name.as_str(), table.addresses, table.is_referred_to())).collect();
    assert_eq!(names, [("bad name", 1, false), ("browser_tasks", 0, true), ("nosuch", 1, false)]);
    assert!(
        tables
            .iter()
            .all(|table| table.persist && table.active && !table.constant && table.anchor.is_empty())
    );

    let in_use = pfctl::read_tables(&recorded_tables_in_use()).unwrap();
    let names: Vec<(&str, usize, bool)> =
        in_use.iter().map(|table| (table.name.as_str(), table.referring_rules, table.constant)).collect();
    assert_eq!(names, [("browser_tasks", 8, false), ("internal", 4, true)]);
    assert_eq!(pfctl::read_tables("").unwrap(), []);

    // A table of an anchor that rules of another anchor refer to.
    let other = run.stdout.replace("-pa-r--\tbrowser_tasks", "-pa-rh-\tbrowser_tasks\tsome/anchor");
    assert_eq!(pfctl::read_tables(&other).unwrap()[1].anchor, "some/anchor");
    for (from, to) in [
        ("-pa-r--", "-pa-r-"),
        ("-pa-r--", "-pa-r-x"),
        ("-pa-r--", "-ap-r--"),
        ("\tbrowser_tasks", "\t"),
        ("\tbrowser_tasks", " browser_tasks"),
        ("Addresses:   0", "Addresses:   zero"),
        ("Addresses:", "Adresses:"),
        ("Anchors: 0                  Rules: 1 ", "Anchors: 0 "),
        ("Anchors: 0                  Rules: 1 ", "Anchors: 0 Rules: -1 "),
        ("References:", "Referenzen:"),
    ] {
        let mutated = run.stdout.replace(from, to);
        assert_ne!(mutated, run.stdout, "{from}");
        assert!(pfctl::read_tables(&mutated).is_err(), "{from} -> {to}");
    }
    // A listing that is cut inside a table is refused.
    let lines: Vec<&str> = run.stdout.lines().collect();
    for count in 1..lines.len() {
        let cut = lines[..count].iter().map(|line| format!("{line}\n")).collect::<String>();
        assert_eq!(pfctl::read_tables(&cut).is_ok(), count % 11 == 0, "{count} lines");
    }
}

#[test]
fn rules_of_anchors_are_parsed() {
    let listed = |command: &str| -> Vec<Result<Vec<String>, Failure>> {
        recorded(command).iter().map(|run| pfctl::read_rules(&run.stdout, &run.stderr)).collect()
    };
    let anchor = listed("pfctl -a browser -sr");
    assert_eq!(
        anchor[0].as_ref().unwrap()[..],
        [
            "block drop in quick inet from 192.168.72.101 to 10.0.0.0/8",
            "pass in from <browser_tasks> to any flags S/SA keep state"
        ]
    );
    assert_eq!(anchor[1].as_ref().unwrap()[..], ["pass in all flags S/SA keep state"]);
    assert_eq!(anchor[2].as_ref().unwrap().len(), 0, "flushed");
    assert_eq!(listed("pfctl -a nosuchanchor -sr"), [Err(Failure::NoAnchor)], "the exit status is 0");
    assert!(listed("pfctl -sr")[0].as_ref().unwrap().contains(&"anchor \"browser\" all".to_owned()));
    // As recorded without -P, and with `set state-policy if-bound`, which pfctl appends to other options.
    let on = "pass in quick on bridge72 inet proto udp from <browser_tasks> to 192.168.72.1 port =";
    let options = "source-track global, max-src-states 506";
    let by_name = format!("{on} domain keep state ({options}, if-bound) label \"resolver\"\n");
    let rule = pfctl::read_rules(&by_name, "").unwrap().remove(0);
    let rendered = pf_conf::filter_rules(&policy()).join("\n");
    assert!(pfctl::read_rules(&rendered, "").unwrap().contains(&rule), "{rule}");
    // pfctl of other releases may print the options of a rate in another order, and adds `src.track`.
    let listed =
        rendered.replace("source-track rule, max-src-states 2024", "max-src-states 2024,  source-track rule");
    assert!(listed != rendered && rendered.contains("max-src-conn-rate 500/5, src.track 5)"), "{rendered}");
    for text in [listed.clone(), listed.replace(", src.track 5", "")] {
        let rules = pfctl::read_rules(&text, "").unwrap();
        assert_eq!(pfctl::prove_anchor(&policy(), &rules), None);
    }
    let weaker = listed.replace("500/5", "5000/5");
    assert!(pfctl::prove_anchor(&policy(), &pfctl::read_rules(&weaker, "").unwrap()).is_some());
    let bound = pfctl::read_rules("pass out all flags S/SA keep state (if-bound)\n", "").unwrap();
    assert_eq!(bound, ["pass out all flags S/SA keep state"]);
}

#[test]
fn failures_are_classified_by_their_text() {
    for (command, expected) in [
        ("pfctl -t nosuch -T show", Failure::NoTable),
        ("pfctl -t nosuch -T delete 192.168.72.101", Failure::NoTable),
        ("pfctl -a nosuchanchor -sr", Failure::NoAnchor),
        ("pfctl -t browser_tasks -T add not-an-address", Failure::NotAnAddress),
        ("pfctl -t browser_tasks -T add ''", Failure::NotAnAddress),
        ("pfctl -a browser -f /tmp/bad.conf", Failure::Syntax),
        ("pfctl -nf /tmp/bad2.conf", Failure::Syntax),
        ("sh -c: su -m nobody -c 'pfctl -t browser_tasks -T show'", Failure::Permission),
    ] {
        assert_eq!(pfctl::failure(&recorded(command)[0].stderr), Some(expected), "{command}");
    }
    assert_eq!(pfctl::failure(&recorded("pfctl -e")[1].stderr), Some(Failure::AlreadyEnabled));
    assert_eq!(pfctl::failure(&recorded("pfctl -d")[1].stderr), Some(Failure::NotEnabled));
    assert_eq!(pfctl::failure(&recorded("pfctl -s info").last().unwrap().stderr), Some(Failure::NoDevice));
    assert!(matches!(
        pfctl::failure(&recorded("pfctl -nf /nonexistent.conf")[0].stderr),
        Some(Failure::Other(line)) if line.contains("/nonexistent.conf")
    ));
    // Output of successful commands is not classified as a failure, except for a missing anchor.
    for run in runs().iter().filter(|run| run.exit == 0 && run.command.starts_with("pfctl")) {
        let expected = run.stderr.contains("DIOCGETRULES").then_some(Failure::NoAnchor);
        assert_eq!(pfctl::failure(&run.stderr), expected, "{}", run.command);
    }
}

#[test]
fn a_bridge_that_pf_skips_is_a_finding() {
    assert_eq!(pfctl::bridge(&policy()).join(" "), "-v -s Interfaces -i bridge72");
    assert_eq!(pfctl::read_skipped("bridge72\n", "bridge72"), Ok(false));
    assert_eq!(pfctl::read_skipped("all\nbridge\nbridge72 (skip)\n", "bridge72"), Ok(true));
    assert_eq!(pfctl::read_skipped("bridge7 (skip)\nbridge720 (skip)\n", "bridge72"), Ok(false));
    assert!(pfctl::read_skipped("bridge72 (sprung)\n", "bridge72").is_err());
    let skipped = Observed { skipped: true, ..good() };
    assert_eq!(pfctl::prove(&policy(), &skipped), [Finding::Skipped("bridge72".into())]);
}

/// The output of a host without findings.
fn good() -> Observed {
    let policy = policy();
    Observed {
        enabled: true,
        skipped: false,
        main_rules: vec![
            "scrub in all fragment reassemble".into(),
            "anchor \"browser\" all".into(),
            "pass all flags S/SA keep state".into(),
        ],
        main_nat: vec!["nat-anchor \"browser\" all".into()],
        anchor_rules: pf_conf::filter_rules(&policy),
        anchor_nat: pf_conf::nat_rules(&policy).iter().map(|rule| format!("{rule} round-robin")).collect(),
        denied: pf_conf::denied_table(&policy),
        tables: pfctl::read_tables(&recorded_tables_in_use()).unwrap(),
    }
}

#[test]
fn every_difference_from_the_rendered_rules_is_a_finding() {
    let policy = policy();
    assert_eq!(pfctl::prove(&policy, &good()), []);
    let finds = |change: fn(&mut Observed)| {
        let mut observed = good();
        change(&mut observed);
        let findings = pfctl::prove(&policy, &observed);
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.into_iter().next().unwrap()
    };
    assert_eq!(finds(|o| o.enabled = false), Finding::Disabled);
    assert!(
        matches!(finds(|o| o.main_rules.clear()), Finding::NotCalled(line) if line == "anchor \"browser\"")
    );
    assert!(
        matches!(finds(|o| o.main_nat.clear()), Finding::NotCalled(line) if line == "nat-anchor \"browser\"")
    );
    assert!(matches!(finds(|o| o.main_rules.insert(0, "pass in quick all".into())), Finding::Shadowed(_)));
    assert!(matches!(finds(|o| o.anchor_rules.clear()), Finding::Anchor(_)));
    assert!(matches!(finds(|o| o.anchor_rules.swap(3, 4)), Finding::Anchor(_)));
    assert!(
        matches!(finds(|o| o.anchor_rules.push("pass in all".into())), Finding::Anchor(why) if why.contains("unexpected"))
    );
    assert!(matches!(finds(|o| drop(o.anchor_rules.pop())), Finding::Anchor(why) if why.contains("missing")));
    assert!(matches!(finds(|o| o.anchor_nat.clear()), Finding::Anchor(_)));
    assert!(matches!(finds(|o| o.anchor_nat[0].insert(0, 'x')), Finding::Anchor(_)));
    assert!(matches!(finds(|o| o.denied = BTreeSet::new()), Finding::Anchor(_)));
    assert!(
        matches!(finds(|o| o.tables.clear()), Finding::Table { why, .. } if why.contains("does not exist"))
    );
    assert!(matches!(finds(|o| o.tables[0].persist = false), Finding::Table { .. }));
    // A table that `-T add` created: persistent, but no rule uses it.
    assert!(matches!(
        finds(|o| (o.tables[0].referring_rules, o.tables[0].referring_anchors) = (0, 0)),
        Finding::Table { why, .. } if why.contains("no rule")
    ));
    // Only the anchor refers to the table.
    let mut observed = good();
    (observed.tables[0].referring_rules, observed.tables[0].referring_anchors) = (0, 1);
    assert_eq!(pfctl::prove(&policy, &observed), []);
    // After `pfctl -F all` the anchor may still exist, but the main ruleset does not call it.
    let mut flushed = good();
    flushed.main_rules.clear();
    flushed.main_nat.clear();
    flushed.tables.clear();
    assert_eq!(pfctl::prove(&policy, &flushed).len(), 3);
}

proptest! {
    #[test]
    fn no_parser_panics(text in "[ -~\\n\\t]{0,200}", cut in any::<prop::sample::Index>(), at in any::<prop::sample::Index>()) {
        let recorded = at.get(&runs()).clone();
        let whole = format!("{}{}", recorded.stdout, recorded.stderr);
        let half = whole.chars().take(cut.index(whole.len() + 1)).collect::<String>();
        for output in [text.as_str(), &half, &format!("{half}{text}")] {
            let _ = pfctl::read_enabled(output);
            let _ = pfctl::read_members(output);
            let _ = pfctl::read_change(output);
            let _ = pfctl::read_killed(output);
            let _ = pfctl::read_tables(output);
            let _ = pfctl::read_rules(output, output);
            let _ = pfctl::failure(output);
        }
    }
}
