//! How systemd starts k3s: flags and variables that its configuration does not show.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use api::sort::{CompactCollect as _, CompactSort as _};

use super::keys::read as read_text;

/// What a server of k3s is started with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Start {
    /// By name, without dashes; some may be given several times.
    pub flags: BTreeMap<String, Vec<String>>,
    pub environment: BTreeMap<String, String>,
}

/// From a unit and what is laid over it; nothing where there is none.
pub(super) fn read(unit: &Path) -> Result<Start> {
    let (mut command, mut environment, mut from_files) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for file in with_drop_ins(unit, &["conf"])? {
        for line in lines(&read_text(&file)?) {
            let Some((name, value)) = line.split_once('=') else { continue };
            match name.trim() {
                // The last one counts, and an empty one takes those before it away.
                "ExecStart" => command = words(value),
                "Environment" => environment.extend(words(value).iter().filter_map(|word| variable(word))),
                "EnvironmentFile" => {
                    for file in words(value) {
                        from_files.extend(variables(&file, unit)?);
                    }
                }
                _ => {}
            }
        }
    }
    // Those of files count more, wherever they are named.
    environment.extend(from_files);
    Ok(Start { flags: flags(&command), environment })
}

/// A file, if it is there, and those of the directory beside it that are laid over it, in the order in which they count.
pub(super) fn with_drop_ins(path: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::from_iter(is_there(path)?.then(|| path.to_owned()));
    let mut further = path.as_os_str().to_owned();
    further.push(".d");
    let has_ending = |path: &PathBuf| path.extension().is_some_and(|end| endings.iter().any(|known| end == *known));
    let mut found = files_in(Path::new(&further))?;
    found.retain(has_ending);
    found.compact_sort();
    files.extend(found);
    Ok(files)
}

/// What is in a directory; nothing if there is none.
pub(super) fn files_in(dir: &Path) -> Result<Vec<PathBuf>> {
    if !is_there(dir)? {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    entries.map(|entry| Ok(entry.with_context(|| dir.display().to_string())?.path())).collect()
}

/// What cannot be looked at is not absent.
pub(super) fn is_there(path: &Path) -> Result<bool> {
    path.try_exists().with_context(|| path.display().to_string())
}

/// Lines that end with a backslash go on in the next.
fn lines(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let is_comment = |line: &&str| line.starts_with(['#', ';']);
    joined.lines().map(str::trim).filter(|line| !is_comment(line)).map(str::to_owned).collect()
}

/// Words as systemd splits them: quoted ones keep their spaces.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (_, '\\') => word.get_or_insert_default().extend(letters.next()),
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// Flags after the word `server`; one without a value is true.
fn flags(command: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut flags: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut rest = command.iter().skip_while(|word| *word != "server").skip(1).peekable();
    while let Some(word) = rest.next() {
        let Some(flag) = word.strip_prefix("--") else { continue };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let value = rest.next_if(|next| !next.starts_with('-')).cloned();
                (flag, value.unwrap_or_else(|| "true".to_owned()))
            }
        };
        flags.entry(name.to_owned()).or_default().push(value);
    }
    flags
}

fn variable(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    Some((name.to_owned(), value.to_owned()))
}

/// Those of a file that a unit names; with a dash before it, it need not be there.
fn variables(named: &str, unit: &Path) -> Result<BTreeMap<String, String>> {
    let (is_optional, path) = match named.strip_prefix('-') {
        Some(path) => (true, path),
        None => (false, named),
    };
    let name = unit.file_stem().unwrap_or_default().to_string_lossy();
    let path = PathBuf::from(path.replace("%N", &name));
    if is_optional && !is_there(&path)? {
        return Ok(BTreeMap::new());
    }
    let read = lines(&read_text(&path)?);
    // A value with spaces is quoted, and one word then.
    Ok(read.iter().filter_map(|line| variable(&words(line).join(" "))).compact_collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_systemd_starts_is_read_as_systemd_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let unit = dir.path().join("k3s.service");
        assert_eq!(read(&unit).unwrap(), Start::default());
        let variables = dir.path().join("k3s.service.env");
        fs::write(&variables, "# of the installer\nK3S_DATASTORE_ENDPOINT='http://e:2379'\nK3S_TOKEN=a b\n").unwrap();
        let text = format!(
            "[Service]\nEnvironmentFile=-/nonexistent/%N\nEnvironmentFile=-{}\nEnvironment=\"A=1 2\" B=3 K3S_TOKEN=other\nExecStart=/usr/local/bin/k3s \\\n    \
             server \\\n\t'--cluster-cidr' \\\n\t'10.1.0.0/16' \\\n\t--tls-san=a --disable-agent --tls-san b\n",
            variables.display()
        );
        fs::write(&unit, text).unwrap();
        let start = read(&unit).unwrap();
        for (name, expected) in
            [("cluster-cidr", &["10.1.0.0/16"][..]), ("tls-san", &["a", "b"]), ("disable-agent", &["true"])]
        {
            assert_eq!(start.flags[name], expected, "{name}");
        }
        for (name, expected) in
            [("K3S_DATASTORE_ENDPOINT", "http://e:2379"), ("K3S_TOKEN", "a b"), ("A", "1 2"), ("B", "3")]
        {
            assert_eq!(start.environment[name], expected, "{name}");
        }
        // What is laid over it takes its place.
        fs::create_dir(dir.path().join("k3s.service.d")).unwrap();
        let over = "[Service]\nExecStart=\nExecStart=/opt/k3s server --datastore-endpoint=http://f:2379\n";
        fs::write(dir.path().join("k3s.service.d/10.conf"), over).unwrap();
        let start = read(&unit).unwrap();
        assert_eq!(start.flags.keys().collect::<Vec<_>>(), ["datastore-endpoint"]);
        // One that must be there and is not says so.
        fs::write(&unit, "EnvironmentFile=/nonexistent\n").unwrap();
        assert!(read(&unit).is_err());
    }
}
