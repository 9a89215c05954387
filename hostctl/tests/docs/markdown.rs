//! Reference pages: command line, configuration, errors.

use hostctl::EXIT_CODES;
use serde_json::Value;
use std::fmt::Write;

fn head(title: &str) -> String {
    format!(
        "<!-- Generated from the code; do not edit. HOSTD_UPDATE_DOCS=1 cargo test -p hostctl -->\n\n\
         # {title}\n"
    )
}

/// The help of `hostctl` and `hostd`.
pub(super) fn command_line(hostd_help: &str) -> String {
    let mut text = head("Command line");
    text.push_str("\n## Exit codes of `hostctl`\n\n| code | meaning |\n|---|---|\n");
    for (exit, meaning) in EXIT_CODES {
        let _ = writeln!(text, "| {} | {meaning} |", exit as u8);
    }
    text.push_str(
        "\n## JSON\n\nWith `--json` every command prints one line on standard output and nothing on standard \
         error:\n\n```json\n{\"success\":true,\"data\":{}}\n\
         {\"success\":false,\"error\":{\"code\":\"host_full\",\"message\":\"…\",\"hint\":\"…\",\"retryable\":true}}\n\
         ```\n\n`data` is the method's result as in `openrpc.json`. `error.code` is one of the codes in `errors.md`, \
         or `usage`, `unreachable`, `disconnected`, `protocol` from `hostctl` itself; `retry_after_ms`, `step`, \
         `name` and `cleanup` are present where they apply. A command that failed but has a result (`doctor` with \
         errors, an incomplete `reap`) prints `data` as well.\n",
    );
    // A fixed width: the page must not depend on the terminal the test runs in.
    let mut hostctl = hostctl::command().term_width(100);
    hostctl.build();
    section(&mut text, "hostctl", &hostctl.clone().render_long_help().to_string());
    for mut command in hostctl.get_subcommands().cloned() {
        let title = format!("hostctl {}", command.get_name());
        // The global options are described once, above.
        for global in ["json", "socket", "timeout"] {
            command = command.mut_arg(global, |arg| arg.hide(true));
        }
        section(&mut text, &title, &command.render_help().to_string());
    }
    section(&mut text, "hostd", hostd_help);
    text
}

fn section(text: &mut String, title: &str, help: &str) {
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = writeln!(text, "\n## {title}\n\n```text\n{}\n```", help.join("\n").trim_end());
}

/// Every key of the configuration.
pub(super) fn configuration() -> String {
    let files = "`/etc/hostd/hostd.toml` (FreeBSD: `/usr/local/etc/hostd/hostd.toml`)";
    head("Configuration") + &settings::reference::<hostd::config::Config>(files)
}

/// Every error code.
pub(super) fn errors(document: &Value) -> String {
    let mut text = head("Errors");
    text.push_str(
        "\nErrors are JSON-RPC errors: `error.code` is the number, `error.message` one sentence, \
         `error.data` has the details for programs:\n\n| field | meaning |\n|---|---|\n",
    );
    let data = &document["components"]["schemas"]["ErrorData"]["properties"];
    for (name, field) in data.as_object().unwrap() {
        let _ = writeln!(text, "| `{name}` | {} |", field["description"].as_str().unwrap());
    }
    text.push_str(
        "\nA retryable error may disappear without any change. The exit code is that of `hostctl`.\n\n\
         | code | number | retryable | exit code | meaning |\n|---|---|---|---|---|\n",
    );
    for code in hostd::api::ErrorCode::ALL {
        let error = &document["components"]["errors"][code.word()];
        let retryable = if code.retryable() { "yes" } else { "no" };
        let _ = writeln!(
            text,
            "| `{code}` | {} | {retryable} | {} | {} |",
            code.number(),
            code.exit_code(),
            error["message"].as_str().unwrap()
        );
    }
    text
}
