//! The configuration file: TOML, every key optional, every unknown key an error.
//!
//! ```toml
//! network = "proxy"
//! allow = ["127.0.0.1:3000"]        # a development server on this machine
//! downloads = "/home/me/downloads"  # besides its profile, the browser can
//! media = "/home/me/screenshots"    # write only to these folders of the host
//! ```

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::egress::Allowed;

/// The user's settings. `Config::default()` is the safe choice for every key.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `false` runs the browser without this sandbox (its own stays on), with a warning at every start.
    pub enabled: bool,
    /// Bubblewrap, if it is not in a usual location.
    #[serde(alias = "bwrapPath")]
    pub bwrap_path: Option<PathBuf>,
    /// Further files and folders of the host to read.
    #[serde(alias = "extraRoBind")]
    pub extra_ro_bind: Vec<PathBuf>,
    /// Further folders of the host to read and write.
    #[serde(alias = "extraBind")]
    pub extra_bind: Vec<PathBuf>,
    /// Lets the browser use the graphics card, if there is one.
    pub gpu: bool,
    /// What to do when a layer of the sandbox is not available.
    #[serde(alias = "onMissing")]
    pub on_missing: OnMissing,
    /// The browser's executable, if it is not in a usual location.
    pub browser: Option<PathBuf>,
    /// How the browser reaches the network.
    pub network: NetworkMode,
    /// Local servers that may be reached in network mode `proxy`, each as HOST:PORT.
    #[serde(with = "allowed_list")]
    pub allow: Vec<Allowed>,
    /// Folder for screenshots and PDF files.
    pub media: Option<PathBuf>,
    /// Folder for downloads.
    pub downloads: Option<PathBuf>,
    /// Maximum memory of all browser processes together.
    #[serde(alias = "memoryMib")]
    pub memory_mib: Option<u64>,
    /// Maximum number of the browser's processes and threads.
    #[serde(alias = "maxProcesses")]
    pub max_processes: Option<u32>,
    /// Maximum processor time, in percent of one processor.
    #[serde(alias = "cpuPercent")]
    pub cpu_percent: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            enabled: true,
            bwrap_path: None,
            extra_ro_bind: Vec::new(),
            extra_bind: Vec::new(),
            gpu: false,
            on_missing: OnMissing::Refuse,
            browser: None,
            network: NetworkMode::Proxy,
            allow: Vec::new(),
            media: None,
            downloads: None,
            memory_mib: None,
            max_processes: None,
            cpu_percent: None,
        }
    }
}

/// What happens when a layer of the sandbox is not available.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum OnMissing {
    /// Start no browser; the error names the layer and the fix.
    #[default]
    Refuse,
    /// Continue without it, with a warning.
    Warn,
}

/// How the browser reaches the network.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// Not at all.
    None,
    /// Through the launcher's egress proxy, which permits public addresses only.
    #[default]
    Proxy,
    /// Like any program of this machine, including its local services.
    Host,
}

impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NetworkMode::None => "none",
            NetworkMode::Proxy => "proxy",
            NetworkMode::Host => "host",
        })
    }
}

mod allowed_list {
    use super::Allowed;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Allowed>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }

    pub(super) fn serialize<S: Serializer>(list: &[Allowed], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(ToString::to_string))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: unknown key `{key}`{}", .nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default())]
    UnknownKey { path: PathBuf, key: String, nearest: Option<&'static str> },
    #[error("{path} is not a valid configuration")]
    Invalid { path: PathBuf, source: toml::de::Error },
    #[error("{path}: `{key}` must be an absolute path, but is `{value}`")]
    RelativePath { path: PathBuf, key: &'static str, value: PathBuf },
}

/// Every key of the file.
const KEYS: &[&str] = &[
    "enabled",
    "bwrap_path",
    "extra_ro_bind",
    "extra_bind",
    "gpu",
    "on_missing",
    "browser",
    "network",
    "allow",
    "media",
    "downloads",
    "memory_mib",
    "max_processes",
    "cpu_percent",
];
/// Alternative spellings.
const ALIASES: &[&str] =
    &["bwrapPath", "extraRoBind", "extraBind", "onMissing", "memoryMib", "maxProcesses", "cpuPercent"];

impl Config {
    /// Reads the file named by `BROWSER_LAUNCHER_CONFIG`, else the user's, else the system's.
    /// Root skips the user's file, because other users may be able to write to the home folder.
    pub fn load() -> Result<Config, ConfigError> {
        if let Some(named) = std::env::var_os("BROWSER_LAUNCHER_CONFIG").filter(|name| !name.is_empty()) {
            return Self::from_file(Path::new(&named));
        }
        let mut places = Vec::new();
        if !nix::unistd::geteuid().is_root() {
            let base =
                std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            let home = std::env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            places.extend(
                base.or_else(|| Some(home?.join(".config")))
                    .map(|base| base.join("browser-launcher/config.toml")),
            );
        }
        places.push(PathBuf::from("/etc/browser-launcher/config.toml"));
        for place in places {
            match Self::from_file(&place) {
                Err(ConfigError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                result => return result,
            }
        }
        Ok(Config::default())
    }

    pub fn from_file(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::from_toml(&text, path)
    }

    /// Reads the text of a file; `path` is only for messages.
    pub fn from_toml(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let invalid = |source| ConfigError::Invalid { path: path.to_owned(), source };
        let table: toml::Table = text.parse().map_err(invalid)?;
        if let Some(key) =
            table.keys().find(|key| !KEYS.contains(&key.as_str()) && !ALIASES.contains(&key.as_str()))
        {
            return Err(ConfigError::UnknownKey {
                path: path.to_owned(),
                key: key.clone(),
                nearest: nearest_key(key),
            });
        }
        // Parsed from the text, not the table, so that errors show the line.
        let config: Config = toml::from_str(text).map_err(invalid)?;
        for (key, value) in config.paths() {
            if !value.is_absolute() {
                return Err(ConfigError::RelativePath { path: path.to_owned(), key, value: value.clone() });
            }
        }
        Ok(config)
    }

    fn paths(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let single = [
            ("bwrap_path", &self.bwrap_path),
            ("browser", &self.browser),
            ("media", &self.media),
            ("downloads", &self.downloads),
        ];
        single
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.as_ref()?)))
            .chain(self.extra_ro_bind.iter().map(|value| ("extra_ro_bind", value)))
            .chain(self.extra_bind.iter().map(|value| ("extra_bind", value)))
    }
}

fn nearest_key(key: &str) -> Option<&'static str> {
    let close = |name: &&'static str| strsim::damerau_levenshtein(&key.to_ascii_lowercase(), name);
    KEYS.iter().copied().min_by_key(close).filter(|name| close(name) <= 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Config, ConfigError> {
        Config::from_toml(text, Path::new("test.toml"))
    }

    #[test]
    fn an_empty_file_gives_safe_defaults() {
        let config = read("").expect("empty");
        assert_eq!(config, Config::default());
        assert!(config.enabled && !config.gpu);
        assert_eq!(config.on_missing, OnMissing::Refuse);
        assert_eq!(config.network, NetworkMode::Proxy);
    }

    #[test]
    fn snake_case_and_camel_case_keys_are_read() {
        let snake = "enabled = true\nbwrap_path = '/usr/bin/bwrap'\nextra_ro_bind = ['/srv/a']\nextra_bind = ['/srv/b']\ngpu = true\n";
        let camel = "enabled = true\nbwrapPath = '/usr/bin/bwrap'\nextraRoBind = ['/srv/a']\nextraBind = ['/srv/b']\ngpu = true\n";
        assert_eq!(read(snake).expect("snake"), read(camel).expect("camel"));
        assert_eq!(read(camel).expect("camel").bwrap_path, Some("/usr/bin/bwrap".into()));
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest_name() {
        let error = read("extra_ro_binds = []").expect_err("typo").to_string();
        assert!(error.contains("did you mean `extra_ro_bind`"), "{error}");
        let error = read("no_sandbox = true").expect_err("nonsense").to_string();
        assert!(error.contains("unknown key `no_sandbox`") && !error.contains("did you mean"), "{error}");
    }

    #[test]
    fn the_key_list_matches_the_struct() {
        let every = Config {
            bwrap_path: Some("/b".into()),
            browser: Some("/b".into()),
            media: Some("/m".into()),
            downloads: Some("/d".into()),
            memory_mib: Some(1),
            max_processes: Some(1),
            cpu_percent: Some(1),
            ..Config::default()
        };
        let table: toml::Table = toml::to_string(&every).expect("toml").parse().expect("table");
        let mut keys: Vec<&str> = table.keys().map(String::as_str).collect();
        let mut known = KEYS.to_vec();
        keys.sort_unstable();
        known.sort_unstable();
        assert_eq!(keys, known);
        for alias in ALIASES {
            assert!(
                !matches!(read(&format!("{alias} = {{}}")), Err(ConfigError::UnknownKey { .. })),
                "{alias}"
            );
        }
    }

    #[test]
    fn on_missing_accepts_only_its_two_values() {
        assert_eq!(read("on_missing = \"warn\"").expect("warn").on_missing, OnMissing::Warn);
        assert!(read("on_missing = true").is_err());
        assert!(read("on_missing = \"ignore\"").is_err());
    }

    #[test]
    fn values_are_checked() {
        let Err(ConfigError::Invalid { source, .. }) = read("allow = ['127.0.0.1']") else {
            panic!("an address without a port was accepted")
        };
        assert!(source.to_string().contains("HOST:PORT"), "{source}");
        assert!(read("media = 'shots'").expect_err("relative").to_string().contains("absolute"));
        assert!(read("gpu = 'yes'").is_err());
        assert_eq!(read("allow = ['localhost:3000', '[::1]:80']").expect("allow").allow.len(), 2);
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "\\PC{0,200}") {
            let _ = read(&text);
        }

        #[test]
        fn a_written_configuration_reads_back(enabled: bool, gpu: bool, warn: bool, binds in proptest::collection::vec("/[a-z]{1,8}", 0..3), port in 1u16..) {
            let config = Config {
                enabled, gpu,
                on_missing: if warn { OnMissing::Warn } else { OnMissing::Refuse },
                extra_bind: binds.iter().map(PathBuf::from).collect(),
                allow: vec![format!("127.0.0.1:{port}").parse().expect("allow")],
                ..Config::default()
            };
            let text = toml::to_string(&config).expect("toml");
            prop_assert_eq!(read(&text).expect("own text"), config);
        }
    }
}
