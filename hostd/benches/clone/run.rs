//! The rounds: one clone after the other, then many at once.

use crate::daemon::{Home, create};
use crate::floor::Floor;
use crate::lab::{Lab, in_private_machine};
use crate::life::{block_on, home, params, until_empty};
use crate::load::{Busy, own_seconds};
use crate::table::{Goal, Table};
use hostd::api::StageTiming;
use hostd::client::Client;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What the stages of a create are called in the table, with the floor beside each.
const STAGES: [(&str, &str); 6] = [
    ("storage", "storage"),
    ("limits", "limits"),
    ("network", "network"),
    ("egress", "egress"),
    ("jail", "jail"),
    ("service", "browser ready"),
];

pub(crate) fn main() {
    // The private machine starts this program once more with arguments of its own; the environment goes along.
    let told: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os("HOSTD_BENCH_ROUNDS").is_none() {
        let rounds = told.iter().find_map(|word| word.parse::<usize>().ok()).unwrap_or(15);
        let strict = told.iter().any(|word| word == "--strict");
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .env("HOSTD_BENCH_ROUNDS", rounds.to_string())
            .env("HOSTD_BENCH_STRICT", if strict { "yes" } else { "" })
            .status()
            .unwrap();
        std::process::exit(status.code().unwrap_or(1));
    }
    in_private_machine("clone", measure);
}

fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The program beside hostd's own, of the same build.
fn browserd() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_hostd")).with_file_name("browserd");
    assert!(path.is_file(), "{} is missing: scripts/bench builds it", path.display());
    path
}

fn measure(lab: &Lab) {
    let (rounds, many) = (number("HOSTD_BENCH_ROUNDS", 15), number("HOSTD_BENCH_CLONES", 20));
    let program = format!("linux.browserd={}", browserd().display());
    let home = home(lab, &[&program, "log.filter=warn", "lifecycle.step_timeout_seconds=120"]);
    let mut table = Table::default();
    block_on(async {
        let daemon = home.start().await;
        let client = daemon.client().await.with_timeout(Duration::from_secs(300));
        let mut floor = Floor::new(&lab.templates);
        let mut serial = Vec::new();
        // The first of each warms caches and is not counted.
        let mut idle = Vec::new();
        for round in 0..=rounds {
            let busy = Busy::now();
            let (clone, took) = timed(client.create(create(format!("round-{round}")))).await;
            let clone = clone.unwrap_or_else(|error| panic!("{error:?}\n{}", home.log())).clone;
            let waiting = busy.idle_share();
            let (gone, ended) = timed(client.destroy(params(&clone))).await;
            let gone = gone.unwrap_or_else(|error| panic!("{error:?}\n{}", home.log()));
            let bare = tokio::task::block_in_place(|| floor.round());
            if round == 0 {
                continue;
            }
            for (stage, shown) in STAGES {
                table.note(shown, seconds(&clone.stages, stage), bare.of(shown));
            }
            let total = seconds(&clone.stages, "total");
            table.note("records and audit", took - total, bare.of("records and audit"));
            let browser = seconds(&clone.stages, "service");
            table.note("all but the browser", took - browser, bare.create() - bare.of("browser ready"));
            table.note("create answers", took, bare.create());
            table.note("destroy answers", ended, bare.destroy());
            let undone = |stages: &[&str]| stages.iter().map(|stage| seconds(&gone.stages, stage)).sum();
            table.note(
                "  its browser",
                undone(&["service", "terminate", "kill", "jail"]),
                bare.of("undo browser"),
            );
            table.note("  its egress", undone(&["egress"]), bare.of("undo egress"));
            table.note("  its network", undone(&["network"]), bare.of("undo network"));
            table.note("  its storage", undone(&["storage", "mounts"]), bare.of("undo storage"));
            serial.push(took);
            idle.push(waiting);
        }
        until_empty(&daemon).await;
        serial.sort_by(f64::total_cmp);
        parallel(&client, &home, many, serial[serial.len() / 2], &mut table).await;
        idle.sort_by(f64::total_cmp);
        table.figure("processors idle, one create at a time", idle[idle.len() / 2] * 100.0, "%", None);
        until_empty(&daemon).await;
        daemon.stop().await;
    });
    table.goal("all but the browser", Goal::Milliseconds(25.0));
    table.goal("all but the browser", Goal::Floors(3.0));
    table.goal("destroy answers", Goal::Milliseconds(150.0));
    let missed = table.print(rounds);
    table.save(rounds);
    if std::env::var("HOSTD_BENCH_STRICT").is_ok_and(|value| !value.is_empty()) && missed > 0 {
        std::process::exit(1);
    }
}

/// Many creates at once: do they use the processors, or wait for each other?
async fn parallel(client: &Client, home: &Home, many: usize, one: f64, table: &mut Table) {
    let (busy, own, began) = (Busy::now(), own_seconds(), Instant::now());
    let work: Vec<_> = (0..many)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { client.create(create(format!("many-{number}"))).await })
        })
        .collect();
    let mut clones = Vec::new();
    for one in work {
        let made = one.await.unwrap().unwrap_or_else(|error| panic!("{error:?}\n{}", home.log()));
        clones.push(made.clone);
    }
    let wall = began.elapsed().as_secs_f64();
    let (idle, own) = (busy.idle_share(), own_seconds() - own);
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    table.figure(&format!("{many} creates at once, wall time"), wall * 1000.0, "ms", None);
    table.figure("  speed-up over one after the other", one * many as f64 / wall, "×", None);
    table.figure("  processors used by the clones", own / (wall * cores) * 100.0, "%", None);
    // Others may use the rest; waiting for a lock would leave processors idle.
    table.figure("  processors idle meanwhile", idle * 100.0, "%", Some(15.0));
    let began = Instant::now();
    let all = clones.iter().map(|clone| client.destroy(params(clone)));
    for gone in futures_util::future::join_all(all).await {
        gone.unwrap_or_else(|error| panic!("{error:?}\n{}", home.log()));
    }
    let each = began.elapsed().as_secs_f64() * 1000.0 / many as f64;
    table.figure(&format!("{many} destroys at once, each"), each, "ms", None);
}

async fn timed<T>(work: impl Future<Output = T>) -> (T, f64) {
    let began = Instant::now();
    let result = work.await;
    (result, began.elapsed().as_secs_f64())
}

fn seconds(stages: &[StageTiming], name: &str) -> f64 {
    stages.iter().filter(|stage| stage.stage == name).map(|stage| stage.seconds).sum()
}
