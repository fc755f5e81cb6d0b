//! Flags that name files mean the same files in every directory: the process that stays runs in `/`, and so does the next one.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::shape::Flags;

const TRACING: &str = "--tracing-config-file";
const REMOTE_WRITE: &str = "--history-remote-write-config-file";

impl Flags {
    /// Makes the paths absolute. An empty one stays empty: it says that there is none.
    pub(crate) fn make_paths_whole(&mut self) -> Result<()> {
        for path in [&mut self.tracing_config_file, &mut self.remote_write.history_remote_write_config_file] {
            if let Some(path) = path.as_mut().filter(|path| !path.as_os_str().is_empty()) {
                let whole = std::path::absolute(&*path).with_context(|| path.display().to_string())?;
                *path = whole;
            }
        }
        Ok(())
    }

    /// The words of a command with these flags, for a process that runs elsewhere.
    pub(crate) fn with_whole_paths(mut self, mut words: Vec<OsString>) -> Result<Vec<OsString>> {
        self.make_paths_whole()?;
        let paths =
            [(TRACING, self.tracing_config_file), (REMOTE_WRITE, self.remote_write.history_remote_write_config_file)];
        for (flag, path) in paths {
            if let Some(path) = path {
                words = without(words, flag);
                words.push(joined(flag, path));
            }
        }
        Ok(words)
    }
}

fn without(words: Vec<OsString>, flag: &str) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == flag {
            words.next();
        } else if text.strip_prefix(flag).is_none_or(|rest| !rest.starts_with('=')) {
            kept.push(word);
        }
    }
    kept
}

fn joined(flag: &str, path: PathBuf) -> OsString {
    let mut word = OsString::from(flag);
    word.push("=");
    word.push(path);
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote_write::RemoteWriteFlags;

    fn flags(tracing: Option<&str>, remote_write: Option<&str>) -> Flags {
        let history_remote_write_config_file = remote_write.map(PathBuf::from);
        let remote_write = RemoteWriteFlags { history_remote_write_config_file, ..RemoteWriteFlags::default() };
        Flags { tracing_config_file: tracing.map(PathBuf::from), remote_write, ..Flags::default() }
    }

    #[test]
    fn paths_lead_to_the_same_file_from_anywhere() {
        let here = |name: &str| std::env::current_dir().unwrap().join(name);
        let mut relative = flags(Some("t.yaml"), Some("w.yaml"));
        relative.make_paths_whole().unwrap();
        assert_eq!(relative.tracing_config_file, Some(here("t.yaml")));
        assert_eq!(relative.remote_write.history_remote_write_config_file, Some(here("w.yaml")));
        let mut empty = flags(None, Some(""));
        empty.make_paths_whole().unwrap();
        assert_eq!(empty, flags(None, Some("")));
    }

    #[test]
    fn words_say_the_same_elsewhere() {
        let words = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        let given = words(&["up", TRACING, "/t", "--history-remote-write-config-file=", "--nodes=2"]);
        let found = flags(Some("/t"), Some("")).with_whole_paths(given).unwrap();
        let expected = words(&["up", "--nodes=2", "--tracing-config-file=/t", "--history-remote-write-config-file="]);
        assert_eq!(found, expected);
        let given = words(&["up", "--nodes=2"]);
        assert_eq!(flags(None, None).with_whole_paths(given.clone()).unwrap(), given);
    }
}
