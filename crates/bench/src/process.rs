//! The processes behind a server on this machine: found by the port they listen on, measured through `/proc`.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use crate::report::resident;

/// How often the kernel counts CPU time, per second (`USER_HZ`, the same on every Linux architecture we build for).
const TICKS: f64 = 100.0;

/// A server and, if it keeps its objects there, its etcd.
pub(crate) struct Processes(Vec<u32>);

impl Processes {
    /// Who listens on `port`, and any etcd that it has a connection to. Empty if the server is not on this machine.
    pub(crate) fn behind(port: u16) -> Self {
        let sockets = sockets();
        let Some(server) = sockets.iter().find(|socket| socket.listens && socket.local == port) else {
            return Self(Vec::new());
        };
        let Some(pid) = owner(&[server.inode].into()) else { return Self(Vec::new()) };
        let own = inodes(pid);
        let ports: HashSet<u16> =
            sockets.iter().filter(|socket| own.contains(&socket.inode)).map(|socket| socket.remote).collect();
        let stores = sockets.iter().filter(|socket| socket.listens && ports.contains(&socket.local));
        let mut pids = vec![pid];
        for etcd in stores.filter_map(|socket| owner(&[socket.inode].into())).filter(|pid| name(*pid) == "etcd") {
            if !pids.contains(&etcd) {
                pids.push(etcd);
            }
        }
        Self(pids)
    }

    pub(crate) fn these(ids: impl IntoIterator<Item = u32>) -> Self {
        Self(ids.into_iter().collect())
    }

    pub(crate) fn are_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// CPU time used so far, of all of them.
    pub(crate) fn cpu(&self) -> Duration {
        let ticks: u64 = self.0.iter().filter_map(|pid| ticks(*pid)).sum();
        Duration::from_secs_f64(ticks as f64 / TICKS)
    }

    /// Resident memory of all of them, in bytes.
    pub(crate) fn memory(&self) -> anyhow::Result<u64> {
        self.0.iter().map(|pid| resident(*pid)).sum()
    }
}

struct Socket {
    local: u16,
    remote: u16,
    listens: bool,
    inode: u64,
}

fn sockets() -> Vec<Socket> {
    const LISTEN: &str = "0A";
    let mut sockets = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let port = |at: usize| -> Option<u16> {
                let (_, port) = fields.get(at)?.rsplit_once(':')?;
                u16::from_str_radix(port, 16).ok()
            };
            let inode = fields.get(9).and_then(|inode| inode.parse().ok());
            if let (Some(local), Some(remote), Some(state), Some(inode)) = (port(1), port(2), fields.get(3), inode) {
                sockets.push(Socket { local, remote, listens: *state == LISTEN, inode });
            }
        }
    }
    sockets
}

/// The process that has one of these sockets open.
fn owner(wanted: &HashSet<u64>) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?;
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| !inodes(*pid).is_disjoint(wanted))
}

/// The sockets a process has open.
fn inodes(pid: u32) -> HashSet<u64> {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return HashSet::new() };
    files
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .filter_map(|target: std::path::PathBuf| socket_inode(&target))
        .collect()
}

fn socket_inode(target: &Path) -> Option<u64> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the numbers follow the last one.
    let (_, numbers) = stat.rsplit_once(')')?;
    let mut numbers = numbers.split_whitespace().skip(11);
    Some(numbers.next()?.parse::<u64>().ok()? + numbers.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let found = Processes::behind(listener.local_addr().expect("bound").port());
        assert_eq!(found.0, [std::process::id()]);
        assert!(found.memory().expect("alive") > 0);
    }
}
