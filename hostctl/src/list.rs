//! `hostctl ls`.

use crate::args::LsArgs;
use crate::create::address;
use crate::output::{CommandOutput, Failure, Output};
use crate::remote::Remote;
use hostd::api::{CloneInfo, CloneState, ListParams};
use terminal::text::{Table, Tone, ago, user};

pub(crate) async fn run(remote: &Remote, output: &Output, args: LsArgs) -> Result<CommandOutput, Failure> {
    let params = ListParams { name: args.name, tenant: args.tenant };
    let mut list = remote.client().await?.list(params).await?;
    if !args.all {
        list.clones.retain(|clone| clone.state != CloneState::Quarantined);
    }
    let mut table =
        Table::header(&["NAME", "STATE", "AGE", "LEFT", "ADDRESS", "OWNER", "TENANT", "CLONE ID", "PROBLEM"]);
    for clone in &list.clones {
        table.row(cells(clone, args.ids));
    }
    let text = if list.clones.is_empty() { "no clones\n".into() } else { table.render(output.paint()) };
    Ok(CommandOutput::new(&list, text))
}

fn cells(clone: &CloneInfo, ids: bool) -> Vec<(Tone, String)> {
    let plain = |text: Option<String>| (Tone::Plain, text.unwrap_or_else(|| "-".into()));
    let optional = |text: Option<String>| (Tone::Plain, text.unwrap_or_default());
    let left = match clone.deadline_seconds_left {
        Some(0) => (Tone::Bad, "over".to_owned()),
        left => plain(left.map(ago)),
    };
    vec![
        (Tone::Plain, clone.name.to_string()),
        (tone(clone.state), clone.state.word().to_owned()),
        plain(clone.age_seconds.map(ago)),
        left,
        (Tone::Plain, address(clone)),
        plain(clone.owner_uid.map(user)),
        optional(clone.tenant.as_ref().map(ToString::to_string)),
        optional(clone.clone_id.as_ref().filter(|_| ids).map(ToString::to_string)),
        optional(clone.problem.clone()),
    ]
}

fn tone(state: CloneState) -> Tone {
    match state {
        CloneState::Ready => Tone::Good,
        CloneState::Creating | CloneState::Destroying => Tone::Attention,
        CloneState::Broken | CloneState::Incomplete | CloneState::Orphan | CloneState::Foreign => Tone::Bad,
        CloneState::Quarantined | CloneState::Pooled => Tone::Faint,
    }
}
