//! Logging in to targets and out of them, in upstream's steps (`ISCSIUtil`, v1.36).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::IscsiError;
use super::disk::{Chap, Disk};
use super::machine::{self, Machine, Ran};
use crate::volumes::blocking;

/// So many paths are enough for a disk that has several.
const ENOUGH_PATHS: usize = 2;
/// How often the paths that are missing are tried while there are enough, and while there are not.
const ATTEMPTS_WITH_ENOUGH: usize = 2;
const ATTEMPTS: usize = 5;
/// How often a device is looked for after it was scanned, and the one that joins several; once a second.
const LOOKS: usize = 30;
const JOINED_LOOKS: usize = 10;
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// After this no further portal is tried: others wait for the target, and a volume may name any number of portals.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(300);

/// Exit codes of iscsiadm: there is nothing to log out of.
const NO_SESSION: i32 = 2;
const NO_OBJECTS: i32 = 21;
/// There is a session with this interface, which cannot be made anew.
const SESSION_EXISTS: i32 = 15;

const DISCOVERY_SECRETS: [&str; 4] = [
    "discovery.sendtargets.auth.username",
    "discovery.sendtargets.auth.password",
    "discovery.sendtargets.auth.username_in",
    "discovery.sendtargets.auth.password_in",
];
const SESSION_SECRETS: [&str; 4] = [
    "node.session.auth.username",
    "node.session.auth.password",
    "node.session.auth.username_in",
    "node.session.auth.password_in",
];

/// Logs in over every portal that answers; the device that the disk is then. Whoever calls holds the target's lock.
pub(super) async fn attach(machine: &impl Machine, disk: &Disk, chap: &Chap) -> Result<PathBuf, IscsiError> {
    let what = || format!("could not read iface {}", disk.init_iface);
    let shown = iscsiadm(machine, &["-m", "iface", "-I", &disk.init_iface, "-o", "show"]).await?;
    let shown = done(shown, &[], what)?.output;
    let transport = transport_of(&shown).ok_or_else(|| IscsiError::NoTransport(disk.init_iface.clone()))?;
    if disk.has_own_iface() {
        copy_iface(machine, disk, &shown).await?;
    }
    let mut found: BTreeMap<&str, PathBuf> = BTreeMap::new();
    let began = tokio::time::Instant::now();
    for attempt in 1..=ATTEMPTS {
        let mut last = None;
        for portal in &disk.portals {
            if found.contains_key(portal.as_str()) {
                continue;
            }
            if began.elapsed() >= ATTACH_TIMEOUT && (last.is_some() || !found.is_empty()) {
                break;
            }
            match path_over(machine, disk, chap, portal, &transport).await {
                Ok(path) => {
                    found.insert(portal, path);
                }
                Err(error) => last = Some(error),
            }
        }
        if let Some(error) = last {
            tracing::warn!(iqn = disk.iqn, attempt, paths = found.len(), %error, "a path to an iSCSI disk is missing");
            if found.is_empty() {
                if disk.has_own_iface() {
                    try_delete_iface(machine, disk).await;
                }
                return Err(IscsiError::NoPath(Box::new(error)));
            }
        }
        let is_enough = found.len() >= ENOUGH_PATHS && attempt >= ATTEMPTS_WITH_ENOUGH;
        if found.len() == disk.portals.len() || is_enough || began.elapsed() >= ATTACH_TIMEOUT {
            break;
        }
    }
    let joined = joined(machine, found.values().cloned().collect(), disk.portals.len() > 1).await?;
    // In the order of the portals.
    let first = disk.portals.iter().find_map(|portal| found.remove(portal.as_str()));
    joined.or(first).ok_or(IscsiError::NoPortal)
}

/// The link to the disk's device over one portal, after a login unless there is a session.
async fn path_over(
    machine: &impl Machine,
    disk: &Disk,
    chap: &Chap,
    portal: &str,
    transport: &str,
) -> Result<PathBuf, IscsiError> {
    let root = machine.root().to_path_buf();
    let hosts = async || {
        let (root, iqn) = (root.clone(), disk.iqn.clone());
        blocking(move || machine::hosts(&root, &iqn)).await
    };
    let host = match hosts().await?.get(portal) {
        Some(host) => *host,
        None => {
            log_in(machine, disk, chap, portal).await?;
            let host = hosts().await?.get(portal).copied();
            host.ok_or_else(|| IscsiError::NoHost(portal.to_owned()))?
        }
    };
    let (place, lun) = (root.clone(), disk.lun.clone());
    blocking(move || machine::scan(&place, host, &lun)).await?;
    for look in 1..=LOOKS {
        let (root, transport, portal) = (root.clone(), transport.to_owned(), portal.to_owned());
        let (iqn, lun) = (disk.iqn.clone(), disk.lun.clone());
        let device = blocking(move || machine::device(&root, &transport, &portal, &iqn, &lun)).await?;
        if let Some(device) = device {
            return Ok(device);
        }
        if look < LOOKS {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
    Err(IscsiError::NoDevice {
        portal: portal.to_owned(),
        iqn: disk.iqn.clone(),
        lun: disk.lun.clone(),
        seconds: LOOKS,
    })
}

async fn log_in(machine: &impl Machine, disk: &Disk, chap: &Chap, portal: &str) -> Result<(), IscsiError> {
    let (iqn, iface) = (disk.iqn.as_str(), disk.iface.as_str());
    let discovery = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", iface];
    let node = ["-m", "node", "-p", portal, "-T", iqn, "-I", iface];
    let with = |first: &[&str], rest: &[&str]| -> Vec<String> {
        first.iter().chain(rest).map(|argument| (*argument).to_owned()).collect()
    };
    // A record that is there is not made anew.
    machine.run(ISCSIADM, with(&discovery, &["-o", "new"])).await?;
    if chap.in_discovery {
        let method = ("discovery.sendtargets.auth.authmethod", "CHAP");
        for (name, value) in settings(method, &DISCOVERY_SECRETS, chap) {
            let ran = machine.run(ISCSIADM, with(&discovery, &["-o", "update", "-n", name, "-v", value])).await?;
            done(without(ran, value), &[], || {
                format!("failed to update discoverydb to portal {portal}: key {name:?}")
            })?;
        }
    }
    let ran = machine.run(ISCSIADM, with(&discovery, &["--discover"])).await?;
    if ran.code != Some(0) {
        machine.run(ISCSIADM, with(&discovery, &["-o", "delete"])).await?;
        done(ran, &[], || format!("failed to sendtargets to portal {portal}"))?;
    }
    // Only what is asked for is looked for after a login.
    let ran = machine.run(ISCSIADM, with(&node, &["-o", "update", "-n", "node.session.scan", "-v", "manual"])).await?;
    if ran.code != Some(0) {
        tracing::warn!(
            iqn,
            portal,
            output = ran.output,
            "iscsiadm does not know node.session.scan: all disks are seen"
        );
    }
    if chap.in_session {
        for (name, value) in settings(("node.session.auth.authmethod", "CHAP"), &SESSION_SECRETS, chap) {
            let ran = machine.run(ISCSIADM, with(&node, &["-o", "update", "-n", name, "-v", value])).await?;
            done(without(ran, value), &[], || format!("failed to update iscsi node to portal {portal}: key {name:?}"))?;
        }
    }
    let ran = machine.run(ISCSIADM, with(&node, &["--login"])).await?;
    if ran.code != Some(0) && ran.code != Some(SESSION_EXISTS) {
        machine.run(ISCSIADM, with(&node, &["-o", "delete"])).await?;
        done(ran, &[], || format!("failed to attach disk: login to {iqn} over {portal}"))?;
    }
    // A node that starts again does not wait for the target; the kubelet logs in.
    let ran = machine.run(ISCSIADM, with(&node, &["-o", "update", "-n", "node.startup", "-v", "manual"])).await?;
    if ran.code != Some(0) {
        tracing::warn!(iqn, portal, output = ran.output, "a login stays automatic");
    }
    Ok(())
}

fn settings<'a>(
    method: (&'a str, &'a str),
    names: &'a [&'a str],
    chap: &'a Chap,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let given = names.iter().filter_map(|name| Some((*name, chap.secret.get(*name)?.as_str())));
    std::iter::once(method).chain(given.filter(|(_, value)| !value.is_empty()))
}

/// The device that joins the paths, if there is one. It is waited for where there are to be several.
async fn joined(machine: &impl Machine, paths: Vec<PathBuf>, is_expected: bool) -> Result<Option<PathBuf>, IscsiError> {
    let looks = if is_expected { JOINED_LOOKS } else { 1 };
    for look in 1..=looks {
        let (root, paths) = (machine.root().to_path_buf(), paths.clone());
        let found = blocking(move || {
            let mut all = paths.iter().map(|path| machine::multipath_of(&root, path));
            all.find_map(Result::transpose).transpose()
        });
        if let Some(device) = found.await? {
            return Ok(Some(device));
        }
        if look < looks {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
    Ok(None)
}

/// An interface like the configured one, with another name of the initiator.
async fn copy_iface(machine: &impl Machine, disk: &Disk, shown: &str) -> Result<(), IscsiError> {
    let mut parameters = parameters(shown)?;
    parameters.insert("iface.initiatorname", &disk.initiator_name);
    let made = iscsiadm(machine, &["-m", "iface", "-I", &disk.iface, "-o", "new"]).await?;
    done(made, &[SESSION_EXISTS], || format!("failed to create new iface {}", disk.iface))?;
    for (name, value) in parameters {
        let arguments: [&str; 10] = ["-m", "iface", "-I", &disk.iface, "-o", "update", "-n", name, "-v", value];
        let updated = done(iscsiadm(machine, &arguments).await?, &[], || {
            format!("failed to update iface records: {name} of {}", disk.iface)
        });
        if let Err(error) = updated {
            try_delete_iface(machine, disk).await;
            return Err(error);
        }
    }
    Ok(())
}

/// Cleans up after a failure. That failure is returned; what goes wrong here is only logged.
async fn try_delete_iface(machine: &impl Machine, disk: &Disk) {
    if let Err(error) = delete_iface(machine, disk).await {
        tracing::warn!(iface = disk.iface, %error, "an interface of an iSCSI disk stays");
    }
}

async fn delete_iface(machine: &impl Machine, disk: &Disk) -> Result<(), IscsiError> {
    let ran = iscsiadm(machine, &["-m", "iface", "-I", &disk.iface, "-o", "delete"]).await?;
    done(ran, &[NO_SESSION, NO_OBJECTS], || format!("failed to delete iface {}", disk.iface)).map(drop)
}

/// Has the kernel forget the disk's devices and logs out over portals that no other disk in use needs. Whoever calls holds the
/// target's lock.
pub(super) async fn detach(machine: &impl Machine, disk: &Disk, others: &[Disk]) -> Result<(), IscsiError> {
    if !others.iter().any(|other| other.is_same_unit(disk)) {
        forget_devices(machine, disk).await?;
    }
    // Whatever its interface: a disk uses the session that it finds.
    let is_needed = |portal: &String| others.iter().any(|it| it.iqn == disk.iqn && it.portals.contains(portal));
    for portal in disk.portals.iter().filter(|portal| !is_needed(portal)) {
        let (root, iqn, over) = (machine.root().to_path_buf(), disk.iqn.clone(), portal.clone());
        let held = blocking(move || {
            let devices = machine::devices_over(&root, &iqn, &over)?;
            let mut devices = devices.into_iter().map(|name| root.join("dev").join(name));
            Ok(devices.find(|device| machine::is_held(device)))
        });
        if let Some(device) = held.await? {
            tracing::warn!(iqn = disk.iqn, portal, device = %device.display(), "a session stays that others than pods use");
            continue;
        }
        let node: [&str; 8] = ["-m", "node", "-p", portal, "-T", &disk.iqn, "-I", &disk.iface];
        for (rest, what) in [(&["--logout"][..], "log out of"), (&["-o", "delete"][..], "delete the node record of")] {
            let ran = iscsiadm(machine, &[&node[..], rest].concat()).await?;
            done(ran, &[NO_SESSION, NO_OBJECTS], || format!("failed to {what} {} over {portal}", disk.iqn))?;
        }
    }
    match disk.has_own_iface() && !others.iter().any(|other| other.iface == disk.iface) {
        true => delete_iface(machine, disk).await,
        false => Ok(()),
    }
}

/// What is left of a device after this goes with the session.
async fn forget_devices(machine: &impl Machine, disk: &Disk) -> Result<(), IscsiError> {
    let (root, iqn, lun) = (machine.root().to_path_buf(), disk.iqn.clone(), disk.lun.clone());
    let found = blocking(move || {
        let devices = machine::devices(&root, &iqn, &lun)?;
        let (mut joined, mut held) = (Vec::new(), None);
        for device in &devices {
            let path = root.join("dev").join(device);
            // A device that goes meanwhile is joined with nothing.
            let over = machine::multipath_of(&root, &path).unwrap_or_default();
            let used = over.clone().unwrap_or(path);
            if machine::is_held(&used) {
                held = Some(used);
            }
            if let Some(device) = over.filter(|device| !joined.contains(device)) {
                joined.push(device);
            }
        }
        Ok((devices, joined, held))
    });
    let (devices, joined, held) = found.await?;
    // Unmounted here, it may be mounted elsewhere: what was written to it would be lost.
    if let Some(device) = held {
        return Err(IscsiError::Held(device));
    }
    for device in joined {
        let ran = machine.run("multipath", vec!["-f".to_owned(), device.display().to_string()]).await;
        if !matches!(&ran, Ok(ran) if ran.code == Some(0)) {
            tracing::warn!(device = %device.display(), ?ran, "paths of an iSCSI disk stay joined");
        }
    }
    let root = machine.root().to_path_buf();
    blocking(move || {
        for device in devices {
            if let Err(error) = machine::delete_device(&root, &device) {
                tracing::warn!(device, %error, "a device of an iSCSI disk stays until the logout");
            }
        }
        Ok(())
    })
    .await?;
    Ok(())
}

const ISCSIADM: &str = "iscsiadm";

async fn iscsiadm(machine: &impl Machine, arguments: &[&str]) -> Result<Ran, IscsiError> {
    machine.run(ISCSIADM, arguments.iter().map(|argument| (*argument).to_owned()).collect()).await
}

/// What a program said, without a value that it was given and may have repeated: this becomes an event.
fn without(ran: Ran, value: &str) -> Ran {
    Ran { output: ran.output.replace(value, "***"), ..ran }
}

/// What was run, unless it failed with a code other than these. Arguments are in no message: they may be secrets.
fn done(ran: Ran, allowed: &[i32], what: impl FnOnce() -> String) -> Result<Ran, IscsiError> {
    match ran.code {
        Some(code) if code == 0 || allowed.contains(&code) => Ok(ran),
        _ => Err(IscsiError::Command { what: what(), ended: ran.ended(), output: ran.output.trim().to_owned() }),
    }
}

/// How an interface reaches targets, from what iscsiadm shows of it.
fn transport_of(shown: &str) -> Option<String> {
    let value = shown.lines().find_map(|line| line.trim().strip_prefix("iface.transport_name = "))?;
    Some(if value == "<empty>" { "tcp" } else { value }.to_owned())
}

/// What an interface is set to; its name stays its own.
fn parameters(shown: &str) -> Result<BTreeMap<&str, &str>, IscsiError> {
    let lines = shown.lines().filter(|line| line.starts_with("iface.") && !line.contains("<empty>"));
    let mut parameters = BTreeMap::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, "=", value] = words[..] else { return Err(IscsiError::Setting(line.to_owned())) };
        if name != "iface.iscsi_ifacename" {
            parameters.insert(name, value);
        }
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_secrets_that_a_program_repeats_are_in_no_message() {
        let ran = Ran { code: Some(7), output: "iscsiadm: bad value s3cret\n".to_owned() };
        let failed = done(without(ran, "s3cret"), &[], || "no".to_owned()).unwrap_err().to_string();
        assert_eq!(failed, "iscsi: no: exit status 7: iscsiadm: bad value ***");
    }

    #[test]
    fn interfaces_are_read_as_iscsiadm_shows_them() {
        let shown = "# BEGIN RECORD 2.1.9\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\n\
            iface.transport_name = tcp\niface.mtu = 9000\n# END RECORD\n";
        assert_eq!(transport_of(shown).as_deref(), Some("tcp"));
        let expected = BTreeMap::from([("iface.transport_name", "tcp"), ("iface.mtu", "9000")]);
        assert_eq!(parameters(shown).unwrap(), expected);
        assert_eq!(transport_of("iface.transport_name = <empty>\n").as_deref(), Some("tcp"));
        assert_eq!(transport_of("iface.transport_name = bnx2i\n").as_deref(), Some("bnx2i"));
        assert_eq!(transport_of("iface.mtu = 0\n"), None);
        assert!(parameters("iface.mtu = 1 2\n").is_err());
    }
}
