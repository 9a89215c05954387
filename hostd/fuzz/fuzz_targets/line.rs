//! Line → request → operation. Run it with `cargo +nightly fuzz run line` in the folder `hostd`.

#![no_main]

libfuzzer_sys::fuzz_target!(|line: &[u8]| hostd::server::fuzzing::line(line));
