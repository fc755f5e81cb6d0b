//! `cox store`: examine, salvage, copy and restore the directory of an embedded store.

use crate::embedded::{self, GoOn, Imported, Report, USUALLY_LATER};
use crate::transfer::LEASE_TTL;
use crate::{Contents, Revision, foreign};
use clap::Subcommand;
use futures_util::future::BoxFuture;
use std::path::{Path, PathBuf};

/// Where an etcd has the objects of a cluster.
const ROOT: &str = "/registry/";
/// Nobody has written so much.
const MAX_LATER: u64 = 1 << 40;

/// What can be done with a store.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Read every byte and say whether the store can be opened; changes nothing, works while it is in use
    Check {
        /// The store's directory
        dir: PathBuf,
    },
    /// Salvage what can be read of a damaged store that is not in use; the damaged files are kept beside it
    Repair {
        /// The store's directory
        dir: PathBuf,
    },
    /// Copy a consistent state into one file, also while the store is in use
    Backup {
        /// The store's directory
        dir: PathBuf,
        /// The file to write; it must not exist
        file: PathBuf,
    },
    /// Make a store from a backup, or from a snapshot of an etcd that has the objects below /registry
    Restore {
        /// The backup, or the snapshot
        file: PathBuf,
        /// The directory to make; it must not hold a store
        dir: PathBuf,
        /// How many revisions to skip: more than were given since the file was written, because clients may have seen those
        #[arg(long, value_name = "COUNT", default_value_t = USUALLY_LATER, value_parser = clap::value_parser!(u64).range(..=MAX_LATER))]
        bump_revision: u64,
    },
}

pub fn main(command: Command) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(command))
}

async fn run_main(command: Command) -> anyhow::Result<()> {
    let lines = tokio::task::spawn_blocking(move || run(command)).await??;
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

fn run(command: Command) -> Result<Vec<String>, crate::StoreError> {
    Ok(match command {
        Command::Check { dir } => describe(&embedded::check(&dir)?),
        Command::Repair { dir } => {
            let done = embedded::repair(&dir)?;
            let mut lines: Vec<_> = done.lost.iter().map(|what| format!("lost: {what}")).collect();
            lines.extend(done.set_aside.iter().map(|file| format!("kept: {}", file.display())));
            if lines.is_empty() {
                lines.push("nothing to repair".into());
            }
            lines.extend(describe(&done.report));
            lines
        }
        Command::Backup { dir, file } => {
            let (revision, size) = embedded::backup(&dir, &file)?;
            vec![format!("{}: revision {revision}, {size} bytes", file.display())]
        }
        Command::Restore { file, dir, bump_revision } => describe(&restore(&file, &dir, bump_revision)?),
    })
}

fn restore(file: &Path, dir: &Path, later: u64) -> Result<Report, crate::StoreError> {
    if !foreign::is_etcd_database(file)? {
        return embedded::restore(file, dir, GoOn::Later(later));
    }
    let Contents { kvs, revision } = foreign::read_etcd_snapshot(file, ROOT)?;
    if kvs.is_empty() {
        let message = format!("{} has no objects below {ROOT}: is it a snapshot of a cluster?", file.display());
        return Err(crate::StoreError::Invalid(message));
    }
    embedded::import(dir, Imported { kvs, revision: Revision(revision.0 + later), lease_time: LEASE_TTL })
}

fn describe(report: &Report) -> Vec<String> {
    let mut lines: Vec<_> = report.files.iter().map(|(file, len)| format!("{}: {len} bytes", file.display())).collect();
    if let Some(torn) = &report.torn {
        let place = torn.file.display();
        lines.push(format!("{place}: an unfinished write at byte {} will be cut when the store opens", torn.offset));
    }
    let Report { revision, compacted, keys, leases, .. } = report;
    lines.push(format!("ok: revision {revision}, {keys} keys, {leases} leases, history from revision {compacted}"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::Options;
    use crate::{EmbeddedStore, Store};
    use std::sync::Arc;

    #[derive(clap::Parser)]
    struct Args {
        #[command(subcommand)]
        command: Command,
    }

    #[tokio::test]
    async fn commands_say_what_they_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(path("a"), Options::default()).unwrap());
        store.put("/k", "v").await.unwrap();
        let command = |words: &[&str]| {
            let words =
                std::iter::once("store".to_owned()).chain(words.iter().map(|word| match word.strip_prefix('@') {
                    Some(name) => path(name),
                    None => word.to_string(),
                }));
            let args = <Args as clap::Parser>::try_parse_from(words).unwrap();
            run(args.command).map(|lines| lines.join("\n")).map_err(|error| error.to_string())
        };
        // In use: reading is fine, repairing is not.
        assert!(
            command(&["check", "@a"]).unwrap().ends_with("ok: revision 2, 1 keys, 0 leases, history from revision 0")
        );
        assert!(command(&["backup", "@a", "@copy"]).unwrap().contains("copy: revision 2, "));
        assert!(command(&["repair", "@a"]).unwrap_err().contains("is in use by process"));
        drop(store);
        assert!(command(&["repair", "@a"]).unwrap().starts_with("nothing to repair"));
        assert!(command(&["restore", "@copy", "@b"]).unwrap().contains("ok: revision 1000002, 1 keys"));
        let same = command(&["restore", "--bump-revision=0", "@copy", "@same"]).unwrap();
        assert!(same.ends_with("ok: revision 2, 1 keys, 0 leases, history from revision 0"), "{same}");
        assert!(command(&["restore", "@copy", "@b"]).unwrap_err().ends_with("already holds a store"));
        // Compacted history is gone from the files, and the store goes on.
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(path("b"), Options::default()).unwrap());
        store.put("/k", "another value").await.unwrap();
        store.put("/k", "the last value").await.unwrap();
        let last = store.put("/other", "v").await.unwrap();
        store.compact(last).await.unwrap();
        assert!(crate::embedded::condense(path("b").as_ref()).is_err(), "it is in use");
        drop(store);
        let report = crate::embedded::condense(path("b").as_ref()).unwrap();
        assert_eq!((report.revision, report.keys, report.files.len()), (last, 2, 1));
        for entry in std::fs::read_dir(path("b")).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            assert!(!bytes.windows(7).any(|window| window == b"another"));
        }
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(path("b"), Options::default()).unwrap());
        assert_eq!(store.get("/k").await.unwrap().unwrap().value, "the last value");
        assert_eq!(store.put("/k", "v").await.unwrap(), last.next());
        drop(store);
        assert!(command(&["check", "@nowhere"]).unwrap_err().contains("nowhere: No such file"));
    }
}
