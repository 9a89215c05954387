//! The refused switches, each with its reason.

/// A switch, or a word in the name of a feature, that a caller may not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub name: &'static str,
    /// Well-known client libraries send it by default (see `Strictness::DropClientDefaults`).
    pub sent_by_clients: bool,
    pub reason: &'static str,
}

pub(super) const fn never(name: &'static str, reason: &'static str) -> Refused {
    Refused { name, sent_by_clients: false, reason }
}

pub(super) const fn client_default(name: &'static str, reason: &'static str) -> Refused {
    Refused { name, sent_by_clients: true, reason }
}

pub(super) const INNER: &str =
    "it turns off a part of Chromium's own sandbox, which must stay on inside this one";
pub(super) const SITES: &str = "it weakens the separation of web sites (site isolation)";
const PREFIX: &str = "it makes the browser start another program instead of its own processes";
const CDP: &str =
    "it opens the debugging channel to others; use --remote-debugging-pipe or --remote-debugging-port";
const EGRESS: &str = "only the launcher's `network` setting controls network access";
const INTERNAL: &str = "it is internal to Chromium's own child processes";
const UNFINISHED: &str =
    "it turns on features of Chromium that are unfinished, only for tests, or chosen by somebody else";
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
    // browser-use sends the next two in containers, and the third always.
    client_default("disable-gpu-sandbox", INNER),
    client_default("no-zygote", INNER),
    client_default(
        "extensions-on-chrome-urls",
        "it lets extensions control Chromium's own pages, which control the browser",
    ),
    never("extensions-on-extension-urls", "it lets extensions control each other"),
    never("extension-test-api-on-web-pages", UNFINISHED),
    never("disable-namespace-sandbox", INNER),
    never("disable-seccomp-filter-sandbox", INNER),
    never("disable-seccomp-sandbox", INNER),
    never("disable-landlock-sandbox", INNER),
    never("disable-webnn-compiler-sandbox", INNER),
    never("disable-mojo-broker", INNER),
    never("gpu-sandbox-allow-sysv-shm", INNER),
    never("gpu-sandbox-failures-fatal", INNER),
    never("gpu-sandbox-start-early", INNER),
    never("no-zygote-sandbox", INNER),
    never("no-unsandboxed-zygote", INTERNAL),
    never("allow-sandbox-debugging", INNER),
    never("single-process", "it runs web pages in the browser process itself, outside every inner sandbox"),
    never("in-process-gpu", "it runs the GPU code in the browser process itself"),
    never("process-per-tab", SITES),
    never("disable-site-isolation-for-policy", SITES),
    never("disable-site-isolation", SITES),
    never("site-isolation-trial-opt-out", SITES),
    never(
        "disable-web-security",
        "it switches off the same-origin policy: every page could read every other site",
    ),
    never("disable-sandbox-external-protocols", "it lets sandboxed frames start other applications"),
    never("allow-file-access-from-files", FILES),
    never("allow-file-access", FILES),
    never("allow-unsafe-devtools-remote-file-loading", FILES),
    never("disable-extensions-file-access-check", FILES),
    never("renderer-cmd-prefix", PREFIX),
    never("utility-cmd-prefix", PREFIX),
    never("zygote-cmd-prefix", PREFIX),
    never("ppapi-plugin-cmd-prefix", PREFIX),
    never("gpu-launcher", PREFIX),
    never("plugin-launcher", PREFIX),
    never("ppapi-plugin-launcher", PREFIX),
    never("browser-subprocess-path", PREFIX),
    never("allow-command-line-plugins", PREFIX),
    never("register-pepper-plugins", PREFIX),
    never("type", INTERNAL),
    never("utility-sub-type", INTERNAL),
    never("service-sandbox-type", INTERNAL),
    never("mojo-platform-channel-handle", INTERNAL),
    never("change-stack-guard-on-fork", INTERNAL),
    never("field-trial-handle", INTERNAL),
    never("enable-blink-test-features", UNFINISHED),
    never("enable-experimental-web-platform-features", UNFINISHED),
    never("enable-experimental-webassembly-features", UNFINISHED),
    never("enable-experimental-extension-apis", UNFINISHED),
    never("expose-internals-for-testing", UNFINISHED),
    never("run-web-tests", UNFINISHED),
    never("enable-field-trial-config", UNFINISHED),
    never("force-fieldtrials", UNFINISHED),
    never("force-fieldtrial-params", UNFINISHED),
    never("force-variation-ids", UNFINISHED),
    never("accept-empty-variations-seed-signature", UNFINISHED),
    never("fake-variations-channel", UNFINISHED),
    never("fake-variations-platform", UNFINISHED),
    never("variations-runtime-overrides", UNFINISHED),
    never("variations-server-url", UNFINISHED),
    never("variations-insecure-server-url", UNFINISHED),
    never("variations-state-file", UNFINISHED),
    never("variations-test-seed-path", UNFINISHED),
    never("origin-trial-public-key", UNFINISHED),
    never("origin-trial-disabled-features", UNFINISHED),
    never("origin-trial-disabled-tokens", UNFINISHED),
    never("disable-origin-trial-controlled-blink-features", UNFINISHED),
    // nodriver and zendriver send it. The launcher itself permits the origins of the debugging port.
    client_default("remote-allow-origins", "it lets every web page use the debugging port"),
    never("remote-debugging-address", CDP),
    never("remote-debugging-targets", CDP),
    never("remote-debugging-io-pipes", "the debugging pipe is always on the descriptors 3 and 4"),
    never("remote-debugging-socket-name", CDP),
    never("enable-ui-devtools", CDP),
    never("launch-ui-devtools", CDP),
    never("custom-devtools-frontend", "it loads the debugging front end from elsewhere"),
    never("proxy-pac-url", EGRESS),
    never("proxy-auto-detect", EGRESS),
    never("no-proxy-server", EGRESS),
    never("isolated-prerender-tunnel-proxy", EGRESS),
    never("bypass-prefetch-proxy-for-host", EGRESS),
    never("host-resolver-rules", EGRESS),
    never("host-rules", EGRESS),
];

/// The rule for a switch. Names that future versions of Chromium may have are refused by their form.
pub(super) fn rule_for(name: &str) -> Option<Refused> {
    let listed = REFUSED_SWITCHES.iter().find(|rule| rule.name == name).copied();
    let by_form = || {
        let turns_off = ["disable-", "no-", "without-"].iter().any(|start| name.starts_with(start));
        match name {
            _ if name.ends_with("-cmd-prefix") => Some(never("*-cmd-prefix", PREFIX)),
            _ if name.starts_with("remote-debugging-")
                && !matches!(name, "remote-debugging-port" | "remote-debugging-pipe") =>
            {
                Some(never("remote-debugging-*", CDP))
            }
            _ if turns_off && (name.contains("sandbox") || name.contains("site-isolation")) => {
                Some(never("disable-*-sandbox", INNER))
            }
            _ => None,
        }
    };
    listed.or_else(by_form)
}

/// Values with which a client sends a refused switch by itself, by the beginning of the value. Any other value is somebody's
/// own choice.
const CLIENT_VALUES: &[(&str, &str)] = &[
    // chrome-launcher turns a background activity off.
    ("force-fieldtrials", "*BackgroundTracing/default/"),
    // nodriver and zendriver; Chromium does not know the switch.
    ("remote-debugging-host", "127.0.0.1"),
    // Playwright, for a SOCKS proxy: the browser resolves no name itself. In mode `proxy` it never does.
    ("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE "),
];

/// Whether a client sends a refused switch with this value by itself.
pub(super) fn is_client_value(switch: &super::Switch) -> bool {
    let value = switch.value.as_deref().unwrap_or_default().trim_matches('"');
    CLIENT_VALUES.iter().any(|(name, start)| switch.name == *name && value.starts_with(start))
}
