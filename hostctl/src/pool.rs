//! `hostctl pool`.

use crate::output::{CommandOutput, Failure, Output};
use crate::remote::Remote;
use hostd::api::{PoolStatus, StatusParams};
use serde_json::json;
use std::fmt::Write;
use terminal::text::{Table, Tone, ago, clean, seconds};

pub(crate) async fn run(remote: &Remote, output: &Output) -> Result<CommandOutput, Failure> {
    let status = remote.client().await?.status(StatusParams::default()).await?;
    Ok(match &status.warm_pool {
        Some(pool) => CommandOutput::new(pool, describe(pool, output)),
        None => {
            let text = "the warm pool is off: pool.size is 0\n".to_owned();
            CommandOutput { data: json!({ "size": 0, "members": [] }), text }
        }
    })
}

fn describe(pool: &PoolStatus, output: &Output) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "{key:<10}{}", clean(&value));
    };
    let flavors: Vec<String> =
        pool.flavors.iter().map(|flavor| format!("{} {}", pool.size, flavor.word())).collect();
    let working = if pool.refilling { "; one is being made" } else { "" };
    line("wanted", format!("{}{working}", flavors.join(", ")));
    line("taken", format!("{} (hits)", pool.hits));
    line("misses", format!("{} empty, {} unfit", pool.misses_empty, pool.misses_unfit));
    line("drained", pool.drained.to_string());
    if let Some(took) = pool.last_refill_seconds {
        line("refill", format!("{} for the last one", seconds(took)));
    }
    if let Some(problem) = &pool.problem {
        line("problem", problem.clone());
    }
    if !pool.members.is_empty() {
        let mut table = Table::header(&["NAME", "FLAVOR", "AGE", "LEFT"]);
        for member in &pool.members {
            let plain = |text: String| (Tone::Plain, text);
            table.row(vec![
                plain(member.name.to_string()),
                plain(member.flavor.word().to_owned()),
                plain(ago(member.age_seconds)),
                plain(ago(member.seconds_left)),
            ]);
        }
        text.push('\n');
        text.push_str(&table.render(output.paint()));
    }
    text
}
