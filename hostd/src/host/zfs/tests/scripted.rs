//! The driver with a scripted `zfs`: each run returns the next reply of the test.

use super::*;
use crate::api::Severity;
use crate::host::command::Tools;
use crate::host::zfs::Zfs;
use crate::host::{HostErrorKind, HostResult};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One reply: exit code, standard output, standard error.
type ZfsReply<'a> = (i32, &'a str, &'a str);
const DONE: ZfsReply<'_> = (0, "", "");

const SCRIPT: &str = r#"#!/bin/sh
here=${0%/*}
next=$(cat "$here/next")
echo $((next + 1)) > "$here/next"
echo "$*" >> "$here/heard"
[ -e "$here/$next.code" ] || { echo "not expected: $*" >&2; exit 99; }
cat "$here/$next.out"
cat "$here/$next.err" >&2
exit "$(cat "$here/$next.code")"
"#;

struct ScriptedZfs {
    folder: tempfile::TempDir,
    zfs: Zfs,
}

impl ScriptedZfs {
    fn new(answers: &[ZfsReply<'_>]) -> ScriptedZfs {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: String| folder.path().join(name);
        for (index, (code, out, err)) in answers.iter().enumerate() {
            std::fs::write(at(format!("{index}.code")), code.to_string()).unwrap();
            std::fs::write(at(format!("{index}.out")), out).unwrap();
            std::fs::write(at(format!("{index}.err")), err).unwrap();
        }
        std::fs::write(at("next".into()), "0").unwrap();
        write_program(&at("zfs".into()));
        let tools = Tools::new(&[folder.path().into(), "/bin".into(), "/usr/bin".into()]);
        let clones = PathBuf::from("/usr/local/bastille/jails");
        ScriptedZfs { zfs: Zfs::new(&tools, &slots(), clones, "browser", &[]), folder }
    }

    /// The commands that were run. All replies must have been used.
    fn commands(&self) -> Vec<String> {
        let at = |name: &str| self.folder.path().join(name);
        let next = std::fs::read_to_string(at("next")).unwrap();
        assert!(!at(&format!("{}.code", next.trim())).exists(), "fewer commands than answers: {next}");
        let heard = std::fs::read_to_string(at("heard")).unwrap_or_default();
        assert_eq!(heard.lines().count(), next.trim().parse::<usize>().unwrap());
        heard.lines().map(str::to_owned).collect()
    }

    fn verbs(&self) -> Vec<String> {
        self.commands().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }
}

/// Written by another process: a fork of this one could inherit the descriptor and keep the file from being executed
/// (ETXTBSY).
fn write_program(path: &Path) {
    let mut child = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(SCRIPT.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

fn kind<T: std::fmt::Debug>(result: HostResult<T>) -> HostErrorKind {
    result.unwrap_err().kind
}

fn seen(name: &str, origin: &str, mounted: &str, quota: u64, mark: (&str, &str)) -> String {
    let place = name.replace("zroot/bastille/jails", "/usr/local/bastille/jails");
    format!(
        "{name}\torigin\t{origin}\t-\n{name}\tmounted\t{mounted}\t-\n{name}\tmountpoint\t{place}\tinherited from zroot\n\
         {name}\tcreation\t1794792587\t-\n{name}\tquota\t{quota}\tlocal\n{name}\torg.hostd:clone_id\t{}\t{}\n",
        mark.0, mark.1
    )
}

const TOP: &str = "zroot/bastille/jails/browsertask007";
const ROOT: &str = "zroot/bastille/jails/browsertask007/root";
const TOP_ORIGIN: &str = "zroot/bastille/jails/browser@default";
const ROOT_ORIGIN: &str = "zroot/bastille/jails/browser/root@default";
const MARKED: (&str, &str) = (ID, "local");
const EXISTS: ZfsReply<'_> = (1, "", "cannot create 'zroot/x': dataset already exists\n");
const MISSING: ZfsReply<'_> = (1, "", "cannot open 'zroot/x': dataset does not exist\n");
const BUSY: ZfsReply<'_> = (1, "", "cannot unmount '/zroot/x': pool or dataset is busy\n");

#[tokio::test]
async fn a_clone_is_two_commands() {
    let script = ScriptedZfs::new(&[DONE, DONE]);
    script.zfs.ensure(&spec()).await.unwrap();
    let [outer, root] = layout().clone(&spec(), &[]);
    assert_eq!(script.commands(), [outer.join(" "), root.join(" ")]);
}

#[tokio::test]
async fn ensuring_again_changes_nothing() {
    let both = seen(TOP, TOP_ORIGIN, "yes", 10 << 30, MARKED) + &seen(ROOT, ROOT_ORIGIN, "yes", 0, MARKED);
    let script = ScriptedZfs::new(&[EXISTS, (0, &both, ""), EXISTS]);
    script.zfs.ensure(&spec()).await.unwrap();
    assert_eq!(script.verbs(), ["clone", "get", "clone"]);
}

#[tokio::test]
async fn a_half_made_clone_is_completed() {
    // Only the outer dataset.
    let outer = seen(TOP, TOP_ORIGIN, "yes", 10 << 30, MARKED);
    let script = ScriptedZfs::new(&[EXISTS, (0, &outer, ""), DONE]);
    script.zfs.ensure(&spec()).await.unwrap();
    assert_eq!(script.verbs(), ["clone", "get", "clone"]);

    // A crash between making a dataset and marking it, and nothing is mounted.
    let both = seen(TOP, TOP_ORIGIN, "no", 0, ("-", "-")) + &seen(ROOT, ROOT_ORIGIN, "no", 0, ("-", "-"));
    let script = ScriptedZfs::new(&[EXISTS, (0, &both, ""), DONE, DONE, EXISTS, DONE, DONE]);
    script.zfs.ensure(&spec()).await.unwrap();
    assert_eq!(script.verbs(), ["clone", "get", "set", "mount", "clone", "set", "mount"]);
    assert!(script.commands()[2].contains("quota=10737418240"), "{:?}", script.commands());
}

#[tokio::test]
async fn a_foreign_dataset_is_not_changed() {
    let cases = [
        seen(TOP, TOP_ORIGIN, "yes", 0, (OTHER, "local")),
        seen(TOP, "-", "yes", 0, ("-", "-")),
        seen(TOP, "zroot/bastille/jails/web@default", "yes", 0, ("-", "-")),
        seen(TOP, "zroot/bastille/jails/browser@old", "yes", 0, MARKED),
    ];
    for case in cases {
        let script = ScriptedZfs::new(&[EXISTS, (0, &case, "")]);
        assert_eq!(kind(script.zfs.ensure(&spec()).await), HostErrorKind::Foreign, "{case}");
        assert_eq!(script.verbs(), ["clone", "get"]);
    }
}

#[tokio::test]
async fn a_failed_create_reports_its_reason() {
    for (answer, expected) in [
        (MISSING, HostErrorKind::Template),
        ((1, "", "cannot create 'zroot/x': parent does not exist\n"), HostErrorKind::NotReady),
        ((1, "", "cannot create 'zroot/x': out of space\n"), HostErrorKind::NoSpace),
        ((1, "", "cannot open 'zroot': pool I/O is currently suspended\n"), HostErrorKind::NotReady),
        ((1, "", "cannot create 'zroot/x': permission denied\n"), HostErrorKind::NotReady),
        (
            (1, "", "filesystem successfully created, but it may only be mounted by root\n"),
            HostErrorKind::Failed,
        ),
        (
            (134, "", "internal error: cannot create 'zroot/x': Argument list too long\n"),
            HostErrorKind::Failed,
        ),
    ] {
        let script = ScriptedZfs::new(&[answer]);
        let error = script.zfs.ensure(&spec()).await.unwrap_err();
        assert_eq!(error.kind, expected, "{error:?}");
        assert!(!error.hint.is_empty());
    }
}

#[tokio::test]
async fn a_destroy_is_two_commands_and_absent_is_success() {
    let script = ScriptedZfs::new(&[DONE, DONE]);
    script.zfs.destroy(&names()).await.unwrap();
    assert_eq!(script.commands(), [format!("destroy {ROOT}"), format!("destroy {TOP}")]);
    ScriptedZfs::new(&[MISSING, MISSING]).zfs.destroy(&names()).await.unwrap();
}

#[tokio::test]
async fn what_was_moved_aside_is_destroyed_and_its_parent_with_the_last_of_it() {
    let parent = "zroot/bastille/jails/browsertask-aside";
    let others = format!(
        "cannot destroy '{parent}': filesystem has children\nuse '-r' to destroy the following datasets:\n{parent}/x\n"
    );
    for last in [DONE, MISSING, (1, "", others.as_str())] {
        let script = ScriptedZfs::new(&[DONE, DONE, last]);
        script.zfs.destroy_aside(&id(ID)).await.unwrap();
        assert_eq!(
            script.commands(),
            [
                format!("destroy {parent}/{ID}/root"),
                format!("destroy {parent}/{ID}"),
                format!("destroy {parent}")
            ]
        );
    }
    assert_eq!(
        kind(ScriptedZfs::new(&[DONE, DONE, BUSY]).zfs.destroy_aside(&id(ID)).await),
        HostErrorKind::Busy
    );
}

#[tokio::test]
async fn a_busy_destroy_is_one_try() {
    let script = ScriptedZfs::new(&[BUSY]);
    assert_eq!(kind(script.zfs.destroy(&names()).await), HostErrorKind::Busy);
    assert_eq!(script.commands().len(), 1);
}

#[tokio::test]
async fn only_snapshots_of_a_clone_are_destroyed_with_it() {
    let children = |names: &str| {
        format!(
            "cannot destroy '{ROOT}': filesystem has children\nuse '-r' to destroy the following datasets:\n{names}"
        )
    };
    let snapshots = children(&format!("{ROOT}@auto-1\n{ROOT}@auto-2\n"));
    let script = ScriptedZfs::new(&[(1, "", &snapshots), DONE, DONE, DONE]);
    script.zfs.destroy(&names()).await.unwrap();
    assert_eq!(script.commands()[1], format!("destroy {ROOT}@auto-1,auto-2"));
    for others in [
        format!("{ROOT}@a\n{ROOT}/mine\n"),
        format!("{ROOT}/mine@a\n"),
        format!("{ROOT}x@a\n"),
        String::new(),
    ] {
        let text = children(&others);
        let script = ScriptedZfs::new(&[(1, "", &text)]);
        assert_eq!(kind(script.zfs.destroy(&names()).await), HostErrorKind::Failed, "{others}");
    }
}

#[tokio::test]
async fn moving_aside_creates_the_parent_the_first_time() {
    let script = ScriptedZfs::new(&[DONE]);
    script.zfs.move_aside(&names(), &id(ID)).await.unwrap();
    assert_eq!(script.verbs(), ["rename"]);
    let no_parent = (1, "", "cannot rename 'zroot/x': parent does not exist\n");
    let script = ScriptedZfs::new(&[no_parent, DONE, DONE]);
    script.zfs.move_aside(&names(), &id(ID)).await.unwrap();
    assert_eq!(script.verbs(), ["rename", "create", "rename"]);
    // What is gone need not be moved.
    let gone = [MISSING, EXISTS, MISSING, EXISTS, MISSING, EXISTS, MISSING];
    ScriptedZfs::new(&gone).zfs.move_aside(&names(), &id(ID)).await.unwrap();
    // Another removal may destroy the empty parent between the two commands.
    let script = ScriptedZfs::new(&[no_parent, DONE, no_parent, DONE, DONE]);
    script.zfs.move_aside(&names(), &id(ID)).await.unwrap();
    assert_eq!(script.verbs(), ["rename", "create", "rename", "create", "rename"]);
    assert_eq!(kind(ScriptedZfs::new(&[BUSY]).zfs.move_aside(&names(), &id(ID)).await), HostErrorKind::Busy);
}

#[tokio::test]
async fn a_forced_unmount_of_the_outer_dataset_includes_the_inner_one() {
    let not_mounted = (1, "", "cannot unmount 'zroot/x': not currently mounted\n");
    let script = ScriptedZfs::new(&[DONE]);
    script.zfs.force_unmount(&names()).await.unwrap();
    assert_eq!(script.commands(), [format!("unmount -f {TOP}")]);
    // Unless the outer one is not mounted any more.
    let script = ScriptedZfs::new(&[not_mounted, DONE]);
    script.zfs.force_unmount(&names()).await.unwrap();
    assert_eq!(script.commands(), [format!("unmount -f {TOP}"), format!("unmount -f {ROOT}")]);
    for gone in [[not_mounted, not_mounted], [MISSING, DONE]] {
        ScriptedZfs::new(&gone).zfs.force_unmount(&names()).await.unwrap();
    }
    assert_eq!(kind(ScriptedZfs::new(&[BUSY]).zfs.force_unmount(&names()).await), HostErrorKind::Busy);
}

#[tokio::test]
async fn an_inspection_distinguishes_absent_from_broken() {
    let script = ScriptedZfs::new(&[MISSING]);
    // One below it went away meanwhile: that is no answer.
    assert_eq!(kind(script.zfs.look_at(&names()).await), HostErrorKind::Failed);
    let absent = format!("cannot open '{TOP}': dataset does not exist\n");
    let script = ScriptedZfs::new(&[(1, "", &absent)]);
    assert!(script.zfs.look_at(&names()).await.unwrap().storage(&layout(), &names()).is_none());
    let absent = "cannot open 'zroot/bastille/jails': dataset does not exist\n";
    assert_eq!(kind(ScriptedZfs::new(&[(1, "", absent)]).zfs.look_all().await), HostErrorKind::NotReady);
    // Success with empty output, and with truncated output.
    assert_eq!(kind(ScriptedZfs::new(&[DONE]).zfs.look_at(&names()).await), HostErrorKind::Failed);
    let half = (0, "zroot/bastille/jails/browsertask007\torigin\t-\t-\n", "");
    assert_eq!(kind(ScriptedZfs::new(&[half]).zfs.look_at(&names()).await), HostErrorKind::Failed);
}

fn template(transactions: [u64; 2], going: &str, browser: &str) -> String {
    let [top, root] = layout().snapshots(&snapshot("default"));
    let one = |name: &str, transaction: u64| {
        format!(
            "{name}\tcreatetxg\t{transaction}\t-\n{name}\tdefer_destroy\t{going}\t-\n\
             {name}\torg.hostd:browser\t{browser}\tlocal\n{name}\torg.hostd:version\tChromium 1\tlocal\n"
        )
    };
    one(&top, transactions[0]) + &one(&root, transactions[1])
}

#[tokio::test]
async fn a_template_is_checked() {
    let good = template([5, 5], "off", "/usr/bin/chromium");
    let seen = ScriptedZfs::new(&[(0, &good, "")]).zfs.check_template(&snapshot("default")).await.unwrap();
    assert_eq!(seen.browser.as_deref(), Some(Path::new("/usr/bin/chromium")));
    let separate = template([5, 6], "off", "-");
    let going = template([5, 5], "on", "-");
    let half = good.lines().take(4).map(|line| format!("{line}\n")).collect::<String>();
    for text in [&separate, &going, &half] {
        let error =
            ScriptedZfs::new(&[(0, text, "")]).zfs.check_template(&snapshot("default")).await.unwrap_err();
        assert_eq!(error.kind, HostErrorKind::Template, "{error:?}");
    }
    assert_eq!(
        kind(ScriptedZfs::new(&[MISSING]).zfs.check_template(&snapshot("default")).await),
        HostErrorKind::Template
    );
    let all = ScriptedZfs::new(&[(0, &good, "")]).zfs.templates().await.unwrap();
    assert_eq!(all.len(), 1);
    assert!(ScriptedZfs::new(&[MISSING]).zfs.templates().await.unwrap().is_empty());
}

#[tokio::test]
async fn the_doctor_reports_problems_of_the_parent() {
    let parent = |mounted: &str, place: &str, free: u64, mark: &str| {
        let name = "zroot/bastille/jails";
        format!(
            "{name}\tmounted\t{mounted}\t-\n{name}\tmountpoint\t{place}\tlocal\n{name}\tavailable\t{free}\t-\n\
             {name}\torg.hostd:clone_id\t{mark}\tlocal\n"
        )
    };
    let place = "/usr/local/bastille/jails";
    let cases = [
        (parent("yes", place, 1 << 40, "-"), Severity::Ok, "MiB are free"),
        (parent("no", place, 1 << 40, "-"), Severity::Error, "not mounted"),
        (parent("yes", "/jails", 1 << 40, "-"), Severity::Error, "/jails"),
        (parent("yes", place, 1 << 20, "-"), Severity::Error, "1 MiB are free"),
        (parent("yes", place, 1 << 40, ID), Severity::Warning, "mark"),
    ];
    for (text, severity, words) in cases {
        let findings = ScriptedZfs::new(&[(0, &text, "")]).zfs.findings().await;
        let [finding] = findings.as_slice() else { panic!("{findings:?}") };
        assert_eq!(finding.severity, severity, "{finding:?}");
        assert!(finding.message.contains(words), "{finding:?}");
        assert_eq!(finding.fix.is_empty(), severity == Severity::Ok);
    }
    let findings = ScriptedZfs::new(&[MISSING]).zfs.findings().await;
    assert!(findings[0].severity == Severity::Error && findings[0].fix.contains("pool.parent_dataset"));
}
