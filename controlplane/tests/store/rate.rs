//! How fast the audit log is. The test asserts that everything was written; the figures are for people.

use crate::support::database::Database;
use crate::support::postgres::Postgres;
use controlplane::audit::{Audit, Entry};
use controlplane::config::AuditConfig;
use serde_json::json;
use std::time::{Duration, Instant};

async fn measure(database: &Database, callers: usize, calls: usize) -> String {
    let store = database.open().await;
    let audit = Audit::start(store, database.state(), &AuditConfig::default()).await.expect("starts");
    let before = audit.status().head;
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let audit = audit.clone();
        tasks.spawn(async move {
            let mut times = Vec::new();
            for call in 0..calls {
                let entry = Entry {
                    actor: format!("uid:{caller}"),
                    tenant: "a".into(),
                    session: Some(controlplane::ids::SessionId::random()),
                    verb: "navigate".into(),
                    params: json!({ "url": "https://example.com/", "number": call }),
                };
                let began = Instant::now();
                let begun = audit.begin(entry).await.expect("committed");
                times.push(began.elapsed());
                begun.end(Ok(()));
            }
            times
        });
    }
    let mut times: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    let total = began.elapsed();
    audit.stop(Duration::from_secs(60)).await;
    assert_eq!(audit.status().head - before, 2 * i64::try_from(callers * calls).expect("fits"));
    assert!(audit.verify().await.expect("verify").intact);
    times.sort();
    let rate = times.len() as f64 / total.as_secs_f64();
    format!(
        "{callers} callers: {rate:.0} calls/s, wait for the commit p50 {:?}, p99 {:?}",
        times[times.len() / 2],
        times[times.len() * 99 / 100]
    )
}

#[test]
fn sqlite() {
    crate::run(Database::sqlite(), async |database: &mut Database| {
        for callers in [1, 50] {
            println!("sqlite, {}", measure(database, callers, 200).await);
        }
    });
}

#[test]
fn postgres() {
    crate::run(Database::on(Postgres::start_durable()), async |database: &mut Database| {
        for callers in [1, 50] {
            println!("postgres, {}", measure(database, callers, 200).await);
        }
    });
}
