//! What a node does to reach an iSCSI target: programs that it runs (Debian's `open-iscsi` and `multipath-tools`), and what the
//! kernel shows of sessions and devices. Tests have a machine that records what it is asked to run.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use api::sort::CompactSort as _;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::IscsiError;
use crate::volumes::csi::names;

/// A login is tried eight times of fifteen seconds by iscsid before iscsiadm gives up.
const RUN_TIMEOUT: Duration = Duration::from_secs(180);
/// How much of what a program says is kept.
const MAX_OUTPUT: u64 = 16 << 10;

pub(crate) trait Machine: Send + Sync + 'static {
    /// Runs a program to its end.
    fn run(
        &self,
        program: &'static str,
        arguments: Vec<String>,
    ) -> impl Future<Output = Result<Ran, IscsiError>> + Send;

    /// Where `/sys` and `/dev` are.
    fn root(&self) -> &Path;
}

/// How a program ended, and what it said.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    /// None if a signal ended it.
    pub(super) code: Option<i32>,
    pub(super) output: String,
}

impl Ran {
    /// In Go's words.
    pub(super) fn ended(&self) -> String {
        self.code.map_or_else(|| "signal: killed".to_owned(), |code| format!("exit status {code}"))
    }
}

/// The machine that this process is on.
pub(crate) struct Host;

impl Machine for Host {
    async fn run(&self, program: &'static str, arguments: Vec<String>) -> Result<Ran, IscsiError> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => IscsiError::Missing(program),
            _ => IscsiError::Start { program, source },
        };
        let mut child = command.spawn().map_err(failed)?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let ending = async { tokio::join!(said(output), said(errors), child.wait()) };
        let (output, errors, status) =
            tokio::time::timeout(RUN_TIMEOUT, ending).await.map_err(|_| IscsiError::Silent(program))?;
        let status = status.map_err(failed)?;
        Ok(Ran { code: status.code(), output: output + &errors })
    }

    fn root(&self) -> &Path {
        Path::new("/")
    }
}

/// What comes out of a pipe, which is read to its end: a program does not wait for us.
async fn said(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut pipe) = pipe else { return String::new() };
    let mut kept = Vec::new();
    let read = (&mut pipe).take(MAX_OUTPUT).read_to_end(&mut kept).await;
    if read.is_ok() {
        let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// The hosts of the sessions with a target, by portal.
pub(super) fn hosts(root: &Path, iqn: &str) -> io::Result<BTreeMap<String, u32>> {
    let mut hosts = BTreeMap::new();
    for session in sessions(root, iqn)? {
        for name in names(&session.path)?.into_iter().filter(|name| name.starts_with("connection")) {
            let connection = session.path.join(&name).join("iscsi_connection").join(&name);
            let value = |file: &str| std::fs::read_to_string(connection.join(file)).map(|text| text.trim().to_owned());
            for (address, port) in [("address", "port"), ("persistent_address", "persistent_port")] {
                // A connection that ends meanwhile is none.
                if let (Ok(address), Ok(port)) = (value(address), value(port)) {
                    let portal =
                        if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") };
                    hosts.insert(portal, session.host);
                }
            }
        }
    }
    Ok(hosts)
}

/// Names of the block devices that a disk of a target has, one for each session.
pub(super) fn devices(root: &Path, iqn: &str, lun: &str) -> io::Result<Vec<String>> {
    let mut devices = Vec::new();
    for Session { host, path } in sessions(root, iqn)? {
        let unit = path.join(format!("target{host}:0:0")).join(format!("{host}:0:0:{lun}")).join("block");
        devices.extend(names(&unit)?);
    }
    Ok(devices)
}

/// Names of all block devices that the session over a portal has, of whichever disk.
pub(super) fn devices_over(root: &Path, iqn: &str, portal: &str) -> io::Result<Vec<String>> {
    let Some(host) = hosts(root, iqn)?.get(portal).copied() else { return Ok(Vec::new()) };
    let mut devices = Vec::new();
    for session in sessions(root, iqn)?.into_iter().filter(|session| session.host == host) {
        for target in names(&session.path)?.into_iter().filter(|name| name.starts_with("target")) {
            let target = session.path.join(target);
            for unit in names(&target)?.into_iter().filter(|name| name.starts_with(&format!("{host}:"))) {
                devices.extend(names(&target.join(unit).join("block"))?);
            }
        }
    }
    Ok(devices)
}

/// Whether a block device is mounted, also where this process does not see it, or is part of another device.
pub(super) fn is_held(device: &Path) -> bool {
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device);
    opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Another device of the same disk's that is held: what is mounted over it is not to be mounted over this one too.
pub(super) fn held_beside(root: &Path, iqn: &str, lun: &str, device: &Path) -> io::Result<Option<PathBuf>> {
    let own = device.canonicalize()?;
    let is_joined = own.file_name().is_some_and(|name| name.to_string_lossy().starts_with("dm-"));
    let others = if is_joined { Vec::new() } else { devices(root, iqn, lun)? };
    let mut others = others.into_iter().map(|name| root.join("dev").join(name));
    Ok(others.find(|other| other.canonicalize().is_ok_and(|other| other != own) && is_held(other)))
}

struct Session {
    host: u32,
    path: PathBuf,
}

fn sessions(root: &Path, iqn: &str) -> io::Result<Vec<Session>> {
    let all = root.join("sys/class/iscsi_host");
    let mut found = Vec::new();
    for name in names(&all)? {
        let Some(host) = name.strip_prefix("host").and_then(|number| number.parse().ok()) else { continue };
        let device = all.join(&name).join("device");
        for session in names(&device)?.into_iter().filter(|name| name.starts_with("session")) {
            let path = device.join(&session);
            let target = std::fs::read_to_string(path.join("iscsi_session").join(&session).join("targetname"));
            if target.is_ok_and(|target| target.trim() == iqn) {
                found.push(Session { host, path });
            }
        }
    }
    Ok(found)
}

/// Has the kernel look for one disk, and for no others of the target's: nobody would tell it when those go.
pub(super) fn scan(root: &Path, host: u32, lun: &str) -> io::Result<()> {
    std::fs::write(root.join(format!("sys/class/scsi_host/host{host}/scan")), format!("0 0 {lun}"))
}

/// The link to the device of a disk; links of adapters that speak iSCSI themselves also name their slot.
pub(super) fn device(root: &Path, transport: &str, portal: &str, iqn: &str, lun: &str) -> io::Result<Option<PathBuf>> {
    let dir = root.join("dev/disk/by-path");
    let name = format!("ip-{}-iscsi-{iqn}-lun-{lun}", portal.replace(['[', ']'], ""));
    if transport == "tcp" {
        let path = dir.join(name);
        if !path.try_exists()? {
            return Ok(None);
        }
        // A link that is left of an earlier session may lead to another disk that has the device's name now.
        let (link, own) = (std::fs::read_link(&path)?, devices(root, iqn, lun)?);
        let is_its = link.file_name().is_some_and(|name| own.iter().any(|device| name == device.as_str()));
        return Ok(is_its.then_some(path));
    }
    let suffix = format!("-{name}");
    let mut found = names(&dir)?;
    found.retain(|link| link.starts_with("pci-") && link.ends_with(&suffix));
    found.compact_sort();
    Ok(found.first().map(|link| dir.join(link)))
}

/// The device that joins this one with others that lead to the same disk.
pub(super) fn multipath_of(root: &Path, device: &Path) -> io::Result<Option<PathBuf>> {
    let device = device.canonicalize()?;
    let Some(name) = device.file_name() else { return Ok(None) };
    let blocks = root.join("sys/block");
    for joined in names(&blocks)?.into_iter().filter(|name| name.starts_with("dm-")) {
        if blocks.join(&joined).join("slaves").join(name).try_exists()? {
            return Ok(Some(root.join("dev").join(joined)));
        }
    }
    Ok(None)
}

/// Has the kernel forget a block device; one that is gone is forgotten.
pub(super) fn delete_device(root: &Path, name: &str) -> io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).open(root.join("sys/block").join(name).join("device/delete"));
    match file {
        Ok(mut file) => io::Write::write_all(&mut file, b"1"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
