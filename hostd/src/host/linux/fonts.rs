//! The fonts of the clones, which are the host's.

use super::checks::{finding, good};
use crate::api::{Finding, Severity};
use std::collections::BTreeSet;
use std::path::Path;

const FOLDERS: [&str; 2] = ["/usr/share/fonts", "/usr/local/share/fonts"];
/// Folders of fonts are nested two or three deep.
const DEPTH: usize = 5;

/// The file of each font without its extension, its Debian package, and the text that needs it. scripts/missing-fonts has
/// the same list.
const EXPECTED: [(&str, &str, &str); 4] = [
    ("LiberationSans-Regular", "fonts-liberation", "Arial, Times and Courier"),
    ("NotoSans-Regular", "fonts-noto-core", "most scripts"),
    ("NotoSansCJK-Regular", "fonts-noto-cjk", "Chinese, Japanese and Korean"),
    ("NotoColorEmoji", "fonts-noto-color-emoji", "emoji"),
];

/// Whether pages find the fonts that they expect.
pub(super) fn check() -> Finding {
    check_in(FOLDERS.map(Path::new))
}

fn check_in<'a>(folders: impl IntoIterator<Item = &'a Path>) -> Finding {
    let mut stems = BTreeSet::new();
    folders.into_iter().for_each(|folder| collect(folder, DEPTH, &mut stems));
    let missing: Vec<_> = EXPECTED.iter().filter(|(stem, ..)| !stems.contains(*stem)).collect();
    if missing.is_empty() {
        return good("fonts", "Liberation, Noto, Noto CJK and Noto Color Emoji are installed");
    }
    let texts: Vec<_> = missing.iter().map(|(_, _, text)| *text).collect();
    let packages: Vec<_> = missing.iter().map(|(_, package, _)| *package).collect();
    let message = format!("pages have no usual font for: {}", texts.join("; "));
    let fix = format!("apt-get install {}, or the same fonts of another distribution", packages.join(" "));
    finding("fonts", Severity::Warning, message, &fix)
}

/// The names of all files below the folder, without their extensions. A folder that cannot be read has none.
fn collect(folder: &Path, depth: usize, stems: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => collect(&entry.path(), depth - 1, stems),
            Ok(kind) if !kind.is_dir() => {
                stems.extend(entry.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_fonts_are_named_with_their_packages() {
        let folder = tempfile::tempdir().unwrap();
        let nested = folder.path().join("truetype/noto");
        std::fs::create_dir_all(&nested).unwrap();
        for file in ["NotoSans-Regular.ttf", "NotoColorEmoji.ttf", "LiberationSans-Regular.ttf"] {
            std::fs::write(nested.join(file), "").unwrap();
        }
        let seen = check_in([folder.path()]);
        assert_eq!(seen.severity, Severity::Warning);
        assert!(seen.message.ends_with(": Chinese, Japanese and Korean"), "{}", seen.message);
        assert!(seen.fix.starts_with("apt-get install fonts-noto-cjk,"), "{}", seen.fix);
        std::fs::write(folder.path().join("NotoSansCJK-Regular.ttc"), "").unwrap();
        assert_eq!(check_in([folder.path()]).severity, Severity::Ok);
    }

    #[test]
    fn the_script_knows_the_same_fonts() {
        let script = include_str!("../../../../scripts/missing-fonts");
        for (stem, package, _) in EXPECTED {
            assert!(script.contains(&format!("{stem}.* {package}\n")), "{stem}");
        }
    }
}
