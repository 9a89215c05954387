//! `hostctl completions` and `hostctl man`, generated from `args.rs`.

use crate::args::command;
use crate::output::{CommandOutput, Failure};
use serde_json::json;
use std::path::Path;
use terminal::Exit;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<CommandOutput, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "hostctl", &mut script);
    let script = String::from_utf8(script).expect("completions are text");
    Ok(CommandOutput { data: json!({ "completions": script }), text: script })
}

pub(crate) fn man(dir: Option<&Path>) -> Result<CommandOutput, Failure> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command()).render(&mut page).expect("memory can be written");
        let page = String::from_utf8(page).expect("manual pages are text");
        return Ok(CommandOutput { data: json!({ "man": page }), text: page });
    };
    let failed = |error: std::io::Error| {
        let message = format!("cannot write manual pages into {}: {error}", dir.display());
        Failure::local(Exit::Failure, "internal", message).hint("the folder must exist and be writable")
    };
    clap_mangen::generate_to(command(), dir).map_err(failed)?;
    let pages = pages("hostctl", &command());
    let text = pages.iter().map(|page| format!("{}\n", dir.join(page).display())).collect();
    Ok(CommandOutput { data: json!({ "dir": dir, "pages": pages }), text })
}

/// The page of a command and those of its subcommands.
fn pages(name: &str, command: &clap::Command) -> Vec<String> {
    let below =
        command.get_subcommands().flat_map(|inner| pages(&format!("{name}-{}", inner.get_name()), inner));
    std::iter::once(format!("{name}.1")).chain(below).collect()
}
