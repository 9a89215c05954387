//! Switches whose value is a list: features, settings of Blink, flags of V8.
//!
//! What is turned on is decided by allow lists: any of thousands of unknown features may weaken the browser, like `MojoJS`,
//! which gives pages the interfaces of the browser process. What is turned off is decided by a deny list of words,
//! because features that matter for isolation are few and their names say so.

use super::refused::{INNER, Refused, SITES, client_default, never};

/// The decision about one member of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Keep,
    /// Clients send it by default, or it is unknown. Leaving it out does not weaken the browser.
    LeaveOut(&'static str),
    Refuse(&'static str),
}

const UNKNOWN: &str = "it is not in the launcher's list of harmless features";
const POWERFUL: &str =
    "it gives pages access to interfaces that are only for the browser itself or for tests";
const PUBLIC_CALLS: &str = "it lets public pages call private addresses";
const SETTING: &str = "it is not in the launcher's list of harmless settings";
const ENGINE: &str = "it is not in the launcher's list of harmless flags of the script engine";

/// Features that may be enabled: what clients enable by default, hardening, and what only changes drawing.
pub const ENABLE_FEATURES: &[&str] = &[
    // Playwright, Puppeteer, chromedp, go-rod, browser-use.
    "CDPScreenshotNewSurface",
    "NetworkService",
    "PdfOopif",
    "SkipListAccountsWithoutGaiaCookies",
    "WebMCP",
    // Hardening.
    "HttpsUpgrades",
    "IsolateOrigins",
    "IsolateSandboxedIframes",
    "LocalNetworkAccessChecks",
    "NetworkServiceSandbox",
    "OriginKeyedProcessesByDefault",
    "SitePerProcess",
    "StrictOriginIsolation",
    "site-per-process",
    // Drawing and video.
    "AcceleratedVideoDecodeLinuxGL",
    "AcceleratedVideoEncoder",
    "CanvasOopRasterization",
    "DefaultANGLEVulkan",
    "FluentOverlayScrollbar",
    "OverlayScrollbar",
    "ParallelDownloading",
    "UseOzonePlatform",
    "VaapiVideoDecodeLinuxGL",
    "VaapiVideoDecoder",
    "VaapiVideoEncoder",
    "Vulkan",
    "VulkanFromANGLE",
    "WaylandWindowDecorations",
    "WebContentsForceDark",
];

/// Features of Blink that may be enabled. Old versions of Puppeteer enable `IdleDetection`.
pub const ENABLE_BLINK_FEATURES: &[&str] = &["IdleDetection"];

/// Settings of Blink that may be set. Playwright sets the first four.
pub const BLINK_SETTINGS: &[&str] = &[
    "primaryHoverType",
    "availableHoverTypes",
    "primaryPointerType",
    "availablePointerTypes",
    "darkMode",
    "forceDarkModeEnabled",
    "hideScrollbars",
    "imagesEnabled",
    "minimumFontSize",
    "preferredColorScheme",
    "prefersReducedMotion",
    "scriptEnabled",
];

/// Flags of V8 that may be set, with dashes and without `no-`. browser-use sets `random-seed`.
pub const JS_FLAGS: &[&str] = &[
    "expose-gc",
    "jitless",
    "lite-mode",
    "max-heap-size",
    "max-lazy",
    "max-old-space-size",
    "max-semi-space-size",
    "initial-old-space-size",
    "random-seed",
    "sparkplug",
    "stack-size",
    "stack-trace-limit",
];

/// Features that clients enable by default although they weaken the browser.
const ENABLED_BY_CLIENTS: &[&str] = &["NetworkServiceInProcess", "NetworkServiceInProcess2"];
const NETWORK_IN_PROCESS: &str =
    "it runs the network code in the browser process itself, outside every inner sandbox";

/// Words in the names of features that must not be enabled by anybody. Other unknown features are left out.
const POWERFUL_WORDS: &[&str] =
    &["mojo", "inprocess", "unsafe", "unrestricted", "insecure", "bypass", "sharedarraybuffer", "fortesting"];

/// Features that must not be disabled: those whose name contains the word.
pub const DISABLE_WORDS: &[Refused] = &[
    client_default("isolateorigins", SITES),
    client_default("site-per-process", SITES),
    client_default("siteperprocess", SITES),
    never("isolat", SITES),
    never("originkeyed", SITES),
    never("originagentcluster", SITES),
    never("opaqueresponse", SITES),
    never("crossoriginread", SITES),
    never("sandbox", INNER),
    never("networkservice", INNER),
    never("audioservice", INNER),
    never("landlock", INNER),
    never("seccomp", INNER),
    never("mojo", INNER),
    never("partitionalloc", "it turns off a protection against memory errors"),
    never("backuprefptr", "it turns off a protection against memory errors"),
    never("miracleptr", "it turns off a protection against memory errors"),
    never("privatenetwork", PUBLIC_CALLS),
    never("localnetworkaccess", PUBLIC_CALLS),
];

/// Names with such a word that may be disabled. Puppeteer disables `IsolateSandboxedIframes` by default: it separates
/// frames of one site, not sites. The privacy sandbox is about advertisements, and isolated web apps are a kind of
/// installed applications.
const DISABLE_EXCEPTIONS: &[&str] = &["isolatesandboxediframes", "privacysandbox", "isolatedwebapp"];

/// Decides about each member of a list switch. `None`: the switch is not a list.
pub(super) fn judge(switch: &str) -> Option<fn(&str) -> Decision> {
    match switch {
        "enable-features" => Some(|member| enabled(member, ENABLE_FEATURES)),
        "enable-blink-features" => Some(|member| enabled(member, ENABLE_BLINK_FEATURES)),
        "disable-features" | "disable-blink-features" => Some(disabled),
        "blink-settings" => Some(|member| {
            let name = member.split('=').next().unwrap_or_default();
            if BLINK_SETTINGS.contains(&name) { Decision::Keep } else { Decision::Refuse(SETTING) }
        }),
        "js-flags" => Some(|member| {
            if JS_FLAGS.contains(&engine_flag(member).as_str()) {
                Decision::Keep
            } else {
                Decision::Refuse(ENGINE)
            }
        }),
        _ => None,
    }
}

/// The members of a list. V8 separates flags by white space, Chromium by commas.
pub(super) fn members<'a>(switch: &str, value: &'a str) -> Vec<&'a str> {
    let is_separator =
        |c: char| c == ',' || (switch == "js-flags" && matches!(c, '\t'..='\r' | ' ' | '\0' | '"' | '\''));
    value.split(is_separator).map(str::trim).filter(|member| !member.is_empty()).collect()
}

/// A member must be exactly a name. A name with a field trial (`Feature<Trial`) or parameters (`Feature:key/value`) is
/// unknown.
fn enabled(member: &str, allowed: &[&str]) -> Decision {
    let lower = member.to_ascii_lowercase();
    if allowed.contains(&member) {
        Decision::Keep
    } else if ENABLED_BY_CLIENTS.contains(&member) {
        Decision::LeaveOut(NETWORK_IN_PROCESS)
    } else if POWERFUL_WORDS.iter().any(|word| lower.contains(word)) {
        Decision::Refuse(POWERFUL)
    } else {
        Decision::LeaveOut(UNKNOWN)
    }
}

fn disabled(member: &str) -> Decision {
    let lower = member.to_ascii_lowercase();
    let bare = lower.trim_start_matches('*');
    if DISABLE_EXCEPTIONS.iter().any(|name| bare.starts_with(name)) {
        return Decision::Keep;
    }
    match DISABLE_WORDS.iter().find(|rule| bare.contains(rule.name)) {
        None => Decision::Keep,
        Some(rule) if rule.sent_by_clients => Decision::LeaveOut(rule.reason),
        Some(rule) => Decision::Refuse(rule.reason),
    }
}

/// The name of a V8 flag: `--no-expose_gc=1` and `-expose-gc` are both `expose-gc`.
fn engine_flag(member: &str) -> String {
    let name = member.split('=').next().unwrap_or_default().trim_start_matches('-').replace('_', "-");
    name.strip_prefix("no-").unwrap_or(&name).to_owned()
}
