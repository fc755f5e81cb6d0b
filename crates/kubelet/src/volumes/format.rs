//! File systems on block devices: made if nothing is on the device, checked, mounted, and grown with the device.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Output};

const DEFAULT_FS_TYPE: &str = "ext4";
/// What lies on a device. A pod may name any type, and with another one the kernel would never look at the device: `proc` shows the
/// node's processes and settings whatever it is mounted from, and other types run programs that are called like them.
const ON_DEVICES: [&str; 23] = [
    "auto", "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "gfs2", "hfsplus", "iso9660", "jfs",
    "msdos", "nilfs2", "ntfs", "ntfs3", "ocfs2", "reiserfs", "squashfs", "udf", "vfat", "xfs",
];

/// Upstream's steps (`SafeFormatAndMount`, v1.36): look, format or check, mount.
pub(super) fn mount(device: &Path, fs_type: &str, options: &[String], place: &Path) -> io::Result<()> {
    let fs_type = if fs_type.is_empty() { DEFAULT_FS_TYPE } else { fs_type };
    if !ON_DEVICES.contains(&fs_type) {
        return Err(io::Error::other(format!("invalid file system type {fs_type:?}: not one of a device")));
    }
    let is_read_only = options.iter().flat_map(|one| one.split(',')).any(|option| option == "ro");
    match format_of(device)? {
        None if is_read_only => {
            return Err(io::Error::other(format!(
                "cannot mount unformatted disk {} as we are manipulating it in read-only mode",
                device.display()
            )));
        }
        None => make(device, fs_type, place)?,
        Some(_) if !is_read_only => check(device)?,
        Some(_) => {}
    }
    let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
    options.push("defaults");
    let options = options.join(",");
    let output = run(Command::new("mount").args(["-t", fs_type, "-o", &options]).arg(device).arg(place))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "mount failed: {}\nMounting command: mount\nMounting arguments: -t {fs_type} -o {options} {} {}\nOutput: {}",
        ended(&output),
        device.display(),
        place.display(),
        said(&output)
    )))
}

/// Has the file system that is mounted from a device take all of it (`ResizeFs`, v1.36).
pub(super) fn grow(device: &Path, place: &Path) -> io::Result<()> {
    // What is made there later takes all of it.
    let Some(found) = format_of(device)? else { return Ok(()) };
    let (program, options, on): (&str, &[&str], &Path) = match found.as_str() {
        "ext3" | "ext4" => ("resize2fs", &[], device),
        "xfs" => ("xfs_growfs", &["-d"], place),
        "btrfs" => ("btrfs", &["filesystem", "resize", "max"], place),
        _ => {
            return Err(io::Error::other(format!(
                "ResizeFS.Resize - resize of format {found} is not supported for device {} mounted at {}",
                device.display(),
                place.display()
            )));
        }
    };
    let output = run(Command::new(program).args(options).arg(on))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "resize of device {} failed: {}. {program} output: {}",
        on.display(),
        ended(&output),
        said(&output)
    )))
}

/// What is on the device; none if nothing is.
fn format_of(device: &Path) -> io::Result<Option<String>> {
    let output = run(Command::new("blkid").args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"]).arg(device))?;
    match output.status.code() {
        Some(0) => Ok(parse_format(&String::from_utf8_lossy(&output.stdout))),
        // What blkid says of a device without anything that it knows, and of one that it could not read.
        Some(2) if output.stderr.is_empty() => {
            let read = File::open(device).and_then(read_ends);
            let failed = |error: io::Error| format!("failed to read disk {}: {error}", device.display());
            read.map(|()| None).map_err(|error| io::Error::new(error.kind(), failed(error)))
        }
        _ => Err(io::Error::other(format!(
            "failed to get disk format of disk {}: {}: {}",
            device.display(),
            ended(&output),
            said(&output)
        ))),
    }
}

/// Reads where file systems and partition tables leave their marks: nothing is empty that cannot be read.
fn read_ends(mut device: impl Read + Seek) -> io::Result<()> {
    const END: u64 = 1 << 20;
    let size = device.seek(SeekFrom::End(0))?;
    let length = size.min(END);
    let mut buffer = vec![0; length as usize];
    for start in [0, size - length] {
        device.seek(SeekFrom::Start(start))?;
        device.read_exact(&mut buffer)?;
    }
    Ok(())
}

fn parse_format(text: &str) -> Option<String> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).filter(|value| !value.is_empty());
    match (value("PTTYPE="), value("TYPE=")) {
        (Some(_), _) => Some("unknown data, probably partitions".to_owned()),
        (None, found) => found.map(str::to_owned),
    }
}

fn make(device: &Path, fs_type: &str, place: &Path) -> io::Result<()> {
    let force: &[&str] = match fs_type {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    let output = run(Command::new(format!("mkfs.{fs_type}")).args(force).arg(device))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "format of disk {:?} failed: type:({fs_type:?}) target:({:?}) options:(\"defaults\") errcode:({}) output:({}) ",
        device.display().to_string(),
        place.display().to_string(),
        ended(&output),
        said(&output)
    )))
}

fn check(device: &Path) -> io::Result<()> {
    /// Of fsck: errors are left that it could not correct.
    const UNCORRECTED: i32 = 4;
    let output = match run(Command::new("fsck").arg("-a").arg(device)) {
        Ok(output) => output,
        Err(error) => {
            tracing::warn!(%error, "a file system is not checked");
            return Ok(());
        }
    };
    match output.status.code() {
        Some(UNCORRECTED) => Err(io::Error::other(format!(
            "'fsck' found errors on device {} but could not correct them: {}",
            device.display(),
            said(&output)
        ))),
        _ => Ok(()),
    }
}

fn run(command: &mut Command) -> io::Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.output().map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))
}

/// In Go's words.
fn ended(output: &Output) -> String {
    match output.status.code() {
        Some(code) => format!("exit status {code}"),
        None => output.status.to_string(),
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_a_device() {
        for (text, expected) in [
            ("DEVNAME=/dev/loop0\nTYPE=ext4\n", Some("ext4")),
            ("DEVNAME=/dev/loop0\nPTTYPE=dos\n", Some("unknown data, probably partitions")),
            ("DEVNAME=/dev/loop0\nTYPE=x\nPTTYPE=gpt\n", Some("unknown data, probably partitions")),
            ("", None),
        ] {
            assert_eq!(parse_format(text).as_deref(), expected, "{text:?}");
        }
    }

    /// The device of an iSCSI volume is a pod's to choose, and so is the type: nothing of the node's is mounted in its place.
    #[test]
    fn security_only_file_systems_of_devices_are_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let (device, place) = (dir.path().join("missing"), dir.path().join("place"));
        for (fs_type, is_one) in [
            ("", true),
            ("ext4", true),
            ("xfs", true),
            ("proc", false),
            ("sysfs", false),
            ("devtmpfs", false),
            ("cgroup2", false),
            ("tmpfs", false),
            ("overlay", false),
            ("fuse", false),
            ("ext4 -o bind", false),
            ("../ext4", false),
        ] {
            let refused = mount(&device, fs_type, &[], &place).unwrap_err().to_string();
            assert_eq!(!refused.contains("invalid file system type"), is_one, "{fs_type}: {refused}");
        }
    }

    /// A device with a byte that cannot be read.
    struct Scratched {
        bytes: io::Cursor<Vec<u8>>,
        bad: u64,
    }

    impl Read for Scratched {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let start = self.bytes.position();
            let count = self.bytes.read(buffer)?;
            match (start..start + count as u64).contains(&self.bad) {
                true => Err(io::Error::other("Input/output error")),
                false => Ok(count),
            }
        }
    }

    impl Seek for Scratched {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.bytes.seek(to)
        }
    }

    #[test]
    fn security_what_cannot_be_read_is_not_empty() {
        let size: u64 = 3 << 20;
        for (bad, is_readable) in [(0, false), (4096, false), (size / 2, true), (size - 1, false), (size, true)] {
            let device = Scratched { bytes: io::Cursor::new(vec![0; size as usize]), bad };
            assert_eq!(read_ends(device).is_ok(), is_readable, "{bad}");
        }
        for size in [0, 1, 1 << 20] {
            assert!(read_ends(io::Cursor::new(vec![0_u8; size])).is_ok(), "{size}");
        }
    }
}
