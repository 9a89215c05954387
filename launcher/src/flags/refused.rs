//! The refused switches and features, each with its reason.

/// A switch or feature that a caller may not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub name: &'static str,
    /// Well-known client libraries send it by default (see `Strictness::DropClientDefaults`).
    pub sent_by_clients: bool,
    pub reason: &'static str,
}

const fn never(name: &'static str, reason: &'static str) -> Refused {
    Refused { name, sent_by_clients: false, reason }
}

const fn client_default(name: &'static str, reason: &'static str) -> Refused {
    Refused { name, sent_by_clients: true, reason }
}

const INNER: &str = "it turns off a part of Chromium's own sandbox, which must stay on inside this one";
const SITES: &str = "it weakens the separation of web sites (site isolation)";
const PREFIX: &str = "it makes the browser start another program instead of its own processes";
const CDP: &str =
    "it opens the debugging channel to others; use --remote-debugging-pipe or --remote-debugging-port";
const EGRESS: &str = "only the launcher's `network` setting controls network access";
const INTERNAL: &str = "it is internal to Chromium's own child processes";
const FILES: &str = "it lets pages read the files that the browser can read, its profile included";

pub const REFUSED_SWITCHES: &[Refused] = &[
    client_default(
        "no-sandbox",
        "it turns off Chromium's own sandbox; this launcher never needs that, not even as root",
    ),
    client_default(
        "disable-setuid-sandbox",
        "the setuid helper is not used here, and the switch is only sent together with --no-sandbox",
    ),
    client_default("disable-site-isolation-trials", SITES),
    never("disable-namespace-sandbox", INNER),
    never("disable-seccomp-filter-sandbox", INNER),
    never("disable-seccomp-sandbox", INNER),
    never("disable-landlock-sandbox", INNER),
    never("disable-gpu-sandbox", INNER),
    never("gpu-sandbox-failures-fatal", INNER),
    never("no-zygote", INNER),
    never("no-zygote-sandbox", INNER),
    never("no-unsandboxed-zygote", INTERNAL),
    never("allow-sandbox-debugging", INNER),
    never("single-process", "it runs web pages in the browser process itself, outside every inner sandbox"),
    never("in-process-gpu", "it runs the GPU code in the browser process itself"),
    never("process-per-tab", SITES),
    never("disable-site-isolation-for-policy", SITES),
    never("disable-site-isolation", SITES),
    never(
        "disable-web-security",
        "it switches off the same-origin policy: every page could read every other site",
    ),
    never("allow-file-access-from-files", FILES),
    never("allow-file-access", FILES),
    never("renderer-cmd-prefix", PREFIX),
    never("utility-cmd-prefix", PREFIX),
    never("zygote-cmd-prefix", PREFIX),
    never("gpu-launcher", PREFIX),
    never("plugin-launcher", PREFIX),
    never("ppapi-plugin-launcher", PREFIX),
    never("browser-subprocess-path", PREFIX),
    never("type", INTERNAL),
    never("service-sandbox-type", INTERNAL),
    never("change-stack-guard-on-fork", INTERNAL),
    never("remote-allow-origins", CDP),
    never("remote-debugging-address", CDP),
    never("remote-debugging-targets", CDP),
    never("remote-debugging-io-pipes", "the debugging pipe is always on the descriptors 3 and 4"),
    never("remote-debugging-socket-name", CDP),
    never("custom-devtools-frontend", "it loads the debugging front end from elsewhere"),
    never("proxy-server", EGRESS),
    never("proxy-pac-url", EGRESS),
    never("proxy-auto-detect", EGRESS),
    never("proxy-bypass-list", EGRESS),
    never("no-proxy-server", EGRESS),
];

/// Members of `--disable-features` that weaken isolation.
///
/// `IsolateSandboxedIframes`, which Puppeteer disables by default, is allowed: it separates frames of one site, not
/// sites.
pub const REFUSED_FEATURES: &[Refused] = &[
    client_default("IsolateOrigins", SITES),
    client_default("site-per-process", SITES),
    client_default("SitePerProcess", SITES),
    never("StrictOriginIsolation", SITES),
    never("SiteIsolationForPasswordSites", SITES),
    never("SiteIsolationForOAuthSites", SITES),
    never("SiteIsolationForCrossOriginOpenerPolicy", SITES),
    never("NetworkServiceSandbox", INNER),
    never("BlockInsecurePrivateNetworkRequests", "it lets public pages call private addresses"),
    never("LocalNetworkAccessChecks", "it lets public pages call private addresses"),
];
