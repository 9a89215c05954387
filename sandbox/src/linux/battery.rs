//! The escape battery: what could a compromised program do under this policy?
//!
//! Canaries are set up outside. The battery runs *in place of the program* under exactly the given
//! policy, plus one writable folder of its own, and tries to reach them. It dials only the listeners
//! opened here on the addresses that the caller names, whatever layer is off.

mod canaries;

use crate::{Error, FileRule, HostFacts, Launch, Layer, LayerState, Policy, Program, Stdio};
use canaries::Outside;
pub use sandbox_inside::findings::{Finding, Outcome};
use serde::Serialize;
use std::fmt;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use super::{doing, embedded};

/// The battery's own writable folder inside.
const FOLDER: &str = "/battery";

/// Options of the battery.
#[derive(Clone, Debug)]
pub struct Options {
    /// The addresses of the listeners to open and dial. Addresses that do not exist in the network
    /// namespace of the calling thread are skipped.
    pub addresses: Vec<IpAddr>,
    /// The bubblewrap to use instead of the system's.
    pub bubblewrap: Option<PathBuf>,
    /// The cgroup folder for limits.
    pub cgroup_parent: Option<PathBuf>,
    /// How long the whole battery may take.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            addresses: vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            bubblewrap: None,
            cgroup_parent: None,
            timeout: Duration::from_secs(60),
        }
    }
}

/// The results of the battery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The state of every layer.
    pub layers: Vec<(Layer, LayerState)>,
    /// Every probe.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The probes that got through.
    pub fn open(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.is_open())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let (word, detail) = match &finding.outcome {
                Outcome::Stopped(detail) => ("stopped  ", detail),
                Outcome::Open(detail) => ("OPEN     ", detail),
                Outcome::NotTried(detail) => ("not tried", detail),
            };
            let layers: Vec<&str> = finding.layers.iter().map(|layer| layer.name()).collect();
            writeln!(f, "{word}  {}: {} ({detail}) [{}]", finding.name, finding.attempt, layers.join(", "))?;
        }
        let open = self.open().count();
        writeln!(f, "{} probes, {open} got through", self.findings.len())
    }
}

/// Runs the battery under `policy`.
pub fn run(policy: &Policy, options: &Options) -> Result<Report, Error> {
    let mut policy = policy.clone();
    let outside = Outside::set_up(&policy, options, FOLDER.into())?;
    policy.files.push(FileRule::writable(outside.writable_folder(), FOLDER));
    let enforced = crate::linux::limits::would_be_enforced(&policy, options.cgroup_parent.as_deref());
    let canaries = serde_json::to_string(&outside.describe(&policy, enforced))
        .map_err(|e| doing("describe the canaries")(e.into()))?;
    let program =
        Program { path: "/battery-program".into(), arguments: vec!["battery".to_owned(), canaries] };
    let plan = policy.plan(&HostFacts::gather(&policy)?, &program)?;
    let (mut reader, writer) = std::io::pipe().map_err(doing("make a pipe"))?;
    let mut launch =
        Launch::new(plan).executable(embedded::probe()?).stdout(Stdio::Descriptor(writer.into()));
    if let Some(path) = &options.bubblewrap {
        launch = launch.bubblewrap(path);
    }
    if let Some(folder) = &options.cgroup_parent {
        launch = launch.cgroup_parent(folder);
    }
    let mut sandbox = launch.spawn()?;
    let layers = sandbox.layers().to_vec();
    // Read while it runs, because a full pipe would block it.
    let text = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text)
    });
    let status = sandbox.wait_timeout(options.timeout).map_err(doing("wait for the battery"))?;
    drop(sandbox);
    let text = text
        .join()
        .unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
        .map_err(doing("read the findings"))?;
    match status {
        Some(status) if status.success() => {}
        Some(status) => {
            return Err(doing("run the battery")(std::io::Error::other(format!("{status} after {text}"))));
        }
        None => return Err(Error::Timeout(options.timeout, text)),
    }
    let findings = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Finding>, _>>()
        .map_err(|e| doing("understand the findings")(e.into()))?;
    Ok(Report { layers, findings })
}
