//! The daemon's executable, for the tests of hostd and of hostctl.

use std::path::PathBuf;

/// In hostd's tests the binary of the package. hostctl's package has the same program as an example, because Cargo
/// builds no binaries of other packages for a test.
pub(crate) fn hostd() -> PathBuf {
    if let Some(binary) = option_env!("CARGO_BIN_EXE_hostd") {
        return binary.into();
    }
    let test = std::env::current_exe().expect("the path of this test");
    let folder = test.ancestors().nth(2).expect("the folder of the build");
    let example = folder.join("examples/hostd");
    assert!(example.is_file(), "{} is missing: cargo build -p hostctl --examples", example.display());
    example
}
