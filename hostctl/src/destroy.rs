//! `hostctl destroy` and `hostctl force-unmount`. Both address one clone by name and clone id.

use crate::args::{CloneArgs, DestroyArgs};
use crate::create::stages;
use crate::output::{CommandOutput, Failure, Output};
use crate::progress::Steps;
use crate::remote::Remote;
use hostd::api::{CloneId, CloneState, DestroyParams, ErrorCode, ForceUnmountParams, ListParams};
use hostd::client::Client;
use terminal::text::clean;

pub(crate) async fn destroy(
    remote: &Remote,
    output: &Output,
    args: DestroyArgs,
) -> Result<CommandOutput, Failure> {
    let client = remote.client().await?;
    let clone_id = clone_id(&client, output, &args.clone).await?;
    let params = DestroyParams { wait: !args.no_wait, ..DestroyParams::new(args.clone.name, clone_id) };
    let mut steps = Steps::new(output);
    let result = client.destroy_with_progress(params, |progress| steps.show(&progress)).await?;
    let mut text = match (result.already_gone, result.complete) {
        (true, _) => format!("{} was already gone\n", result.name),
        (false, true) => format!("{} is gone\n", result.name),
        (false, false) => format!("{} is stopped and has no network; the teardown continues\n", result.name),
    };
    if !steps.seen() {
        text.push_str(&stages(output, &result.stages));
    }
    Ok(CommandOutput::new(&result, text))
}

pub(crate) async fn force_unmount(
    remote: &Remote,
    output: &Output,
    args: CloneArgs,
) -> Result<CommandOutput, Failure> {
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
    let shown = CommandOutput::new(&result, text);
    if result.left.is_empty() {
        return Ok(shown);
    }
    let message = format!("{} mounts of {} are left", result.left.len(), result.name);
    let hint = "find the processes that use them (fuser -m MOUNT); the reaper also tries again";
    Err(Failure::of(ErrorCode::Incomplete, message).hint(hint).with_output(shown))
}

async fn clone_id(client: &Client, output: &Output, args: &CloneArgs) -> Result<CloneId, Failure> {
    match &args.clone_id {
        Some(id) => Ok(id.clone()),
        None => look_up(client, output, args).await,
    }
}

/// The clone id that the name has now. It is printed, because the caller may have meant an earlier clone.
async fn look_up(client: &Client, output: &Output, args: &CloneArgs) -> Result<CloneId, Failure> {
    let params = ListParams { name: Some(args.name.clone()), tenant: None };
    let list = client.list(params).await?;
    let name = &args.name;
    let Some(clone) = list.clones.into_iter().find(|clone| clone.name == *name) else {
        let failure = Failure::of(ErrorCode::NotFound, format!("there is no clone {name}"));
        return Err(failure.hint("hostctl ls lists the clones"));
    };
    match (clone.clone_id, clone.state) {
        (Some(id), state) => {
            output.note(&format!("{name} is clone {id} now ({})", state.word()));
            Ok(id)
        }
        (None, CloneState::Foreign) => {
            let message = format!("{name} was not made by hostd, so hostd never changes it");
            Err(Failure::of(ErrorCode::Denied, message).hint("whoever made it must remove it"))
        }
        (None, _) => {
            let message = format!("the clone id of {name} is not visible to you");
            let hint = "only its owner and operators see it: pass the clone id that create returned";
            Err(Failure::of(ErrorCode::Denied, message).hint(hint))
        }
    }
}
