//! Layering: file < drop-ins < environment < flags.
//!
//! Every layer is split into single settings with their origin. Each setting is checked alone, so that a message can
//! name file, line and key. A later layer replaces the whole key.

use crate::keys::{ConfigSection, sections};
use crate::trusted_path::{self, ParentRule, UntrustedPath};
use crate::{Settings, variable_prefix};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::DirEntry;
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use toml::Value;
use toml::de::{DeTable, DeValue};

/// Where a setting came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    /// A file and the line in it (0: the file as a whole).
    File(PathBuf, usize),
    /// An environment variable.
    Variable(String),
    /// A `--set` flag.
    Flag,
    /// No layer: a default, or a value set by a program.
    Value,
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::File(path, 0) => write!(f, "{}: ", path.display()),
            SettingOrigin::File(path, line) => write!(f, "{}:{line}: ", path.display()),
            SettingOrigin::Variable(name) => write!(f, "{name}: "),
            SettingOrigin::Flag => write!(f, "--set: "),
            SettingOrigin::Value => Ok(()),
        }
    }
}

/// One problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The origin of the setting.
    pub origin: SettingOrigin,
    /// The key; empty if the problem is a whole file.
    pub key: String,
    /// What is wrong and how to fix it.
    pub what: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.key.is_empty() { "" } else { ": " };
        write!(f, "{}{}{colon}{}", self.origin, self.key, self.what)
    }
}

/// All problems of a configuration, one per line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", problems.iter().map(ConfigProblem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError {
    /// At least one.
    pub problems: Vec<ConfigProblem>,
}

/// The numbers that are out of range.
pub fn out_of_range<C: Settings>(config: &C) -> Vec<ConfigProblem> {
    let values = serde_json::to_value(config).expect("the configuration is plain data");
    let mut problems = Vec::new();
    for section in sections::<C>() {
        for key in &section.keys {
            let Some(value) = values[&section.name][&key.name].as_u64() else { continue };
            let what = match key.range {
                (Some(least), _) if value < least => format!("{value} is too small: at least {least}"),
                (_, Some(most)) if value > most => format!("{value} is too large: at most {most}"),
                _ => continue,
            };
            let key = format!("{}.{}", section.name, key.name);
            problems.push(ConfigProblem { origin: SettingOrigin::Value, key, what });
        }
    }
    problems
}

/// Load and check the configuration of all layers.
///
/// `file`: a named file must exist; without a name the default file is read if it exists. Drop-ins are `conf.d/*.toml`
/// beside the file, in the order of their names. `env`: variables of other programs are ignored. `sets`:
/// pairs of `section.key` and value.
pub fn load<C: Settings>(
    file: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
    sets: &[(String, String)],
) -> Result<C, ConfigError> {
    let mut layers = ConfigLayers::<C> {
        sections: sections::<C>(),
        merged: BTreeMap::new(),
        problems: Vec::new(),
        of: PhantomData,
    };
    layers.files(file);
    layers.variables(env);
    for (key, text) in sets {
        layers.set(SettingOrigin::Flag, key, text);
    }
    layers.finish()
}

struct ConfigLayers<C> {
    sections: Vec<ConfigSection>,
    /// The settings so far by section and key; a list section has one setting with the key "".
    merged: BTreeMap<(String, String), (Value, SettingOrigin)>,
    problems: Vec<ConfigProblem>,
    of: PhantomData<C>,
}

impl<C: Settings> ConfigLayers<C> {
    fn problem(&mut self, origin: SettingOrigin, key: &str, what: impl Into<String>) {
        self.problems.push(ConfigProblem { origin, key: key.to_owned(), what: what.into() });
    }

    fn files(&mut self, named: Option<&Path>) {
        let path = named.map_or_else(C::default_file, Path::to_owned);
        let absent = std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if named.is_some() || !absent {
            self.read(&path);
        }
        let folder = path.with_file_name("conf.d");
        match drop_ins(&folder) {
            Ok(paths) => paths.iter().for_each(|path| self.read(path)),
            Err(what) => self.problem(SettingOrigin::File(folder, 0), "", what),
        }
    }

    fn read(&mut self, path: &Path) {
        // Settings grant rights on a daemon, so nobody else may be able to change them.
        let text = match trusted_path::file(path) {
            Ok(()) => std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}")),
            Err(error) => Err(refusal(&error)),
        };
        match text {
            Ok(text) => self.file(path, &text),
            Err(what) => self.problem(SettingOrigin::File(path.to_owned(), 0), "", what),
        }
    }

    fn file(&mut self, path: &Path, text: &str) {
        let at = |offset: usize| {
            let before = &text.as_bytes()[..offset.min(text.len())];
            SettingOrigin::File(path.to_owned(), 1 + before.iter().filter(|byte| **byte == b'\n').count())
        };
        let table = match DeTable::parse(text) {
            Ok(table) => table.into_inner(),
            Err(error) => {
                let origin =
                    error.span().map_or(SettingOrigin::File(path.to_owned(), 0), |span| at(span.start));
                return self.problem(origin, "", format!("is not TOML: {}", error.message()));
            }
        };
        for (name, value) in table {
            let origin = at(name.span().start);
            let name = name.into_inner();
            let Some(section) = self.sections.iter().find(|section| section.name == name).cloned() else {
                let nearest = self.nearest_section(&name);
                self.problem(origin, &name, nearest);
                continue;
            };
            match (section.list, value.into_inner()) {
                (false, DeValue::Table(keys)) => {
                    for (key, value) in keys {
                        let value = plain(value.into_inner());
                        self.setting(at(key.span().start), &section, &key.into_inner(), value);
                    }
                }
                (false, _) => self.problem(origin, &name, format!("expected a section: [{name}]")),
                (true, DeValue::Array(items)) => {
                    let mut whole = true;
                    let mut values = Vec::new();
                    for item in items {
                        let line = at(item.span().start);
                        match item.into_inner() {
                            DeValue::Table(keys) => {
                                for (key, value) in &keys {
                                    let value = plain(value.get_ref().clone());
                                    whole &= self.item(at(key.span().start), &section, key.get_ref(), &value);
                                }
                                values.push(plain(DeValue::Table(keys)));
                            }
                            _ => self.problem(line, &name, format!("expected tables: [[{name}]]")),
                        }
                    }
                    if whole {
                        self.setting(origin, &section, "", Value::Array(values));
                    }
                }
                (true, _) => self.problem(origin, &name, format!("expected a list of tables: [[{name}]]")),
            }
        }
    }

    fn variables(&mut self, env: impl Iterator<Item = (String, String)>) {
        let mut known = BTreeMap::new();
        for section in &self.sections {
            if section.list {
                known.insert(section.variable(None), section.name.clone());
            } else {
                for key in &section.keys {
                    known.insert(section.variable(Some(key)), format!("{}.{}", section.name, key.name));
                }
            }
        }
        let others = C::OTHER_VARIABLES;
        known.extend(others.iter().map(|(name, key)| ((*name).to_owned(), (*key).to_owned())));
        let reserved = |name: &str| C::RESERVED_VARIABLES.iter().any(|(known, _)| *known == name);
        let other = |name: &str| others.iter().any(|(known, _)| *known == name);
        let prefix = variable_prefix::<C>();
        let ours = |name: &str| (name.starts_with(&prefix) && !reserved(name)) || other(name);
        let mut env: Vec<_> = env.filter(|(name, _)| ours(name)).collect();
        // Sorted, so that problems have a fixed order. Those of other programs come first: the later variable wins.
        env.sort_by_key(|(name, _)| (!other(name), name.clone()));
        for (name, text) in env {
            match known.get(&name) {
                Some(key) => self.set(SettingOrigin::Variable(name), key, &text),
                None => {
                    let reserved = C::RESERVED_VARIABLES.iter().map(|(name, _)| *name);
                    let nearest = nearest(&name, known.keys().map(String::as_str).chain(reserved));
                    let what = format!("is not a setting of {}; did you mean {nearest}?", C::PROGRAM);
                    self.problem(SettingOrigin::Variable(name), "", what);
                }
            }
        }
    }

    /// Apply a setting from a variable or flag: `section.key` and the value; text has no quotes.
    fn set(&mut self, origin: SettingOrigin, path: &str, text: &str) {
        let (name, key) = path.split_once('.').unwrap_or((path, ""));
        let Some(section) = self.sections.iter().find(|section| section.name == name).cloned() else {
            let nearest = self.nearest_section(name);
            return self.problem(origin, path, nearest);
        };
        if section.list != key.is_empty() {
            let what = if section.list {
                format!("is set as a whole: {name}=[{{…}}, …]")
            } else {
                format!("is a section: name a key of it, such as {name}.{}", section.keys[0].name)
            };
            return self.problem(origin, path, what);
        }
        let is_text = section.keys.iter().any(|known| known.name == key && known.text);
        let value = if is_text {
            Value::String(text.to_owned())
        } else {
            // Not TOML: keep the text, so that the check reports what was expected.
            DeValue::parse(text)
                .map_or_else(|_| Value::String(text.to_owned()), |value| plain(value.into_inner()))
        };
        let items = value.as_array().filter(|_| section.list).cloned().unwrap_or_default();
        let mut whole = true;
        for (key, value) in items.iter().filter_map(Value::as_table).flatten() {
            whole &= self.item(origin.clone(), &section, key, value);
        }
        if whole {
            self.setting(origin, &section, key, value);
        }
    }

    /// Check one key of one table of a list. Returns whether it is valid.
    fn item(&mut self, origin: SettingOrigin, section: &ConfigSection, key: &str, value: &Value) -> bool {
        let table = Value::Table([(key.to_owned(), value.clone())].into_iter().collect());
        self.checked(origin, section, key, Value::Array(vec![table]))
    }

    fn setting(&mut self, origin: SettingOrigin, section: &ConfigSection, key: &str, value: Value) {
        let alone = match section.list {
            true => value.clone(),
            false => Value::Table([(key.to_owned(), value.clone())].into_iter().collect()),
        };
        if self.checked(origin.clone(), section, key, alone) {
            self.merged.insert((section.name.clone(), key.to_owned()), (value, origin));
        }
    }

    /// Deserialize a configuration with this setting alone: any error belongs to the setting.
    fn checked(&mut self, origin: SettingOrigin, section: &ConfigSection, key: &str, alone: Value) -> bool {
        let path = if key.is_empty() { section.name.clone() } else { format!("{}.{key}", section.name) };
        let known = section.keys.iter().find(|known| known.name == key);
        if known.is_none() && !key.is_empty() {
            let what = self.nearest_key(section, key);
            self.problem(origin, &path, what);
            return false;
        }
        let config = Value::Table([(section.name.clone(), alone)].into_iter().collect());
        match config.try_into::<C>() {
            Ok(_) => true,
            Err(error) => {
                let what = error.message().lines().collect::<Vec<_>>().join(" ");
                // One key of a table of a list lacks the table's other keys. The list as a whole is checked afterwards.
                if !key.is_empty() && what.starts_with("missing field") {
                    return true;
                }
                // serde writes `u16` for `a whole number`.
                let what = match (known, what.split_once(", expected ")) {
                    (Some(known), Some((seen, _))) => format!("{seen}, expected {}", known.expects),
                    _ => what,
                };
                self.problem(origin, &path, what);
                false
            }
        }
    }

    fn nearest_section(&self, name: &str) -> String {
        // A key without its section is a more likely mistake than a misspelt section.
        for section in &self.sections {
            if let Some(key) = section.keys.iter().find(|key| key.name == name) {
                return format!("unknown section; the key {} belongs to section {}", key.name, section.name);
            }
        }
        format!(
            "unknown section; did you mean {}?",
            nearest(name, self.sections.iter().map(|s| s.name.as_str()))
        )
    }

    fn nearest_key(&self, section: &ConfigSection, key: &str) -> String {
        for other in &self.sections {
            if other.keys.iter().any(|known| known.name == key) {
                return format!("unknown key; did you mean {}.{key}?", other.name);
            }
        }
        let nearest = nearest(key, section.keys.iter().map(|known| known.name.as_str()));
        format!("unknown key; did you mean {}.{nearest}?", section.name)
    }

    fn finish(mut self) -> Result<C, ConfigError> {
        if !self.problems.is_empty() {
            return Err(ConfigError { problems: self.problems });
        }
        let mut whole = toml::Table::new();
        for ((section, key), (value, _)) in &self.merged {
            if key.is_empty() {
                whole.insert(section.clone(), value.clone());
            } else {
                let table = whole.entry(section).or_insert_with(|| Value::Table(toml::Table::new()));
                table.as_table_mut().expect("sections are tables").insert(key.clone(), value.clone());
            }
        }
        let config: C = Value::Table(whole).try_into().map_err(|error: toml::de::Error| ConfigError {
            problems: vec![ConfigProblem {
                origin: SettingOrigin::Value,
                key: String::new(),
                what: error.to_string(),
            }],
        })?;
        config.check().map_err(|mut error| {
            for problem in &mut error.problems {
                let (section, key) = problem.key.split_once('.').unwrap_or((&problem.key, ""));
                if let Some((_, origin)) = self.merged.remove(&(section.to_owned(), key.to_owned())) {
                    problem.origin = origin;
                }
            }
            error
        })?;
        Ok(config)
    }
}

/// The files of a drop-in folder, in the order of their names. A missing folder has none.
fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, String> {
    if std::fs::symlink_metadata(folder).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(Vec::new());
    }
    trusted_path::folder(folder, ParentRule::Strict).map_err(|error| refusal(&error))?;
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut paths: Vec<PathBuf> =
        entries.map_err(|error| format!("cannot be read: {error}"))?.iter().map(DirEntry::path).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    Ok(paths)
}

/// Why a file is not used. The problem's origin already names the file itself, but not the folders on the way to it.
fn refusal(error: &UntrustedPath) -> String {
    match error {
        UntrustedPath::Unreadable { error, .. } => format!("cannot be read: {error}"),
        error => format!("is refused: {error}"),
    }
}

/// A parsed value without its position in the file. A number that TOML cannot hold becomes text, which no key accepts as a
/// number, so that the check of the key reports it.
fn plain(value: DeValue<'_>) -> Value {
    use serde::Deserialize;
    let shown = match &value {
        DeValue::Integer(number) => number.as_str().to_owned(),
        _ => "a value with a number that is too large".to_owned(),
    };
    Value::deserialize(toml::de::ValueDeserializer::from(toml::Spanned::new(0..0, value)))
        .unwrap_or(Value::String(shown))
}

fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    known
        .max_by(|one, two| strsim::jaro_winkler(word, one).total_cmp(&strsim::jaro_winkler(word, two)))
        .expect("there are known names")
}
