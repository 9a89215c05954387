//! The description of CDP that belongs to the installed Chromium, for clients that build their methods from it.
//!
//! Chromium's debugging port serves it at /json/protocol, the debugging pipe does not. It is one of the resources beside the
//! executable: a file `.pak` has a table of numbered resources, and this one is compressed with Brotli. Its number differs
//! between versions, so it is recognised by its contents.

use std::io::{self, Read};
use std::path::Path;

/// Files that may contain it, beside Chromium's executable.
const FILES: [&str; 2] = ["resources.pak", "headless_lib_data.pak"];
/// The largest file that is read, and the size of the description. It was 1.6 MB in version 156.
const MAX_FILE: u64 = 128 << 20;
const SIZES: std::ops::RangeInclusive<u64> = 256 << 10..=32 << 20;
const HEADER: usize = 12;
const ENTRY: usize = 6;
/// What a compressed resource begins with, followed by its size in six bytes.
const BROTLI: [u8; 2] = [0x1e, 0x9b];

/// The description of the Chromium with this executable, as JSON.
pub(crate) fn of(chromium: &Path) -> io::Result<Vec<u8>> {
    let program = std::fs::canonicalize(chromium)?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    for name in FILES {
        let path = folder.join(name);
        match std::fs::metadata(&path) {
            Ok(about) if about.len() <= MAX_FILE => {}
            _ => continue,
        }
        if let Some(found) = find(&std::fs::read(&path)?) {
            return Ok(found);
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "no resource of this Chromium describes its protocol"))
}

fn find(pak: &[u8]) -> Option<Vec<u8>> {
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = pak.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    // Version 5: version, encoding, resource count, alias count; then the number and the offset of each resource.
    if number(0, 4)? != 5 {
        return None;
    }
    let count = number(8, 2)? as usize;
    (0..count).find_map(|index| {
        let entry = HEADER + ENTRY * index;
        let (start, end) = (number(entry + 2, 4)? as usize, number(entry + ENTRY + 2, 4)? as usize);
        let resource = pak.get(start..end)?;
        let size = number(start + 2, 6)?;
        let compressed = resource.strip_prefix(&BROTLI)?.get(6..)?;
        SIZES.contains(&size).then(|| description(compressed, size)).flatten()
    })
}

/// The resource if it is the description. Only its beginning is unpacked otherwise.
fn description(compressed: &[u8], size: u64) -> Option<Vec<u8>> {
    let mut unpacked = brotli_decompressor::Decompressor::new(compressed, 4096).take(size);
    let mut json = vec![0; 256];
    unpacked.read_exact(&mut json).ok()?;
    let start = String::from_utf8_lossy(&json);
    if !start.starts_with('{') || !start.contains("\"version\"") || !start.contains("\"domains\"") {
        return None;
    }
    unpacked.read_to_end(&mut json).ok()?;
    serde_json::from_slice::<serde::de::IgnoredAny>(&json).is_ok().then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_the_description_is_no_panic() {
        let mut pak = vec![5, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
        for (id, offset) in [(1_u16, 30_u32), (2, 40), (0, 60)] {
            pak.extend(id.to_le_bytes());
            pak.extend(offset.to_le_bytes());
        }
        pak.extend([0; 10]);
        pak.extend([0x1e, 0x9b, 0, 0, 8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        for end in 0..=pak.len() {
            assert_eq!(find(&pak[..end]), None, "{end}");
        }
        assert!(of(Path::new("/nonexistent/chromium")).is_err());
    }
}
