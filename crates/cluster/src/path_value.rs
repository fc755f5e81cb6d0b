//! What flags that name files are read as.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};

/// Of a flag that may be empty.
pub(crate) fn path_or_empty() -> ValueParser {
    ValueParser::new(OsStringValueParser::new().map(PathBuf::from))
}

/// The path, unless an empty value says that there is none.
pub(crate) fn named(path: &Option<PathBuf>) -> Option<&Path> {
    path.as_deref().filter(|path| !path.as_os_str().is_empty())
}

/// A path that leads to the same file from anywhere.
pub(crate) fn whole(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}

/// Whether what is read of it is gone then: it comes through a pipe, for instance.
pub(crate) fn is_read_once(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// What comes through a pipe is not read before its time.
pub(crate) fn readable(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?.file_type();
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => File::open(path).map(drop),
        (_, true) => Err(ErrorKind::IsADirectory.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_value_names_nothing() {
        for (given, expected) in [(None, None), (Some(""), None), (Some("a"), Some("a")), (Some("/a"), Some("/a"))] {
            assert_eq!(named(&given.map(PathBuf::from)), expected.map(Path::new), "{given:?}");
        }
    }
}
