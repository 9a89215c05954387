use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

/// A staging area with one folder of a client, and a folder whose files must stay as they are.
struct Stage {
    _base: tempfile::TempDir,
    area: PathBuf,
    wanted: PathBuf,
    victim: PathBuf,
    downloads: Downloads,
}

impl Stage {
    fn new() -> Stage {
        let base = tempfile::tempdir().expect("folder");
        let path = |name: &str| {
            let path = base.path().join(name);
            fs::create_dir(&path).expect("mkdir");
            path
        };
        let (area, wanted, victim) = (path("area"), path("wanted"), path("victim"));
        fs::write(victim.join("secret"), "secret").expect("write");
        let profile = path("profile");
        let mut downloads = Downloads::new(&area, vec!["/shared".into()], Some(profile), None).expect("area");
        assert_eq!(downloads.stage(&wanted).expect("staged"), Path::new(STAGING).join("0"));
        Stage { _base: base, area, wanted, victim, downloads }
    }

    fn staged(&self, name: &str) -> PathBuf {
        self.area.join("0").join(name)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("list").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

#[test]
fn finished_files_are_moved_and_unfinished_ones_stay() {
    let mut stage = Stage::new();
    fs::write(stage.staged("report.txt"), "content").expect("write");
    fs::write(stage.staged("empty"), "").expect("write");
    fs::write(stage.staged("half.crdownload"), "half").expect("write");
    assert_eq!(stage.downloads.move_finished(), [] as [&str; 0]);
    assert_eq!(fs::read_to_string(stage.wanted.join("report.txt")).expect("moved"), "content");
    assert_eq!(Stage::names(&stage.wanted), ["empty", "report.txt"]);
    assert_eq!(Stage::names(&stage.area.join("0")), ["half.crdownload"]);
}

#[test]
fn only_plain_files_with_one_link_are_copied() {
    let mut stage = Stage::new();
    symlink(stage.victim.join("secret"), stage.staged("link")).expect("link");
    symlink(&stage.victim, stage.staged("folder-link")).expect("link");
    fs::hard_link(stage.victim.join("secret"), stage.staged("hard")).expect("hard link");
    fs::create_dir(stage.staged("folder")).expect("mkdir");
    nix::unistd::mkfifo(&stage.staged("fifo"), Mode::S_IRWXU).expect("fifo");
    let _socket = std::os::unix::net::UnixListener::bind(stage.staged("socket")).expect("socket");
    fs::write(stage.staged(".bashrc"), "x").expect("write");
    fs::write(stage.staged("\u{202e}txt.exe"), "x").expect("write");
    fs::File::create(stage.staged("huge")).expect("file").set_len(MAX_BYTES + 1).expect("sparse");
    let problems = stage.downloads.move_finished();
    assert!(problems.len() == 1 && problems[0].ends_with("(and 8 more)"), "{problems:?}");
    assert_eq!(Stage::names(&stage.wanted), [] as [&str; 0]);
    assert_eq!(fs::read_to_string(stage.victim.join("secret")).expect("there"), "secret");
}

#[test]
fn an_existing_file_of_the_client_is_not_replaced_and_a_planted_link_is_not_followed() {
    let mut stage = Stage::new();
    fs::write(stage.wanted.join("report.tar.gz"), "mine").expect("write");
    symlink(stage.victim.join("new"), stage.wanted.join("other")).expect("link");
    for name in ["report.tar.gz", "other", "third"] {
        fs::write(stage.staged(name), "downloaded").expect("write");
    }
    assert_eq!(stage.downloads.move_finished(), [] as [&str; 0]);
    assert_eq!(fs::read_to_string(stage.wanted.join("report.tar.gz")).expect("there"), "mine");
    let names = ["other", "other (1)", "report.tar (1).gz", "report.tar.gz", "third"];
    assert_eq!(Stage::names(&stage.wanted), names);
    assert_eq!(Stage::names(&stage.victim), ["secret"]);
    let told = |name: &str| stage.downloads.host_path(&Path::new(STAGING).join("0").join(name));
    assert_eq!(told("report.tar.gz"), Some(stage.wanted.join("report.tar (1).gz")));
    assert_eq!(told("third"), Some(stage.wanted.join("third")));
}

#[test]
fn a_renamed_file_wakes_the_watcher() {
    let stage = Stage::new();
    fs::write(stage.staged("a.crdownload"), "x").expect("write");
    fs::rename(stage.staged("a.crdownload"), stage.staged("a")).expect("rename");
    let events = stage.downloads.watch().read_events().expect("an event");
    assert_eq!(events[0].name.as_deref(), Some(std::ffi::OsStr::new("a")));
}

#[test]
fn a_sparse_file_stays_sparse() {
    use std::os::unix::fs::MetadataExt;
    let mut stage = Stage::new();
    let mut file = fs::File::create(stage.staged("sparse")).expect("file");
    file.set_len(1 << 30).expect("size");
    file.seek(SeekFrom::Start(1 << 29)).expect("seek");
    file.write_all(b"middle").expect("write");
    assert_eq!(stage.downloads.move_finished(), [] as [&str; 0]);
    let mut moved = fs::File::open(stage.wanted.join("sparse")).expect("moved");
    let meta = moved.metadata().expect("meta");
    assert_eq!(meta.len(), 1 << 30);
    assert!(meta.blocks() * 512 < 16 << 20, "{} blocks", meta.blocks());
    moved.seek(SeekFrom::Start(1 << 29)).expect("seek");
    let mut middle = [0; 6];
    moved.read_exact(&mut middle).expect("read");
    assert_eq!(&middle, b"middle");
}

#[test]
fn folders_that_the_browser_can_replace_are_refused() {
    let mut stage = Stage::new();
    let profile = stage.downloads.profile.clone().expect("set");
    for wanted in [profile.join("Downloads"), "relative".into(), stage.wanted.join("../victim")] {
        assert!(stage.downloads.stage(&wanted).is_err(), "{}", wanted.display());
    }
    assert!(stage.downloads.sees(Path::new("/shared/x")));
    assert!(!stage.downloads.sees(&stage.wanted));
    let new = stage.wanted.join("new/folder");
    assert_eq!(stage.downloads.stage(&new).expect("made"), Path::new(STAGING).join("1"));
    assert_eq!(stage.downloads.stage(&new).expect("known"), Path::new(STAGING).join("1"));
    assert!(new.is_dir());
}

#[test]
fn only_a_name_in_a_staging_folder_becomes_a_path_of_the_client() {
    let stage = Stage::new();
    let path = |text: &str| stage.downloads.host_path(Path::new(&format!("{STAGING}/{text}")));
    assert_eq!(path("0/guid"), Some(stage.wanted.join("guid")));
    for wrong in ["0", "0/../x", "0/a/b", "1/guid", "x/guid", "../0/guid"] {
        assert_eq!(path(wrong), None, "{wrong}");
    }
    assert_eq!(stage.downloads.host_path(Path::new("/etc/passwd")), None);
}

/// A hostile browser swaps staging folders and files for links as fast as it can.
#[test]
fn a_hostile_browser_that_swaps_folders_and_files_reaches_nothing() {
    let mut stage = Stage::new();
    let ended = AtomicBool::new(false);
    let (area, victim) = (stage.area.clone(), stage.victim.clone());
    // Waits for swaps instead of time: on a busy machine the other thread may not run for a while.
    let swaps = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for number in 0..20 {
                    let (folder, away) = (area.join(number.to_string()), area.join("away"));
                    // The launcher removes and creates at the same time, so any of these calls may fail.
                    let _ = fs::rename(&folder, &away);
                    let _ = symlink(&victim, &folder);
                    let _ = fs::remove_file(&folder);
                    let _ = fs::create_dir(&folder);
                    let file = folder.join("file");
                    let _ = fs::write(&file, "own");
                    let _ = fs::remove_file(&file);
                    let _ = symlink(victim.join("secret"), &file);
                    let _ = symlink(victim.join("secret"), folder.join("secret"));
                    let _ = fs::remove_dir_all(&away);
                }
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        for number in 0..20 {
            let before = swaps.load(Ordering::Relaxed);
            let wanted = stage.wanted.join(number.to_string());
            let mut rounds = 0;
            while rounds < 20 || swaps.load(Ordering::Relaxed) < before + 3 {
                // An error is a refusal. What counts is what the victim and the client have afterwards.
                let _ = stage.downloads.stage(&wanted);
                stage.downloads.move_finished();
                rounds += 1;
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(Stage::names(&stage.victim), ["secret"]);
    assert_eq!(fs::read_to_string(stage.victim.join("secret")).expect("there"), "secret");
    for number in 0..20 {
        let folder = stage.wanted.join(number.to_string());
        for name in Stage::names(&folder) {
            let text = fs::read_to_string(folder.join(name)).expect("read");
            assert!(!text.contains("secret"), "a file of the victim was copied");
        }
    }
}
