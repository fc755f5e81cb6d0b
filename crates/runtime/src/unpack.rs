//! A layer's tarball becomes a directory that overlayfs can use.
//!
//! Layers come from strangers. Every path is resolved below the layer's own directory, entries are made with calls that
//! follow no link in their last part, and `..` is refused, so a layer can only ever write into itself. How much it may bring
//! is in [`crate::bounds`].

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::bounds::{Allowance, Bounded, Bounds, too_large};
use crate::rooted::{Resolve, Rooted};
use crate::sys;

/// A layer to be unpacked by a process of its own.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) blob: PathBuf,
    pub(crate) target: PathBuf,
    /// What the process may have, in bytes.
    pub(crate) memory: u64,
}

impl Request {
    /// Room for the largest window of zstd's that we read, and for the names of some hundred thousand directories.
    pub(crate) const MEMORY: u64 = 512 << 20;

    /// Unpacks it in this process, which has no other work. A panic is a refusal like any other.
    pub(crate) fn run(&self) -> Outcome {
        let work = || sys::limit_memory(self.memory).and_then(|()| unpack(&self.blob, &self.target));
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
            Ok(Ok(digest)) => Outcome::Unpacked { digest },
            Ok(Err(error)) => Outcome::Refused { why: error.to_string() },
            Err(_) => Outcome::Refused { why: "the layer is refused: it cannot be read".to_owned() },
        }
    }
}

/// What became of it, as the process says to whoever asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The digest is that of the uncompressed tarball.
    Unpacked {
        digest: String,
    },
    Refused {
        why: String,
    },
}

/// Unpacks the blob (plain, gzip or zstd, whatever its first bytes say) into `target`, which must be an empty directory.
/// Returns the digest of the uncompressed tarball.
pub(crate) fn unpack(blob: &Path, target: &Path) -> io::Result<String> {
    unpack_within(blob, target, Bounds::LAYER)
}

fn unpack_within(blob: &Path, target: &Path, bounds: Bounds) -> io::Result<String> {
    let mut file = File::open(blob)?;
    let mut magic = [0u8; 4];
    let n = file.read(&mut magic)?;
    io::Seek::rewind(&mut file)?;
    let file = io::BufReader::with_capacity(1 << 18, file);
    let reader: Box<dyn Read> = match &magic[..n] {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::with_buffer(file)?),
        _ => Box::new(file),
    };
    let allowance = Allowance::new(bounds);
    let mut hashing = Hashing { reader: Bounded { reader, allowance: allowance.clone() }, hash: Sha256::new() };
    apply(&mut hashing, target, bounds, &allowance)?;
    // What follows the end-of-archive mark belongs to the digest too.
    io::copy(&mut hashing, &mut io::sink())?;
    Ok(format!("sha256:{}", api::hex::encode(hashing.hash.finalize())))
}

struct Hashing<R> {
    reader: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        self.hash.update(&buffer[..n]);
        Ok(n)
    }
}

fn apply(reader: &mut impl Read, target: &Path, bounds: Bounds, allowance: &Allowance) -> io::Result<()> {
    let root = Rooted::open(target)?;
    let mut archive = tar::Archive::new(reader);
    // Directories get their times at the end: every entry made inside changes them.
    let mut directories: BTreeMap<String, i64> = BTreeMap::new();
    let mut names = 0;
    let mut content = bounds.bytes;
    let mut entries = archive.entries()?;
    let mut count = 0;
    while let Some(entry) = allowance.headers(|| entries.next()) {
        let mut entry = entry?;
        count += 1;
        if count > bounds.entries {
            return Err(too_large("it has too many entries"));
        }
        // Files with holes are larger than what the tarball has of them.
        content = content.checked_sub(entry.size()).ok_or_else(|| too_large("it unpacks to too much"))?;
        let path = entry.path_bytes().into_owned();
        if path.len() > libc::PATH_MAX as usize {
            return Err(too_large("a path is too long"));
        }
        let path = relative(&path)?;
        if entry.header().entry_type().is_dir() {
            names += path.len();
            if names > bounds.directories {
                return Err(too_large("it has too many directories"));
            }
        }
        apply_entry(&root, &mut entry, &path, &mut directories)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
        // What is left of it must not count as headers of the next.
        io::copy(&mut entry, &mut io::sink())?;
    }
    for (path, time) in directories.iter().rev() {
        let fd = root.lookup(path, Resolve::NO_SYMLINKS);
        if let Ok(fd) = fd {
            // A directory that a later entry replaced keeps that entry's time.
            let _ = sys::set_times_at(fd.as_fd(), c".", *time);
        }
    }
    Ok(())
}

/// Without leading slashes and dots; `..` is refused.
fn relative(path: &[u8]) -> io::Result<String> {
    let refused = || io::Error::new(io::ErrorKind::InvalidData, "layer entry with a path outside of it");
    let mut parts = Vec::new();
    for component in Path::new(std::ffi::OsStr::from_bytes(path)).components() {
        match component {
            Component::Normal(name) => parts.push(name.to_str().ok_or_else(refused)?),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(refused()),
        }
    }
    Ok(parts.join("/"))
}

/// The directory that will hold `path`, and the last part of it.
fn place(root: &Rooted, path: &str) -> io::Result<(OwnedFd, CString)> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((root.ensure(parent, true, Resolve::IN_ROOT)?, CString::new(name)?))
}

fn apply_entry<R: Read>(
    root: &Rooted,
    entry: &mut tar::Entry<'_, R>,
    path: &str,
    directories: &mut BTreeMap<String, i64>,
) -> io::Result<()> {
    let kind = entry.header().entry_type();
    if kind.is_pax_global_extensions() {
        return Ok(());
    }
    let (mode, time) = (entry.header().mode()? & 0o7777, entry.header().mtime()? as i64);
    let (uid, gid) = (entry.header().uid()? as u32, entry.header().gid()? as u32);
    if path.is_empty() {
        let fd = root.lookup("", Resolve::NO_SYMLINKS)?;
        sys::chown_at(fd.as_fd(), c".", uid, gid)?;
        sys::chmod_at(fd.as_fd(), c".", mode)?;
        directories.insert(String::new(), time);
        return Ok(());
    }
    let (parent, name) = place(root, path)?;
    let dir = parent.as_fd();
    if let Some(hidden) = name.to_bytes().strip_prefix(b".wh.") {
        return whiteout(&parent, hidden);
    }
    match kind {
        tar::EntryType::Directory => match sys::mkdir_at(dir, &name, 0o700) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if open_directory(&parent, &name).is_err() {
                    clear(&parent, &name)?;
                    sys::mkdir_at(dir, &name, 0o700)?;
                }
            }
            result => result?,
        },
        tar::EntryType::Symlink => {
            let target = entry.link_name_bytes().ok_or(io::ErrorKind::InvalidData)?.into_owned();
            clear(&parent, &name)?;
            sys::symlink_at(&CString::new(target)?, dir, &name)?;
        }
        tar::EntryType::Link => {
            let target = entry.link_name_bytes().ok_or(io::ErrorKind::InvalidData)?.into_owned();
            let (from_parent, from) = place(root, &relative(&target)?)?;
            clear(&parent, &name)?;
            // The other name of the same file: its owner, mode and times are set already.
            return sys::link_at(from_parent.as_fd(), &from, dir, &name);
        }
        tar::EntryType::Char | tar::EntryType::Block | tar::EntryType::Fifo => {
            let format = match kind {
                tar::EntryType::Char => libc::S_IFCHR,
                tar::EntryType::Block => libc::S_IFBLK,
                _ => libc::S_IFIFO,
            };
            let device =
                libc::makedev(entry.header().device_major()?.unwrap_or(0), entry.header().device_minor()?.unwrap_or(0));
            clear(&parent, &name)?;
            sys::mknod_at(dir, &name, format | 0o600, device)?;
        }
        _ => {
            clear(&parent, &name)?;
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_NOFOLLOW;
            let mut file = File::from(sys::open_at(dir, &name, flags, 0o600)?);
            io::copy(entry, &mut file)?;
            file.flush()?;
        }
    }
    // Changing the owner clears set-id bits and capabilities: first owner, then mode, then attributes.
    sys::chown_at(dir, &name, uid, gid)?;
    if kind != tar::EntryType::Symlink {
        sys::chmod_at(dir, &name, mode)?;
    }
    set_attributes(entry, &parent, &name)?;
    match kind {
        tar::EntryType::Directory => drop(directories.insert(path.to_string(), time)),
        _ => sys::set_times_at(dir, &name, time)?,
    }
    Ok(())
}

/// `.wh.name` hides `name` of the layers below, `.wh..wh..opq` hides all that its directory has there.
fn whiteout(parent: &OwnedFd, hidden: &[u8]) -> io::Result<()> {
    if hidden == b".wh..opq" {
        let path = CString::new(format!("/proc/self/fd/{}/.", parent.as_raw_fd()))?;
        return sys::set_xattr(&path, c"trusted.overlay.opaque", b"y");
    }
    let name = CString::new(hidden)?;
    if name.is_empty() || name.as_bytes() == b"." || name.as_bytes() == b".." {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "bad whiteout"));
    }
    match sys::mknod_at(parent.as_fd(), &name, libc::S_IFCHR, 0) {
        // The layer hides the old entry and brings its own: that one hides it already.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

fn open_directory(parent: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    sys::open_at(parent.as_fd(), name, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)
}

/// Takes away what an earlier entry of the same layer left at this place.
fn clear(parent: &OwnedFd, name: &CStr) -> io::Result<()> {
    match sys::unlink_at(parent.as_fd(), name, 0) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) => {
            let path = format!("/proc/self/fd/{}/{}", parent.as_raw_fd(), name.to_string_lossy());
            // Removes entries without following links.
            files::remove_tree(Path::new(&path))
        }
        Err(error) => Err(error),
    }
}

fn set_attributes<R: Read>(entry: &mut tar::Entry<'_, R>, parent: &OwnedFd, name: &CStr) -> io::Result<()> {
    let Some(extensions) = entry.pax_extensions()? else { return Ok(()) };
    let path = CString::new([format!("/proc/self/fd/{}/", parent.as_raw_fd()).as_bytes(), name.to_bytes()].concat())?;
    for extension in extensions {
        let extension = extension?;
        let Some(attribute) = extension.key_bytes().strip_prefix(b"SCHILY.xattr.") else { continue };
        // Overlay's own attributes decide what is visible: they are ours to write, never a layer's.
        if attribute.starts_with(b"trusted.overlay.") || attribute.starts_with(b"user.overlay.") {
            continue;
        }
        match sys::set_xattr(&path, &CString::new(attribute)?, extension.value_bytes()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTSUP) => {}
            result => result?,
        }
    }
    Ok(())
}

/// A layer of any size in memory, unpacked in a directory that is empty: nothing of it is outside of its own place.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_layer(data: &[u8], directory: &Path) {
    let (blob, target) = (directory.join("blob"), directory.join("layer"));
    let written = std::fs::create_dir(&target).and_then(|()| std::fs::write(&blob, data));
    assert!(written.is_ok(), "{written:?}");
    let _ = unpack_within(&blob, &target, SMALL);
    assert_eq!(std::fs::read_dir(directory).map(Iterator::count).ok(), Some(2));
    assert!(std::fs::read(&blob).is_ok_and(|now| now == data));
}

#[cfg(any(test, feature = "fuzzing"))]
const SMALL: Bounds = Bounds { entries: 20, headers: 64 << 10, directories: 1000, bytes: 8 << 20 };

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: tar::EntryType, name: &str, size: usize) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path(name).unwrap();
        header.set_size(size as u64);
        header.set_mode(0o755);
        // Whoever runs the test may give files to themselves.
        header.set_uid(u64::from(own_ids().0));
        header.set_gid(u64::from(own_ids().1));
        header.set_mtime(1);
        header.set_cksum();
        header
    }

    fn own_ids() -> (u32, u32) {
        use std::os::unix::fs::MetadataExt;
        let own = std::fs::metadata("/proc/self").unwrap();
        (own.uid(), own.gid())
    }

    /// Unpacks a tarball of these entries.
    fn unpacked(entries: &[(tar::Header, Vec<u8>)]) -> io::Result<usize> {
        let directory = tempfile::tempdir().unwrap();
        let (blob, target) = (directory.path().join("blob"), directory.path().join("layer"));
        std::fs::create_dir(&target).unwrap();
        let mut builder = tar::Builder::new(File::create(&blob).unwrap());
        for (header, content) in entries {
            builder.append(header, content.as_slice()).unwrap();
        }
        builder.into_inner().unwrap();
        unpack_within(&blob, &target, SMALL)?;
        Ok(std::fs::read_dir(&target).unwrap().count())
    }

    fn refusal(entries: &[(tar::Header, Vec<u8>)]) -> String {
        unpacked(entries).unwrap_err().to_string()
    }

    #[test]
    fn security_layers_are_bounded_in_all_that_they_say() {
        use tar::EntryType::{Directory, GNULongLink, GNULongName, GNUSparse, Regular, XHeader};
        let file = |name: &str, size: usize| (header(Regular, name, size), vec![b'x'; size]);
        for kind in [GNULongName, GNULongLink, XHeader] {
            let long = vec![(header(kind, "long", 1 << 20), vec![b'a'; 1 << 20]), file("f", 1)];
            let refused = refusal(&long);
            assert!(refused.contains("the headers of an entry are too long"), "{kind:?}: {refused}");
        }
        let path = vec![(header(GNULongName, "long", 5000), vec![b'a'; 5000]), file("f", 1)];
        assert!(refusal(&path).contains("a path is too long"));
        let many: Vec<_> = (0..21).map(|i| file(&format!("f{i}"), 0)).collect();
        assert!(refusal(&many).contains("too many entries"));
        let large: Vec<_> = (0..3).map(|i| file(&format!("f{i}"), 3 << 20)).collect();
        assert!(refusal(&large).contains("it unpacks to too much"));
        let directories: Vec<_> = (0..20).map(|i| (header(Directory, &format!("{:060}{i}", 0), 0), vec![])).collect();
        assert!(refusal(&directories).contains("too many directories"));
        // A hole of a terabyte: the real size stands at its own place in the header.
        let mut sparse = header(GNUSparse, "sparse", 0);
        if let Some(gnu) = sparse.as_gnu_mut() {
            gnu.realsize = *b"20000000000\0";
            gnu.sparse[0].offset = *b"20000000000\0";
            gnu.sparse[0].numbytes = *b"00000000000\0";
        }
        sparse.set_cksum();
        assert!(refusal(&[(sparse, vec![])]).contains("it unpacks to too much"));
        // What is left of an entry does not count as the next one's headers.
        let honest = vec![(header(Directory, "d", 100 << 10), vec![0; 100 << 10]), file("f", 200 << 10), file("g", 1)];
        assert_eq!(unpacked(&honest).unwrap(), 3);
    }
}
