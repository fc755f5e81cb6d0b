//! `tuning`: sysctls of the pod's namespace and attributes of its interface, after another plug-in made it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::call::Call;
use super::interface::{AskedArgs, AskedMac, find, open_netns};
use super::side::Kernel;
use super::{Handlers, nothing, spoofing};
use crate::error::CniError;
use crate::netns::{Netns, set_sysctl, sysctl};
use crate::result::AddResult;
use netlink::{Link, Socket, mac_text, parse_mac};

pub(super) const HANDLERS: Handlers = Handlers { load, add, check, del, gc: nothing, status: nothing };

const DATA_DIR: &str = "/run/cni/tuning";

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    data_dir: String,
    sysctl: BTreeMap<String, String>,
    mac: String,
    promisc: bool,
    mtu: u32,
    allmulti: Option<bool>,
    #[serde(rename = "txQLen")]
    tx_queue: Option<u32>,
    runtime_config: AskedMac,
    args: AskedArgs,
}

/// What the interface was like before, for DEL: it may be a device that goes back to the host.
#[derive(Serialize, Deserialize)]
struct Before {
    mac: [u8; 6],
    promisc: bool,
    mtu: u32,
    allmulti: bool,
    tx_queue: u32,
}

impl Config {
    fn load(call: &Call) -> Result<Self, CniError> {
        let mut config: Self = call.config()?;
        let asked = [&config.runtime_config.mac, &config.args.cni.mac].into_iter().find(|mac| !mac.is_empty()).cloned();
        config.mac = asked.or(call.arg("MAC").map(str::to_owned)).unwrap_or(config.mac);
        Ok(config)
    }

    fn mac(&self) -> Result<Option<[u8; 6]>, CniError> {
        match self.mac.is_empty() {
            true => Ok(None),
            false => parse_mac(&self.mac)
                .map(Some)
                .ok_or_else(|| CniError::invalid_config(format!("invalid mac address {:?}", self.mac))),
        }
    }

    fn changes_link(&self) -> bool {
        !self.mac.is_empty() || self.promisc || self.mtu > 0 || self.allmulti.is_some() || self.tx_queue.is_some()
    }

    fn backup(&self, call: &Call) -> PathBuf {
        let dir = if self.data_dir.is_empty() { DATA_DIR } else { &self.data_dir };
        Path::new(dir).join(format!("{}_{}.json", call.container_id, call.ifname))
    }
}

fn load(call: &Call) -> Result<(), CniError> {
    let config = Config::load(call)?;
    config.mac()?;
    config.sysctl.keys().try_for_each(|name| sysctl_path(name).map(drop))
}

fn add(call: &Call) -> Result<AddResult, CniError> {
    let config = Config::load(call)?;
    let mut result = call.require_previous()?.clone();
    let netns = open_netns(call)?;
    set_sysctls(&netns, &config.sysctl)?;
    if config.changes_link() {
        let pod = netns.socket().map_err(CniError::failed("open a netlink socket"))?;
        let link = find(&pod, &call.ifname)?;
        save(&config.backup(call), &link).map_err(CniError::failed("save the interface's attributes"))?;
        let mac = config.mac()?;
        change(&pod, &link, &config, mac).map_err(CniError::failed(format!("tune {}", call.ifname)))?;
        if let Some(mac) = mac {
            let node = Kernel::node()?;
            spoofing::change_mac(call, &node, mac).map_err(CniError::failed("hold the pod to its new address"))?;
            let text = mac_text(mac);
            for interface in result.interfaces.iter_mut().filter(|i| i.name == call.ifname && !i.sandbox.is_empty()) {
                interface.mac = text.clone();
            }
        }
    }
    Ok(result)
}

/// Only `net.*`, and only in the pod: everything else would change the host.
fn set_sysctls(netns: &Netns, wanted: &BTreeMap<String, String>) -> Result<(), CniError> {
    for (name, value) in wanted {
        let path = sysctl_path(name)?;
        netns
            .enter(|| set_sysctl(&path, value))
            .and_then(|inner| inner)
            .map_err(CniError::failed(format!("set sysctl {name}")))?;
    }
    Ok(())
}

fn sysctl_path(name: &str) -> Result<String, CniError> {
    // With slashes, dots belong to interface names; without, they separate.
    let path = if name.contains('/') { name.trim_start_matches('/').to_owned() } else { name.replace('.', "/") };
    match path.starts_with("net/") && path.split('/').all(|part| !part.is_empty() && part != "..") {
        true => Ok(path),
        false => Err(CniError::invalid_config(format!("invalid net sysctl key: {name:?}"))),
    }
}

fn save(path: &Path, link: &Link) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let before = Before {
        mac: link.mac,
        promisc: link.promiscuity > 0,
        mtu: link.mtu,
        allmulti: link.allmulti,
        tx_queue: link.tx_queue,
    };
    std::fs::write(path, serde_json::to_vec(&before)?)
}

fn change(pod: &Socket, link: &Link, config: &Config, mac: Option<[u8; 6]>) -> io::Result<()> {
    if let Some(mac) = mac {
        set_mac(pod, link, mac)?;
    }
    if config.promisc {
        pod.set_promisc(link.index, true)?;
    }
    if config.mtu > 0 {
        pod.set_mtu(link.index, config.mtu)?;
    }
    if let Some(allmulti) = config.allmulti {
        pod.set_allmulti(link.index, allmulti)?;
    }
    if let Some(length) = config.tx_queue {
        pod.set_tx_queue(link.index, length)?;
    }
    Ok(())
}

/// Most drivers take a new address while up; those that do not, while down, at the price of routes, which are put back.
fn set_mac(pod: &Socket, link: &Link, mac: [u8; 6]) -> io::Result<()> {
    match pod.set_mac(link.index, mac) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let routes = pod.routes()?;
            pod.set_down(link.index)?;
            pod.set_mac(link.index, mac)?;
            pod.set_up(link.index)?;
            for route in routes.iter().filter(|route| route.oif == Some(link.index) && route.table == 254) {
                pod.replace_route(route)?;
            }
            Ok(())
        }
        result => result,
    }
}

fn del(call: &Call) -> Result<(), CniError> {
    let config = Config::load(call)?;
    let path = config.backup(call);
    let Some(before) = std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Before>(&bytes).ok()) else {
        return Ok(());
    };
    // Gone with its namespace: nothing to put back.
    if let Some((pod, link)) = open_netns(call).ok().and_then(|netns| {
        let pod = netns.socket().ok()?;
        let link = pod.link(&call.ifname).ok().flatten()?;
        Some((pod, link))
    }) {
        let restored = set_mac(&pod, &link, before.mac)
            .and_then(|()| pod.set_promisc(link.index, before.promisc))
            .and_then(|()| pod.set_mtu(link.index, before.mtu))
            .and_then(|()| pod.set_allmulti(link.index, before.allmulti))
            .and_then(|()| pod.set_tx_queue(link.index, before.tx_queue));
        restored.map_err(CniError::failed(format!("restore {}", call.ifname)))?;
    }
    let _ = std::fs::remove_file(path);
    Ok(())
}

fn check(call: &Call) -> Result<(), CniError> {
    let config = Config::load(call)?;
    call.require_previous()?;
    let netns = open_netns(call)?;
    for (name, value) in &config.sysctl {
        let path = sysctl_path(name)?;
        let current = netns
            .enter(|| sysctl(&path))
            .and_then(|inner| inner)
            .map_err(CniError::failed(format!("read sysctl {name}")))?;
        if current != *value {
            return Err(CniError::internal(format!(
                "Error: Tuning configured value of {name} is {value}, current value is {current}"
            )));
        }
    }
    let pod = netns.socket().map_err(CniError::failed("open a netlink socket"))?;
    let link = find(&pod, &call.ifname)?;
    let differs = config.mac()?.is_some_and(|mac| mac != link.mac)
        || config.promisc && link.promiscuity == 0
        || config.mtu > 0 && config.mtu != link.mtu
        || config.allmulti.is_some_and(|allmulti| allmulti != link.allmulti)
        || config.tx_queue.is_some_and(|length| length != link.tx_queue);
    match differs {
        true => Err(CniError::internal(format!("Error: {} is not tuned as configured", call.ifname))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_network_sysctls() {
        for (name, path) in [
            ("net.ipv4.conf.all.log_martians", Some("net/ipv4/conf/all/log_martians")),
            ("net/ipv4/conf/eth0.5/rp_filter", Some("net/ipv4/conf/eth0.5/rp_filter")),
            ("kernel.core_pattern", None),
            ("net/../kernel/core_pattern", None),
            ("net..x", None),
        ] {
            assert_eq!(sysctl_path(name).ok().as_deref(), path, "{name}");
        }
    }
}
