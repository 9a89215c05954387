//! The reference page of a configuration, in Markdown.

use crate::{ConfigKey, Settings, sections, variable_prefix};
use std::fmt::Write;

/// Every key, for the documentation: the page without its title. `files` says where the default file is.
pub fn reference<C: Settings>(files: &str) -> String {
    let program = C::PROGRAM;
    let (key, value) = C::EXAMPLE;
    let variable = format!("{}{}", variable_prefix::<C>(), key.replace('.', "_").to_ascii_uppercase());
    let mut text = format!(
        "\nLater layers win, key by key:\n\n\
         1. the defaults,\n\
         2. {files}, or the file named with `--config`,\n\
         3. `conf.d/*.toml` beside it, in the order of their names,\n\
         4. variables, such as `{variable}={value}`,\n\
         5. flags of `{program}`, such as `--set {key}={value}`.\n\n\
         Unknown keys and variables are errors that name the nearest known one. In variables and flags text needs no \
         quotes; everything else is written as in TOML. `{program} --check-config` reports every problem. \
         `{program}.toml` in this folder is the commented default file.\n"
    );
    for section in sections::<C>() {
        let brackets = if section.list { ("[[", "]]") } else { ("[", "]") };
        let _ = writeln!(text, "\n## `{}{}{}`\n\n{}\n", brackets.0, section.name, brackets.1, section.doc);
        if section.list {
            let _ = writeln!(
                text,
                "Set as a whole by `{}`, a TOML list of tables.\n\n| key | value | meaning |\n|---|---|---|",
                section.variable(None)
            );
            for key in &section.keys {
                let _ = writeln!(text, "| `{}` | {} | {} |", key.name, key.expects, key.doc);
            }
        } else {
            text.push_str("| key | default | value | meaning | variable |\n|---|---|---|---|---|\n");
            for key in &section.keys {
                let (default, variable) = (default(key), section.variable(Some(key)));
                let _ = writeln!(
                    text,
                    "| `{}` | {default} | {} | {} | `{variable}` |",
                    key.name, key.expects, key.doc
                );
            }
        }
    }
    text.push_str("\n## Variables that are not settings\n\n| variable | read by |\n|---|---|\n");
    for (name, meaning) in C::RESERVED_VARIABLES {
        let _ = writeln!(text, "| `{name}` | {meaning} |");
    }
    text
}

fn default(key: &ConfigKey) -> String {
    match &key.default_freebsd {
        None => format!("`{}`", key.default),
        Some(other) => format!("`{}` (FreeBSD: `{other}`)", key.default),
    }
}
