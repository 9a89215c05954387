//! Describes a plan as text.

use crate::plan::{Argument, SandboxPlan};
use crate::policy::{FileRule, Network};
use sandbox_inside::layer::{Layer, Requirement};
use std::fmt::{self, Write};
use std::path::Path;

impl SandboxPlan {
    /// Lists what the program will see and may do, and the exact bubblewrap arguments.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("writing to a string does not fail");
        text
    }

    fn write(&self, out: &mut impl Write) -> fmt::Result {
        let policy = &self.policy;
        writeln!(out, "Program: {}", self.program.path.display())?;
        for argument in &self.program.arguments {
            writeln!(out, "  argument {argument:?}")?;
        }
        self.write_identity(out)?;
        self.write_files(out)?;
        writeln!(out, "\nEnvironment: exactly these variables")?;
        for (name, value) in &policy.environment {
            writeln!(out, "  {name}={value}")?;
        }
        writeln!(out, "\nNetwork: {}", network(&policy.network))?;
        self.write_limits(out)?;
        self.write_syscalls(out)?;
        self.write_layers(out)?;
        writeln!(out, "\nBubblewrap arguments (read from a sealed memory file):")?;
        for line in self.argument_lines() {
            writeln!(out, "  {line}")?;
        }
        Ok(())
    }

    fn write_identity(&self, out: &mut impl Write) -> fmt::Result {
        let identity = &self.policy.identity;
        write!(
            out,
            "Identity: uid {} gid {} on a host called {:?}",
            identity.uid, identity.gid, self.policy.name
        )?;
        match identity.host_uid {
            Some(uid) => writeln!(out, "; outside it is uid {uid}, never root"),
            None => writeln!(out, "; outside it is the launcher's own user"),
        }
    }

    fn write_files(&self, out: &mut impl Write) -> fmt::Result {
        writeln!(out, "\nFiles: only the following exist")?;
        writeln!(out, "  /proc  of its own processes")?;
        writeln!(out, "  /dev  null, zero, full, random, urandom; no terminals")?;
        for device in &self.policy.devices {
            if !self.absent.contains(&device.path) {
                writeln!(out, "  {}  device, to use", device.path.display())?;
            }
        }
        for rule in &self.policy.files {
            let absent = rule.source().is_some_and(|source| self.absent.iter().any(|path| path == source));
            let words = if absent { "not on this host, skipped".to_owned() } else { file(rule) };
            writeln!(out, "  {}  {words}", rule.path().display())?;
        }
        if self.policy.layers.wanted(Layer::ReadOnlyRoot) {
            writeln!(out, "  every other folder is read-only")?;
        }
        Ok(())
    }

    fn write_limits(&self, out: &mut impl Write) -> fmt::Result {
        let limits = &self.policy.limits;
        let unlimited = |text: Option<String>| text.unwrap_or_else(|| "not limited".to_owned());
        writeln!(out, "\nLimits:")?;
        writeln!(out, "  memory  {}", unlimited(limits.memory_bytes.map(bytes)))?;
        writeln!(out, "  processes and threads  {}", unlimited(limits.processes.map(|n| n.to_string())))?;
        writeln!(out, "  processor  {}", unlimited(limits.cpu_percent.map(|n| format!("{n} % of one"))))?;
        writeln!(out, "  open files of a process  {}", limits.open_files)?;
        for (kind, most) in &self.policy.syscalls.nested_namespaces {
            writeln!(out, "  nested {kind} namespaces  {most}")?;
        }
        writeln!(out, "  core dumps  none")
    }

    fn write_syscalls(&self, out: &mut impl Write) -> fmt::Result {
        writeln!(out, "\nSystem calls refused (all others are allowed):")?;
        for rule in self.policy.syscalls.rules() {
            write!(out, "  {}", rule.calls.join(", "))?;
            for condition in &rule.when {
                write!(out, ", when {condition}")?;
            }
            writeln!(out, "\n    because: {}", rule.reason)?;
        }
        writeln!(out, "  any call of a foreign architecture or of the x32 table: the process is killed")
    }

    fn write_layers(&self, out: &mut impl Write) -> fmt::Result {
        writeln!(out, "\nLayers: all are required (Landlock ABI {}), except", self.policy.landlock.abi)?;
        let mut none = true;
        for (layer, requirement) in self.policy.layers.exceptions() {
            none = false;
            let word = match requirement {
                Requirement::Optional => "optional",
                Requirement::Off => "SWITCHED OFF",
                Requirement::Required => continue,
            };
            writeln!(out, "  {layer}  {word}")?;
        }
        if none {
            writeln!(out, "  none")?;
        }
        Ok(())
    }

    /// One bubblewrap option per line.
    fn argument_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for argument in &self.arguments {
            let word = match argument {
                Argument::Text(text) => text.clone(),
                Argument::Data(content) => format!("<descriptor with {} bytes>", content.len()),
            };
            match lines.last_mut() {
                Some(line) if !word.starts_with("--") => {
                    line.push(' ');
                    line.push_str(&word);
                }
                _ => lines.push(word),
            }
        }
        lines
    }
}

fn file(rule: &FileRule) -> String {
    let from = |path: &Path| match rule.source() {
        Some(source) if source != path => format!(" (it is {} outside)", source.display()),
        _ => String::new(),
    };
    match rule {
        FileRule::ReadOnly { path, execute, .. } => {
            let more = if *execute { " and execute" } else { "" };
            format!("to read{more}{}", from(path))
        }
        FileRule::Writable { path, .. } => {
            format!("to read and write, never execute{}", from(path))
        }
        FileRule::Temporary { size_bytes, .. } => {
            let files = rule.inodes().map_or(0, |(_, most)| most);
            format!("empty folder in memory, up to {} and {files} files", bytes(*size_bytes))
        }
        FileRule::Synthetic { text, .. } => format!("generated file of {} bytes", text.len()),
        FileRule::Link { target, .. } => format!("link to {}", target.display()),
        FileRule::Socket { path, .. } => format!("socket, to connect to{}", from(path)),
        FileRule::Hidden { .. } => "hidden".to_owned(),
    }
}

fn network(network: &Network) -> String {
    match network {
        Network::None => "none; its own empty loopback only".to_owned(),
        Network::Proxy { port } => {
            format!("no route; 127.0.0.1:{port} inside leads to the launcher's egress proxy, which decides")
        }
        Network::Filtered => "the namespace that the caller prepared and filters".to_owned(),
        Network::Host => "THE HOST'S, including its loopback and all interfaces".to_owned(),
    }
}

fn bytes(count: u64) -> String {
    match count {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n => format!("{n} bytes"),
    }
}
