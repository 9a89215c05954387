//! `hostctl destroy` and `hostctl force-unmount`: both name one clone by its identity.

use super::args::{CloneArgs, DestroyArgs};
use super::create::stages;
use super::output::{Answer, Failure, Output};
use super::progress::Steps;
use super::remote::Remote;
use super::text::clean;
use crate::api::{CloneId, CloneState, DestroyParams, ErrorCode, ForceUnmountParams, ListParams};
use crate::client::Client;

pub(super) async fn destroy(remote: &Remote, output: &Output, args: DestroyArgs) -> Result<Answer, Failure> {
    let client = remote.client().await?;
    let clone_id = clone_id(&client, output, &args.clone).await?;
    let params = DestroyParams { wait: !args.no_wait, ..DestroyParams::new(args.clone.name, clone_id) };
    let mut steps = Steps::new(output);
    let result = client.destroy_with_progress(params, |progress| steps.show(&progress)).await?;
    let mut text = match (result.already_gone, result.complete) {
        (true, _) => format!("{} was already gone\n", result.name),
        (false, true) => format!("{} is gone\n", result.name),
        (false, false) => format!("{} is stopped and cut off; its teardown continues\n", result.name),
    };
    if !steps.seen() {
        text.push_str(&stages(output, &result.stages));
    }
    Ok(Answer::new(&result, text))
}

pub(super) async fn force_unmount(
    remote: &Remote,
    output: &Output,
    args: CloneArgs,
) -> Result<Answer, Failure> {
    let client = remote.client().await?;
    let clone_id = clone_id(&client, output, &args).await?;
    let params = ForceUnmountParams::new(args.name, clone_id);
    let mut steps = Steps::new(output);
    let result = client.force_unmount_with_progress(params, |progress| steps.show(&progress)).await?;
    let mut text = String::new();
    for mount in &result.unmounted {
        text.push_str(&format!("unmounted  {}\n", clean(mount)));
    }
    for mount in &result.left {
        text.push_str(&format!("left       {}\n", clean(mount)));
    }
    if result.unmounted.is_empty() && result.left.is_empty() {
        text.push_str(&format!("{} has no mounts\n", result.name));
    }
    let answer = Answer::new(&result, text);
    if result.left.is_empty() {
        return Ok(answer);
    }
    let message = format!("{} mounts of {} are still there", result.left.len(), result.name);
    let hint = "find out who holds them (fuser -m MOUNT), or wait for the reaper, which tries again";
    Err(Failure::of(ErrorCode::Incomplete, message).hint(hint).with(answer))
}

async fn clone_id(client: &Client, output: &Output, args: &CloneArgs) -> Result<CloneId, Failure> {
    match &args.clone_id {
        Some(id) => Ok(id.clone()),
        None => look_up(client, output, args).await,
    }
}

/// The identity that the name has now. Said aloud, because somebody else may have meant an earlier clone.
async fn look_up(client: &Client, output: &Output, args: &CloneArgs) -> Result<CloneId, Failure> {
    let params = ListParams { name: Some(args.name.clone()), tenant: None };
    let list = client.list(params).await?;
    let name = &args.name;
    let Some(clone) = list.clones.into_iter().find(|clone| clone.name == *name) else {
        let failure = Failure::of(ErrorCode::NotFound, format!("there is no clone {name}"));
        return Err(failure.hint("see hostctl ls for the clones there are"));
    };
    match (clone.clone_id, clone.state) {
        (Some(id), state) => {
            output.note(&format!("{name} is clone {id} now ({})", state.word()));
            Ok(id)
        }
        (None, CloneState::Foreign) => {
            let message = format!("{name} is not of hostd's making and is never touched");
            Err(Failure::of(ErrorCode::Denied, message).hint("whoever made it has to remove it"))
        }
        (None, _) => {
            let message = format!("the list does not tell you the identity of {name}");
            let hint = "only its owner and operators may see it: give the clone id that create answered";
            Err(Failure::of(ErrorCode::Denied, message).hint(hint))
        }
    }
}
