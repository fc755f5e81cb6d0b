//! Flags that name files. They mean the same files in every directory: the process that stays runs in `/`, and so does the next
//! one. An empty value ends what an earlier command named. A file that cannot be read is refused where it is named; later, when
//! nobody names it, only what the cluster cannot do without keeps it from starting.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apiserver::TracingConfiguration;

use crate::options::Options;
use crate::path_value::{is_read_once, named, readable, whole};
use crate::progress;
use crate::shape::Flags;

const TRACING: &str = "--tracing-config-file";
pub(crate) const REGISTRIES: &str = "--registries";
pub(crate) const ETCD_BINARY: &str = "--etcd-binary";

/// What a flag names.
#[derive(Clone, Copy)]
enum Names {
    /// A file without which the cluster does not run.
    Needed,
    /// A file without which this happens.
    Optional(&'static str),
    /// A directory, which is made where there is none.
    Directory,
}

struct PathFlag<'a> {
    flag: &'static str,
    names: Names,
    /// Whether the other flags make use of it.
    is_used: bool,
    path: &'a mut Option<PathBuf>,
}

impl PathFlag<'_> {
    /// The path, if there is one.
    fn given(&self) -> Option<&Path> {
        named(self.path)
    }

    /// What is wrong with the file, if anything is.
    fn check(&self) -> Result<()> {
        let Some(path) = self.given() else { return Ok(()) };
        let checked = match (self.names, self.flag) {
            (Names::Directory, _) => return Ok(()),
            (_, TRACING) if !is_read_once(path) => {
                TracingConfiguration::load(path).map(drop).map_err(anyhow::Error::from)
            }
            _ => readable(path).map_err(anyhow::Error::from),
        };
        checked.with_context(|| format!("{}={}", self.flag, path.display()))
    }
}

impl Flags {
    fn paths(&mut self) -> [PathFlag<'_>; 10] {
        use Names::{Directory, Needed, Optional};
        let Flags { machine, etcd, ha, backups, remote_write, tracing_config_file, .. } = self;
        let has_etcd = etcd.is_used() && !ha.ha;
        let has_bucket = backups.s3.backup_s3_endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_empty());
        let no_backups = Optional("the store is not backed up");
        [
            (REGISTRIES, Optional("there are no mirrors and credentials of registries"), true, &mut machine.registries),
            ("--etcd-cafile", Needed, has_etcd, &mut etcd.etcd_cafile),
            ("--etcd-certfile", Needed, has_etcd, &mut etcd.etcd_certfile),
            ("--etcd-keyfile", Needed, has_etcd, &mut etcd.etcd_keyfile),
            (ETCD_BINARY, Needed, ha.ha, &mut ha.etcd_binary),
            ("--backup-dir", Directory, true, &mut backups.backup_dir),
            ("--backup-s3-credentials", no_backups, has_bucket, &mut backups.s3.backup_s3_credentials),
            ("--backup-s3-ca", no_backups, has_bucket, &mut backups.s3.backup_s3_ca),
            (TRACING, Optional("no traces are exported"), true, tracing_config_file),
            (
                "--history-remote-write-config-file",
                Optional("the history of metrics goes nowhere else"),
                true,
                &mut remote_write.history_remote_write_config_file,
            ),
        ]
        .map(|(flag, names, is_used, path)| PathFlag { flag, names, is_used, path })
    }

    /// Makes the paths absolute. An empty one stays empty: it says that there is none.
    pub(crate) fn make_paths_whole(&mut self) -> Result<()> {
        for flag in self.paths() {
            if let Some(given) = flag.given() {
                let path = whole(given)?;
                *flag.path = Some(path);
            }
        }
        Ok(())
    }

    /// What an empty value has ended was never named.
    pub(crate) fn drop_empty_paths(&mut self) {
        for flag in self.paths() {
            if flag.given().is_none() {
                *flag.path = None;
            }
        }
    }

    /// The words of a command with these flags, for a process that runs elsewhere.
    pub(crate) fn with_whole_paths(mut self, mut words: Vec<OsString>) -> Result<Vec<OsString>> {
        self.make_paths_whole()?;
        for PathFlag { flag, path, .. } in self.paths() {
            if let Some(path) = path.take() {
                words = without(words, flag);
                words.push(joined(flag, path));
            }
        }
        Ok(words)
    }

    /// For whoever names the files just now.
    pub(crate) fn refuse_unreadable(&self) -> Result<()> {
        self.clone().paths().iter().try_for_each(PathFlag::check)
    }

    /// For a cluster that starts again: what was named once may be gone.
    pub(crate) fn check_files(&self) -> Result<()> {
        for flag in self.clone().paths().into_iter().filter(|flag| flag.is_used) {
            let (Err(error), name) = (flag.check(), flag.flag) else { continue };
            match flag.names {
                Names::Optional(missing) => {
                    progress::note(&format!("{error:#}: {missing}; '{name}=' ends the use of this file"));
                    tracing::warn!("{error:#}: {missing}");
                }
                Names::Needed | Names::Directory => {
                    return Err(error.context(format!(
                        "a file that an earlier command named: bring it back, name another one with {name}, or none with '{name}='"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The words of a command with the directories of the cluster, for a process that runs elsewhere.
pub(crate) fn with_whole_dirs(options: &Options, mut words: Vec<OsString>) -> Result<Vec<OsString>> {
    for (flag, dir) in [("--data-dir", &options.data_dir), ("--run-dir", &options.run_dir)] {
        if dir.is_relative() {
            words = without(words, flag);
            words.push(joined(flag, whole(dir)?));
        }
    }
    Ok(words)
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

    /// As a command line says them.
    fn parsed(words: &[&str]) -> Flags {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: Flags,
        }
        <Line as clap::Parser>::parse_from([&["cox"][..], words].concat()).flags
    }

    #[test]
    fn paths_lead_to_the_same_file_from_anywhere() {
        let here = |name: &str| std::env::current_dir().unwrap().join(name);
        let mut relative = flags(Some("t.yaml"), Some("w.yaml"));
        relative.machine.registries = Some("r.yaml".into());
        relative.backups.backup_dir = Some("b".into());
        relative.make_paths_whole().unwrap();
        assert_eq!(relative.tracing_config_file, Some(here("t.yaml")));
        assert_eq!(relative.remote_write.history_remote_write_config_file, Some(here("w.yaml")));
        assert_eq!((relative.machine.registries, relative.backups.backup_dir), (Some(here("r.yaml")), Some(here("b"))));
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

        let options = |dir: &str| Options { data_dir: dir.into(), run_dir: "/run/cox".into(), name: "cox".into() };
        assert_eq!(with_whole_dirs(&options("/d"), given.clone()).unwrap(), given);
        let found = with_whole_dirs(&options("d"), words(&["up", "--data-dir", "d", "--nodes=2"])).unwrap();
        let here = std::env::current_dir().unwrap().join("d");
        assert_eq!(found, words(&["up", "--nodes=2", &format!("--data-dir={}", here.display())]));
    }

    #[test]
    fn an_empty_value_ends_what_was_named() {
        const FLAGS: [&str; 6] =
            [REGISTRIES, "--backup-dir", "--backup-s3-credentials", "--backup-s3-ca", TRACING, ETCD_BINARY];
        let parsed = |value: &str| {
            let words = FLAGS.map(|flag| format!("{flag}={value}"));
            parsed(&words.each_ref().map(String::as_str))
        };
        let mut ended = parsed("").over(parsed("/f")).unwrap();
        ended.drop_empty_paths();
        assert_eq!(ended, Flags::default());
        assert_eq!(Flags::default().over(parsed("/f")).unwrap(), parsed("/f"));
    }

    #[test]
    fn files_that_cannot_be_read_are_told_by_their_flags() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        let path = file.to_str().unwrap();
        let etcd = ["--etcd-servers=https://192.0.2.1:2379", "--etcd-cafile"].map(str::to_owned);
        for (words, is_needed) in [
            (vec![etcd[0].clone(), format!("{}={path}", etcd[1])], true),
            (vec!["--ha".to_owned(), format!("{ETCD_BINARY}={path}")], true),
            (vec![format!("{REGISTRIES}={path}")], false),
            (vec![format!("{TRACING}={path}")], false),
            (vec![format!("--history-remote-write-config-file={path}")], false),
            (vec!["--backup-s3-endpoint=https://h".to_owned(), format!("--backup-s3-credentials={path}")], false),
        ] {
            let flags = parsed(&words.iter().map(String::as_str).collect::<Vec<_>>());
            let flag = words.last().unwrap().split('=').next().unwrap();
            let refused = format!("{:#}", flags.refuse_unreadable().unwrap_err());
            assert!(refused.starts_with(&format!("{flag}={path}: ")), "{refused}");
            match flags.check_files() {
                Ok(()) => assert!(!is_needed, "{flag}"),
                Err(error) => {
                    let error = format!("{error:#}");
                    assert!(is_needed && error.contains(path) && error.contains(&format!("'{flag}='")), "{error}");
                }
            }
        }
        // Named for what is not used any more.
        parsed(&[&format!("--backup-s3-ca={path}")]).check_files().unwrap();
        std::fs::write(&file, "").unwrap();
        parsed(&[&format!("{REGISTRIES}={path}")]).refuse_unreadable().unwrap();
        let undecoded = parsed(&[&format!("{TRACING}={path}")]).refuse_unreadable().unwrap_err();
        assert!(format!("{undecoded:#}").contains("failed to read tracing config"), "{undecoded:#}");
        let of_dir = parsed(&[&format!("{REGISTRIES}={}", dir.path().display())]).refuse_unreadable().unwrap_err();
        assert!(format!("{of_dir:#}").contains("directory"), "{of_dir:#}");
        Flags::default().refuse_unreadable().unwrap();
    }

    #[test]
    fn what_comes_through_a_pipe_is_left_to_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Reading the one finds nothing, and reading the other ends when somebody has written.
        for path in ["/dev/null", pipe.to_str().unwrap()] {
            let flags = parsed(&[&format!("{TRACING}={path}")]);
            flags.refuse_unreadable().unwrap();
            flags.check_files().unwrap();
        }
    }
}
