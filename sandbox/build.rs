//! Builds the programs that run inside the sandbox, for `embedded.rs` to include.
//!
//! They are a separate package with its own settings: static (a sandbox may contain no libraries),
//! small (they are copied into memory), without unwinding. Cargo cannot embed one package's program
//! into another's library, so this runs cargo again with a separate target folder.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

const PROGRAMS: [&str; 2] = ["sandbox-stages", "sandbox-probe"];

fn main() {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    for watched in ["inside/src", "inside/Cargo.toml", "../Cargo.lock", "build.rs"] {
        println!("cargo::rerun-if-changed={}", here.join(watched).display());
    }
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = variable("TARGET");
    // One folder for all profiles of the outer build, because these programs do not depend on it.
    // (OUT_DIR is TARGET_FOLDER/PROFILE/build/NAME/out.)
    let folder = out.ancestors().nth(4).expect("cargo's output folders are deeper").join("sandbox-inside");
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args(["build", "--release", "--offline", "--quiet", "--target", &target])
        .arg("--manifest-path")
        .arg(here.join("inside/Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .args(PROGRAMS.iter().flat_map(|program| ["--bin", program]))
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        // Set by clippy and by coverage tools for the outer build only.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_BUILD_TARGET");
    let status = cargo.status().expect("cargo can be started again");
    assert!(
        status.success(),
        "cannot build the programs that run inside the sandbox; install a static C library \
         (Debian and Ubuntu: libc6-dev, Fedora: glibc-static)"
    );
    for program in PROGRAMS {
        let built = folder.join(&target).join("release").join(program);
        fs::copy(&built, out.join(program)).unwrap_or_else(|e| panic!("copy {}: {e}", built.display()));
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
