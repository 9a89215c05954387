//! Tests of the filter.

use super::*;
use proptest::prelude::*;

fn refused(argument: &str) -> bool {
    Flags::parse(&[argument], Strictness::Refuse).is_err()
}

#[test]
fn every_refused_switch_is_refused_in_every_spelling() {
    for rule in REFUSED_SWITCHES {
        for spelling in [
            format!("--{}", rule.name),
            format!("-{}", rule.name),
            format!("--{}=1", rule.name),
            format!("--{}=", rule.name),
            format!(" --{}\t", rule.name),
            format!("--{}", rule.name.to_uppercase()),
        ] {
            let error = Flags::parse(&[&spelling], Strictness::Refuse).expect_err(&spelling);
            assert!(error.to_string().contains(rule.reason), "{spelling}: {error}");
        }
    }
}

#[test]
fn names_of_future_switches_are_refused_by_their_form() {
    for name in
        ["new-process-cmd-prefix", "remote-debugging-socket", "disable-wasm-sandbox", "no-site-isolation"]
    {
        assert!(refused(&format!("--{name}")), "{name}");
    }
    for name in ["remote-debugging-port=0", "remote-debugging-pipe", "no-first-run", "disable-sync"] {
        assert!(!refused(&format!("--{name}")), "{name}");
    }
}

#[test]
fn features_that_isolate_cannot_be_disabled() {
    for name in [
        "IsolateOrigins",
        "site-per-process",
        "SitePerProcess",
        "StrictOriginIsolation",
        "SiteIsolationForPasswordSites",
        "NetworkServiceSandbox",
        "LocalNetworkAccessChecks",
        "BlockInsecurePrivateNetworkRequests",
        "PartitionAllocBackupRefPtr",
        "OriginKeyedProcessesByDefault",
    ] {
        for list in [
            name.to_owned(),
            format!("Translate,{name}"),
            format!("{name},Translate"),
            format!("{name}<Trial"),
            format!("*{}", name.to_lowercase()),
            format!(" {name} "),
        ] {
            assert!(refused(&format!("--disable-features={list}")), "{list}");
        }
    }
    for harmless in ["Translate,MediaRouter", "IsolateSandboxedIframes", "PrivacySandboxSettings4"] {
        assert!(!refused(&format!("--disable-features={harmless}")), "{harmless}");
    }
    assert!(!refused("--disable-blink-features=AutomationControlled"));
}

#[test]
fn only_harmless_features_can_be_enabled() {
    let lenient = |argument: &str| Flags::parse(&[argument], Strictness::DropClientDefaults);
    // Never, by nobody.
    for argument in [
        "--enable-blink-features=MojoJS",
        "--enable-blink-features=IdleDetection,MojoJSTest",
        "--ENABLE-Blink-Features=mojojs",
        "--enable-features=UnrestrictedSharedArrayBuffer",
        "--enable-blink-features=UnrestrictedSharedArrayBuffer<x",
        "--enable-features=PdfOopif, MojoJS ",
        "--enable-blink-test-features",
        "--enable-experimental-web-platform-features",
        "--force-fieldtrials=NetworkServiceInProcess2/Enabled",
        "--origin-trial-public-key=x",
        "--blink-settings=imagesEnabled=false,allowUniversalAccessFromFileURLs=true",
        "--blink-settings=webSecurityEnabled=false",
        "--js-flags=--expose-gc --allow-natives-syntax",
        "--js-flags=--expose-gc,--allow_natives_syntax",
        "--js-flags=\t--sandbox-testing",
        "--js-flags=\"--expose-memory-corruption-api\"",
    ] {
        assert!(refused(argument), "{argument}");
        let error = lenient(argument).expect_err(argument).to_string();
        assert!(error.contains("refused: "), "{error}");
    }
    // Removed from the command line of a client, refused from a person.
    for (argument, rest) in [
        ("--enable-features=NetworkService,NetworkServiceInProcess2", "--enable-features=NetworkService"),
        ("--enable-features=SomeNewFeature,PdfOopif", "--enable-features=PdfOopif"),
        (
            "--enable-features=PdfOopif:key/value,CDPScreenshotNewSurface",
            "--enable-features=CDPScreenshotNewSurface",
        ),
        ("--disable-features=IsolateOrigins,Translate", "--disable-features=Translate"),
    ] {
        assert!(refused(argument), "{argument}");
        let flags = lenient(argument).expect(argument);
        assert_eq!(flags.to_arguments(), [rest]);
        assert!(
            flags.notices.len() == 1 && flags.notices[0].contains("was left out of `--"),
            "{:?}",
            flags.notices
        );
    }
    let flags = lenient("--enable-features=NetworkServiceInProcess").expect("left out");
    assert_eq!(flags.to_arguments(), [] as [&str; 0]);
    for harmless in [
        "--enable-features=CDPScreenshotNewSurface,SkipListAccountsWithoutGaiaCookies",
        "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
        "--blink-settings=imagesEnabled=false",
        "--js-flags=--expose-gc --max-old-space-size=4096",
        "--js-flags=--random-seed=1157259159",
    ] {
        let flags = Flags::parse(&[harmless], Strictness::Refuse).expect(harmless);
        assert_eq!(flags.to_arguments(), [harmless]);
    }
}

/// The default switches of clients that touch lists or confinement, and what is left out of them.
#[test]
fn the_defaults_of_known_clients_are_accepted() {
    let clients: [(&str, &[&str], usize); 6] = [
        (
            "Playwright",
            &[
                "--disable-field-trial-config",
                "--disable-features=AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,LensOverlay,MediaRouter,PaintHolding,ThirdPartyStoragePartitioning,AvoidCorsURLLoaderRestartOnRedirect,TcpPortRandomizationWin,OptimizationHints,NetworkTimeServiceQuerying,AimEnabled,PreconnectToSearch,msForceBrowserSignIn,msEdgeUpdateLaunchServicesPreferredVersion",
                "--enable-features=CDPScreenshotNewSurface,SkipListAccountsWithoutGaiaCookies",
                "--enable-unsafe-swiftshader",
                "--unsafely-disable-devtools-self-xss-warnings",
                "--edge-skip-compat-layer-relaunch",
                "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
                "--no-sandbox",
                "--user-data-dir=/tmp/playwright_chromiumdev_profile-x",
                "--remote-debugging-pipe",
                "--no-startup-window",
            ],
            1,
        ),
        (
            "Puppeteer",
            &[
                "--allow-pre-commit-input",
                "--disable-features=Translate,AcceptCHFrame,MediaRouter,OptimizationHints,WebUIReloadButton,WebUIOmniboxPopup,WebUIOmniboxAimPopup,ProcessPerSiteUpToMainFrameThreshold,IsolateSandboxedIframes",
                "--enable-features=PdfOopif",
                "--enable-automation",
                "--remote-debugging-port=0",
            ],
            0,
        ),
        (
            "ChromeDriver",
            &[
                "--enable-automation",
                "--enable-logging",
                "--log-level=0",
                "--test-type=webdriver",
                "--remote-debugging-port=0",
            ],
            0,
        ),
        (
            "chromedp",
            &[
                "--enable-features=NetworkService,NetworkServiceInProcess",
                "--disable-features=site-per-process,Translate,BlinkGenPropertyTrees",
                "--no-sandbox",
            ],
            3,
        ),
        (
            "go-rod",
            &[
                "--enable-features=NetworkService,NetworkServiceInProcess",
                "--disable-features=site-per-process,TranslateUI",
                "--disable-site-isolation-trials",
                "--no-startup-window",
            ],
            3,
        ),
        (
            "browser-use",
            &[
                "--enable-features=NetworkService,NetworkServiceInProcess",
                "--disable-features=AcceptCHFrame,AutoExpandDetailsElement,CertificateTransparencyComponentUpdater,DialMediaRouteProvider,ExtensionManifestV2Disabled,GlobalMediaControls,ImprovedCookieControls,LazyFrameLoading,BackForwardCache,InterestFeedContentSuggestions,CalculateNativeWinOcclusion,HeavyAdPrivacyMitigations,PrivacySandboxSettings4,AutofillServerCommunication,CrashReporting,OverscrollHistoryNavigation,InfiniteSessionRestore",
                "--disable-blink-features=AutomationControlled",
                "--js-flags=--random-seed=1157259159",
                "--extensions-on-chrome-urls",
                "--silent-debugger-extension-api",
                "--no-sandbox",
                "--disable-gpu-sandbox",
                "--disable-setuid-sandbox",
                "--no-zygote",
            ],
            6,
        ),
    ];
    for (client, arguments, left_out) in clients {
        let flags = Flags::parse(arguments, Strictness::DropClientDefaults).expect(client);
        assert_eq!(flags.notices.len(), left_out, "{client}: {:?}", flags.notices);
    }
}

/// Names in the installed Chromium that look as if they weakened it. Each must be refused or be listed here as harmless, so
/// that a new version with a new switch of this kind is noticed.
#[test]
fn every_suspicious_switch_of_the_installed_chromium_was_decided() {
    const HARMLESS: &[&str] = &[
        // Not switches, or switches that strengthen.
        "allow-popups-to-escape-sandbox",
        "chrome-sandbox",
        "coop-sandboxed-iframe-cannot-navigate-to-coop-page",
        "disable-in-process-stack-traces",
        "enable-isolated-sandboxed-iframes",
        "enable-network-service-sandbox",
        "enable-privacy-sandbox-ads-apis",
        "site-isolation-for-password-sites",
        "unsandboxed",
        "use-sync-sandbox",
        "v8-sandbox",
        "wallet-service-use-sandbox",
    ];
    let suspicious = |name: &str| {
        [
            "sandbox",
            "-cmd-prefix",
            "zygote",
            "site-isolation",
            "web-security",
            "in-process-",
            "single-process",
        ]
        .iter()
        .any(|part| name.contains(part))
            || ["remote-debugging-", "proxy-pac", "host-resolver", "force-fieldtrial"]
                .iter()
                .any(|start| name.starts_with(start))
            || name.ends_with("-file-access-from-files")
    };
    let chromium = crate::chromium::Chromium::find(None, crate::chromium::Flavor::Full).expect("a browser");
    let program = std::fs::read(&chromium.executable).expect("read");
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let mut seen = 0;
    let mut undecided = std::collections::BTreeSet::new();
    // Switches are strings that end with a zero byte.
    for bytes in program.split(|byte| *byte == 0).filter(|bytes| (8..64).contains(&bytes.len())) {
        if !bytes.iter().all(|byte| is_part(*byte)) {
            continue;
        }
        let name = std::str::from_utf8(bytes).expect("ASCII");
        if suspicious(name) {
            seen += 1;
            let known =
                HARMLESS.contains(&name) || matches!(name, "remote-debugging-port" | "remote-debugging-pipe");
            if !known && refused::rule_for(name).is_none() {
                undecided.insert(name.to_owned());
            }
        }
    }
    assert!(seen > 10, "the names of switches were not found in {}", chromium.executable.display());
    assert!(undecided.is_empty(), "refuse these switches or list them as harmless: {undecided:?}");
}

#[test]
fn table_names_are_lower_case_unique_and_have_a_reason() {
    for (index, rule) in REFUSED_SWITCHES.iter().enumerate() {
        assert_eq!(rule.name, rule.name.to_ascii_lowercase());
        assert!(rule.reason.len() > 10, "{}", rule.name);
        assert!(
            REFUSED_SWITCHES[index + 1..].iter().all(|other| other.name != rule.name),
            "{} twice",
            rule.name
        );
    }
}

#[test]
fn the_drop_in_accepts_client_defaults() {
    // The defaults of Playwright, chromedp and go-rod that touch confinement.
    let arguments = [
        "--no-sandbox",
        "--disable-site-isolation-trials",
        "--disable-features=site-per-process,Translate,BlinkGenPropertyTrees",
        "--headless",
        "about:blank",
    ];
    let flags = Flags::parse(&arguments, Strictness::DropClientDefaults).expect("client defaults pass");
    assert_eq!(
        flags.to_arguments(),
        ["--disable-features=Translate,BlinkGenPropertyTrees", "--headless", "about:blank"]
    );
    assert_eq!(flags.notices.len(), 3);
    assert!(Flags::parse(&["--remote-allow-origins=*"], Strictness::Refuse).is_err());
    let socks = "--host-resolver-rules=\"MAP * ~NOTFOUND , EXCLUDE proxy.example\"";
    let sent = [
        "--remote-allow-origins=*",
        socks,
        "--force-fieldtrials=*BackgroundTracing/default/",
        "--remote-debugging-host=127.0.0.1",
    ];
    let flags = Flags::parse(&sent, Strictness::DropClientDefaults).expect("dropped");
    assert_eq!((flags.switches.len(), flags.notices.len()), (0, sent.len()));
    for own_choice in [
        "--host-resolver-rules=MAP example.com 10.0.0.1",
        "--force-fieldtrials=Other/On/",
        "--remote-debugging-host=0.0.0.0",
        "--remote-debugging-address=127.0.0.1",
    ] {
        assert!(Flags::parse(&[own_choice], Strictness::DropClientDefaults).is_err(), "{own_choice}");
    }
}

#[test]
fn after_a_double_dash_everything_is_an_address() {
    let flags = Flags::parse(&["--headless", "--", "--no-sandbox"], Strictness::Refuse).expect("positional");
    assert_eq!(flags.to_arguments(), ["--headless", "--", "--no-sandbox"]);
}

#[test]
fn lists_are_joined_because_chromium_reads_only_the_last() {
    let mut flags =
        Flags::parse(&["--disable-features=A,B", "--disable-features=C"], Strictness::Refuse).expect("ok");
    flags.add_to_list("disable-features", "D");
    assert_eq!(flags.to_arguments(), ["--disable-features=A,B,C,D"]);
}

proptest! {
    /// The output never contains an argument that Chromium would read as a refused switch.
    #[test]
    fn the_output_contains_no_refused_switch(arguments in proptest::collection::vec(any_argument(), 0..12)) {
        for strictness in [Strictness::Refuse, Strictness::DropClientDefaults] {
            if let Ok(flags) = Flags::parse(&arguments, strictness) {
                crate::fuzzing::assert_harmless(&flags.to_arguments());
            }
        }
    }

    /// A second pass changes nothing.
    #[test]
    fn filtering_is_idempotent(arguments in proptest::collection::vec(any_argument(), 0..12)) {
        if let Ok(flags) = Flags::parse(&arguments, Strictness::DropClientDefaults) {
            let again = Flags::parse(&flags.to_arguments(), Strictness::Refuse).expect("what passed once passes again");
            prop_assert_eq!(again.to_arguments(), flags.to_arguments());
        }
    }

    #[test]
    fn harmless_switches_pass_unchanged(name in "x-[a-z]{3,10}", value in "[a-zA-Z0-9/:.]{0,12}") {
        let argument = format!("--{name}={value}");
        let flags = Flags::parse(&[&argument], Strictness::Refuse).expect("harmless");
        prop_assert_eq!(flags.to_arguments(), vec![argument]);
    }
}

fn any_argument() -> impl Strategy<Value = String> {
    let refused = prop::sample::select(REFUSED_SWITCHES).prop_map(|rule| rule.name.to_owned());
    let feature = prop::sample::select(DISABLE_WORDS)
        .prop_map(|rule| format!("disable-features=Translate,{}", rule.name));
    let name = prop_oneof![refused, feature, "[a-zA-Z-]{0,12}", Just("headless".to_owned())];
    let prefix = prop::sample::select(vec!["--", "-", "", " --", "\t-", "---", "\u{b}--"]);
    let suffix = prop::sample::select(vec!["", "=", "=1", " ", "==", "\n"]);
    prop_oneof![
        (prefix, name, suffix).prop_map(|(prefix, name, suffix)| format!("{prefix}{name}{suffix}")),
        Just("--".to_owned()),
        "\\PC{0,16}",
    ]
}
