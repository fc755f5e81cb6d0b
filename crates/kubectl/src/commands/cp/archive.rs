//! The local end of a copy: files into a tar stream and out of one, on a thread of their own, a chunk at a time.

use std::cell::Cell;
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use api::sort::CompactSort as _;
use tokio::sync::mpsc;

/// Chunks on their way; a slow other end holds them up.
const CHUNKS: usize = 8;
/// What an archive says of an entry, a long name above all, which is held in memory (Go's `maxSpecialFileSize`).
const MAX_HEADERS: u64 = 1 << 20;

pub(super) fn pipe() -> (Sender, Receiver) {
    let (sender, receiver) = mpsc::channel(CHUNKS);
    (Sender(sender), Receiver { chunks: receiver, rest: Vec::new(), at: 0 })
}

pub(super) struct Sender(mpsc::Sender<Vec<u8>>);

pub(super) struct Receiver {
    chunks: mpsc::Receiver<Vec<u8>>,
    rest: Vec<u8>,
    at: usize,
}

impl Sender {
    /// False when nobody reads any more.
    pub(super) async fn send(&self, chunk: Vec<u8>) -> bool {
        self.0.send(chunk).await.is_ok()
    }
}

impl Receiver {
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        self.chunks.recv().await
    }
}

impl Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.blocking_send(bytes.to_vec()).map_err(|_| std::io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Read for Receiver {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.rest.len() {
            let Some(chunk) = self.chunks.blocking_recv() else { return Ok(0) };
            (self.rest, self.at) = (chunk, 0);
        }
        let n = buffer.len().min(self.rest.len() - self.at);
        buffer[..n].copy_from_slice(&self.rest[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

/// Writes a file, or all that is in a directory, under another name. Links stay links.
pub(super) fn pack(from: &Path, name: &str, to: Sender) -> std::io::Result<()> {
    // The format's own blocks are small.
    let mut builder = tar::Builder::new(std::io::BufWriter::with_capacity(32 << 10, to));
    builder.follow_symlinks(false);
    add(from, Path::new(name), &mut builder)?;
    builder.into_inner()?.flush()
}

/// A directory that has something in it is not written itself: unpacked, it would change the one that is there.
fn add(from: &Path, name: &Path, builder: &mut tar::Builder<impl Write>) -> std::io::Result<()> {
    if !from.symlink_metadata()?.is_dir() {
        return builder.append_path_with_name(from, name);
    }
    let mut entries = std::fs::read_dir(from)?.map(|e| e.map(|e| e.file_name())).collect::<Result<Vec<_>, _>>()?;
    if entries.is_empty() {
        return builder.append_dir(name, from);
    }
    entries.compact_sort();
    entries.iter().try_for_each(|entry| add(&from.join(entry), &name.join(entry), builder))
}

/// What unpacking has to say besides errors: texts for stderr.
pub(super) type Warnings = Vec<String>;

/// Why an archive is not unpacked to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnpackError {
    #[error("{0}")]
    Archive(#[from] std::io::Error),
    #[error("tar contents corrupted")]
    Corrupted,
    #[error("{}", crate::go_errors::go_io_error("open", &.target.display().to_string(), .source))]
    Place { target: PathBuf, source: std::io::Error },
}

/// Takes files out of an archive whose names all begin with `prefix`, which becomes `to`. A container is not trusted:
/// nothing is written outside of `to`, and links are left out.
pub(super) fn unpack(from: Receiver, prefix: &str, to: &Path, advice: &str) -> Result<Warnings, UnpackError> {
    let mut warnings = Warnings::new();
    let left = Rc::new(Cell::new(MAX_HEADERS));
    let mut archive = tar::Archive::new(Bounded { from, left: left.clone() });
    for entry in archive.entries()? {
        let mut entry = entry?;
        left.set(u64::MAX);
        take(&mut entry, prefix, to, advice, &mut warnings)?;
        // What was not taken of it is not part of the next one's headers.
        std::io::copy(&mut entry, &mut std::io::sink())?;
        left.set(MAX_HEADERS);
    }
    Ok(warnings)
}

/// Gives no more than is left.
struct Bounded {
    from: Receiver,
    left: Rc<Cell<u64>>,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.left.get()).map_or(buffer.len(), |left| left.min(buffer.len()));
        if most == 0 && !buffer.is_empty() {
            return Err(std::io::Error::other("archive/tar: header field too long"));
        }
        let read = self.from.read(&mut buffer[..most])?;
        self.left.set(self.left.get() - read as u64);
        Ok(read)
    }
}

fn take(
    entry: &mut tar::Entry<'_, Bounded>,
    prefix: &str,
    to: &Path,
    advice: &str,
    warnings: &mut Warnings,
) -> Result<(), UnpackError> {
    let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    let rest = name.strip_prefix(prefix).ok_or(UnpackError::Corrupted)?;
    let Some(target) = below(to, rest) else {
        warnings.push(format!(
            "warning: file {:?} is outside target destination, skipping",
            to.join(rest.trim_start_matches('/'))
        ));
        return Ok(());
    };
    let kind = entry.header().entry_type();
    if kind.is_symlink() {
        let link = entry.link_name_bytes().map(|l| String::from_utf8_lossy(&l).into_owned()).unwrap_or_default();
        let hint = if warnings.is_empty() { advice } else { "" };
        warnings.push(format!("warning: skipping symlink: {:?} -> {link:?}{hint}", target));
        return Ok(());
    }
    place(&target, kind, entry).map_err(|source| UnpackError::Place { target, source })
}

fn place(target: &Path, kind: tar::EntryType, content: &mut impl Read) -> std::io::Result<()> {
    if kind.is_dir() {
        return std::fs::create_dir_all(target);
    }
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::io::copy(content, &mut std::fs::File::create(target)?).map(|_| ())
}

/// `rest` below `to`; none if it leads out of it.
fn below(to: &Path, rest: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for component in Path::new(rest.trim_start_matches('/')).components() {
        match component {
            Component::Normal(word) => path.push(word),
            Component::ParentDir => path = path.pop().then_some(path)?,
            _ => {}
        }
    }
    Some(if path.as_os_str().is_empty() { to.to_owned() } else { to.join(path) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(from: &Path, name: &str) -> Receiver {
        let (sender, receiver) = pipe();
        let (from, name) = (from.to_owned(), name.to_owned());
        std::thread::spawn(move || pack(&from, &name, sender).unwrap());
        receiver
    }

    #[test]
    fn a_tree_arrives_without_its_links() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        std::fs::create_dir_all(from.join("deep/empty")).unwrap();
        let large = vec![7; 100_000];
        std::fs::write(from.join("deep/large"), &large).unwrap();
        std::fs::write(from.join("small"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", from.join("link")).unwrap();
        let to = dir.path().join("to");
        let warnings = unpack(packed(&from, "b"), "b", &to, " (advice)").unwrap();
        assert_eq!(std::fs::read(to.join("deep/large")).unwrap(), large);
        assert_eq!(std::fs::read_to_string(to.join("small")).unwrap(), "x");
        assert!(to.join("deep/empty").is_dir() && !to.join("link").exists());
        let link = to.join("link");
        assert_eq!(warnings, [format!("warning: skipping symlink: {link:?} -> \"/etc/passwd\" (advice)")]);
    }

    #[test]
    fn a_file_takes_the_new_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "content").unwrap();
        let to = dir.path().join("new/name");
        assert_eq!(unpack(packed(&dir.path().join("a"), "tmp/a"), "tmp/a", &to, "").unwrap(), Warnings::new());
        assert_eq!(std::fs::read_to_string(to).unwrap(), "content");
        let other = unpack(packed(&dir.path().join("a"), "etc/a"), "tmp/a", &dir.path().join("x"), "");
        assert_eq!(other.unwrap_err().to_string(), "tar contents corrupted");
    }

    #[test]
    fn security_names_in_an_archive_have_an_end() {
        const CHUNK: usize = 64 << 10;
        let (mut sender, receiver) = pipe();
        let sending = std::thread::spawn(move || {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::GNULongName);
            header.set_size(1 << 40);
            header.set_cksum();
            sender.write_all(header.as_bytes()).unwrap();
            (0..256).take_while(|_| sender.write_all(&[b'a'; CHUNK]).is_ok()).count()
        });
        let dir = tempfile::tempdir().unwrap();
        let error = unpack(receiver, "a", dir.path(), "").unwrap_err();
        assert_eq!(error.to_string(), "archive/tar: header field too long");
        let most = MAX_HEADERS as usize / CHUNK + 2 * CHUNKS;
        assert!(sending.join().unwrap() <= most, "all of it was read");
    }

    #[test]
    fn nothing_leads_out() {
        let to = Path::new("/to");
        for (rest, expected) in [
            ("", Some("/to")),
            ("/a/b", Some("/to/a/b")),
            ("/a/../b", Some("/to/b")),
            ("/../b", None),
            ("/a/../../b", None),
            ("//etc/passwd", Some("/to/etc/passwd")),
        ] {
            assert_eq!(below(to, rest), expected.map(PathBuf::from), "{rest}");
        }
    }
}
