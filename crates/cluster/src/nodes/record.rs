//! What is known about a further node while nothing of it runs: one small file in its directory.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use api::cidr::{self, Cidr};
use api::sort::CompactSort as _;
use serde::{Deserialize, Serialize};

use crate::options::Options;
use crate::pki::{private_dir, write_private};

/// What the node's user asked for last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wanted {
    Running,
    /// As if switched off: its pods end and are made again elsewhere.
    Stopped,
    /// Nothing of it stays.
    Removed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub name: String,
    /// Tells the links of this machine's nodes apart.
    pub number: u32,
    pub address: IpAddr,
    pub wanted: Wanted,
}

impl Record {
    /// The node's own corner of the cluster's directories and cgroup.
    pub(crate) fn options(&self, cluster: &Options) -> Options {
        Options {
            data_dir: cluster.data_dir.join("nodes").join(&self.name),
            run_dir: cluster.run_dir.join("nodes").join(&self.name),
            name: format!("{}/{}", cluster.name, self.name),
        }
    }

    /// Where the node's network namespace is kept.
    pub(crate) fn netns(&self, cluster: &Options) -> PathBuf {
        self.options(cluster).run_dir.join("netns")
    }

    pub(crate) fn save(&self, cluster: &Options) -> Result<()> {
        let dir = self.options(cluster).data_dir;
        private_dir(&dir)?;
        write_private(&dir.join(FILE), &serde_json::to_vec_pretty(self)?)
    }

    /// The record as it is now; none when the node is gone.
    pub(crate) fn reload(&self, cluster: &Options) -> Result<Option<Record>> {
        Ok(all(cluster)?.into_iter().find(|record| record.name == self.name))
    }
}

const FILE: &str = "node.json";

/// Every further node, in the order they were added.
pub(crate) fn all(cluster: &Options) -> Result<Vec<Record>> {
    let dir = cluster.data_dir.join("nodes");
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| dir.display().to_string()),
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry?.path().join(FILE);
        match fs::read(&path) {
            Ok(text) => {
                let record: Record = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
                records.push(record);
            }
            // A directory whose node is just being added or removed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
    }
    records.compact_sort_by_key(|record| record.number);
    Ok(records)
}

/// The further node of this name.
pub(crate) fn find(cluster: &Options, name: &str) -> Result<Record> {
    let record = all(cluster)?.into_iter().find(|record| record.name == name);
    record.with_context(|| format!("there is no further node {name:?} on this machine"))
}

/// What further nodes of a cluster have in common; written by the process that runs the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Network {
    /// Addresses of nodes; the bridge that joins them has the first.
    pub range: Cidr,
    /// Their second addresses, of the other family, in a cluster with two.
    #[serde(default)]
    pub second: Option<Cidr>,
    /// The node in the cluster's own process.
    pub first_node: String,
}

impl Network {
    pub(crate) fn load(cluster: &Options) -> Result<Network> {
        let path = Self::path(cluster);
        let text = fs::read(&path).with_context(|| format!("{}: has 'cox up' run?", path.display()))?;
        serde_json::from_slice(&text).with_context(|| path.display().to_string())
    }

    /// Keeps it for the commands about nodes. Nodes that exist hold on to the range they have addresses in.
    pub(crate) fn save(&self, cluster: &Options) -> Result<()> {
        if let Some(outside) = all(cluster)?.into_iter().find(|record| !self.range.contains(record.address)) {
            bail!("node {} has the address {}, outside of {}", outside.name, outside.address, self.range);
        }
        write_private(&Self::path(cluster), &serde_json::to_vec_pretty(self)?)
    }

    /// The address of this machine on the bridge, which is how further nodes reach the API server.
    pub(crate) fn gateway(&self) -> Result<IpAddr> {
        cidr::next(self.range.network().addr).with_context(|| format!("{} has no room for nodes", self.range))
    }

    /// The addresses of this machine on the bridge, each with its range.
    pub(crate) fn gateways(&self) -> Result<Vec<Cidr>> {
        let first = self.gateway()?;
        let second = self.second.and_then(|range| Some(Cidr::new(self.second_of(first)?, range.prefix)));
        Ok([Cidr::new(first, self.range.prefix)].into_iter().chain(second).collect())
    }

    /// The addresses of a node, one or two.
    pub(crate) fn addresses(&self, record: &Record) -> Vec<IpAddr> {
        [record.address].into_iter().chain(self.second_of(record.address)).collect()
    }

    /// The second address of whoever has this one: as far from the beginning of the second range.
    pub(crate) fn second_of(&self, address: IpAddr) -> Option<IpAddr> {
        let second = self.second?;
        let place = bits(address).checked_sub(bits(self.range.network().addr))?;
        let bits = bits(second.network().addr).checked_add(place)?;
        let found = match second.is_v6() {
            true => IpAddr::from(Ipv6Addr::from_bits(bits)),
            false => IpAddr::from(Ipv4Addr::from_bits(u32::try_from(bits).ok()?)),
        };
        (second.contains(found) && found != second.last()).then_some(found)
    }

    /// How nodes reach the API server of this machine.
    pub(crate) fn server_url(&self, port: u16) -> Result<String> {
        Ok(format!("https://{}", SocketAddr::from((self.gateway()?, port))))
    }

    fn path(cluster: &Options) -> PathBuf {
        cluster.data_dir.join("node-network.json")
    }

    /// Makes a record for one more node. `name` is chosen when none is given.
    pub(crate) fn add(&self, cluster: &Options, name: Option<&str>) -> Result<Record> {
        let record = self.next(&all(cluster)?, name)?;
        record.save(cluster)?;
        Ok(record)
    }

    /// Adds records until the cluster has `count` nodes, the first included. Never removes one.
    pub(crate) fn ensure_count(&self, cluster: &Options, count: u32) -> Result<()> {
        let present = all(cluster)?.len() as u32 + 1;
        for _ in present..count {
            self.add(cluster, None)?;
        }
        Ok(())
    }

    /// The next node: the first number that is free, and the address that goes with it.
    fn next(&self, records: &[Record], name: Option<&str>) -> Result<Record> {
        let taken = |name: &str| name == self.first_node || records.iter().any(|record| record.name == name);
        let mut number = 2;
        let mut address = self.gateway().ok().and_then(cidr::next);
        while records.iter().any(|record| record.number == number)
            || (name.is_none() && taken(&format!("node-{number}")))
        {
            number += 1;
            address = address.and_then(cidr::next);
        }
        let name = name.map_or_else(|| format!("node-{number}"), str::to_owned);
        if taken(&name) {
            bail!("there is a node {name:?} already");
        }
        if let Some(problem) = api::validation::dns1123_subdomain(&name).first() {
            bail!("{name:?} cannot be the name of a node: {problem}");
        }
        match address.filter(|address| self.range.contains(*address) && *address != self.range.last()) {
            Some(address) => match (self.second, self.second_of(address)) {
                (Some(second), None) => bail!("the nodes' second range {second} has no address left"),
                _ => Ok(Record { name, number, address, wanted: Wanted::Running }),
            },
            None => bail!("the nodes' range {} has no address left", self.range),
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(range: &str, first_node: &str) -> Network {
        Network { range: range.parse().unwrap(), second: None, first_node: first_node.into() }
    }

    #[test]
    fn second_addresses_follow_the_first() {
        let of = |range: &str, second: &str, address: &str| {
            let network = Network { second: Some(second.parse().unwrap()), ..network(range, "box") };
            network.second_of(address.parse().unwrap()).map(|found| found.to_string())
        };
        assert_eq!(of("10.44.0.0/24", "fd44::/64", "10.44.0.3").as_deref(), Some("fd44::3"));
        assert_eq!(of("fd44::/64", "10.44.0.0/24", "fd44::fe").as_deref(), Some("10.44.0.254"));
        for (range, second, address) in [
            ("fd44::/64", "10.44.0.0/24", "fd44::ff"),
            ("fd44::/64", "10.44.0.0/24", "fd44::1:0:0:1"),
            ("fd44::/64", "255.255.255.0/24", "fd44::ffff:ffff"),
            ("10.44.0.0/24", "fd44::/126", "10.44.0.9"),
            ("10.44.0.0/24", "fd44::/64", "10.43.0.9"),
        ] {
            assert_eq!(of(range, second, address), None, "{range} {second} {address}");
        }
        let network = Network { second: Some("fd44::/64".parse().unwrap()), ..network("10.44.0.0/24", "box") };
        let gateways: Vec<_> = network.gateways().unwrap().iter().map(Cidr::to_string).collect();
        assert_eq!(gateways, ["10.44.0.1/24", "fd44::1/64"]);
        // As it was written before there were two.
        let old: Network = serde_json::from_str(r#"{"range": "10.44.0.0/24", "first_node": "box"}"#).unwrap();
        assert_eq!(old.second_of("10.44.0.3".parse().unwrap()), None);
    }

    #[test]
    fn numbers_addresses_and_names_are_given_out_once() {
        let network = network("10.44.0.0/24", "box");
        let first = network.next(&[], None).unwrap();
        assert_eq!((first.name.as_str(), first.number, first.address.to_string()), ("node-2", 2, "10.44.0.2".into()));
        let named = network.next(std::slice::from_ref(&first), Some("worker")).unwrap();
        assert_eq!((named.number, named.address.to_string()), (3, "10.44.0.3".into()));
        for (records, name) in [(vec![named.clone()], "worker"), (vec![], "box"), (vec![], "Not valid")] {
            assert!(network.next(&records, Some(name)).is_err(), "{name:?}");
        }
        // A hole is filled, but never with the first node's name.
        let other = Network { first_node: "node-2".into(), ..network };
        let next = other.next(&[named], None).unwrap();
        assert_eq!((next.name.as_str(), next.address.to_string()), ("node-4", "10.44.0.4".into()));
    }

    #[test]
    fn a_small_range_runs_out() {
        let network = network("10.44.0.0/30", "box");
        let only = network.next(&[], None).unwrap();
        assert!(network.next(&[only], None).is_err(), "the last address is for broadcasts");
        let second = Some("fd44::/126".parse().unwrap());
        let network = Network { second, ..self::network("10.44.0.0/24", "box") };
        let only = network.next(&[], None).unwrap();
        let error = network.next(&[only], None).unwrap_err().to_string();
        assert_eq!(error, "the nodes' second range fd44::/126 has no address left");
    }

    #[test]
    fn records_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "cox".into() };
        let network = network("10.44.0.0/24", "box");
        network.save(&cluster).unwrap();
        network.ensure_count(&cluster, 3).unwrap();
        network.ensure_count(&cluster, 2).unwrap();
        let records = all(&cluster).unwrap();
        assert_eq!(records.iter().map(|record| record.name.as_str()).collect::<Vec<_>>(), ["node-2", "node-3"]);
        let stopped = Record { wanted: Wanted::Stopped, ..records[0].clone() };
        stopped.save(&cluster).unwrap();
        assert_eq!(records[0].reload(&cluster).unwrap(), Some(stopped));
        assert_eq!(records[0].options(&cluster).cgroup(), "/cox/node-2");
        assert_eq!(Network::load(&cluster).unwrap(), network);
        assert!(Network { range: "10.45.0.0/24".parse().unwrap(), ..network }.save(&cluster).is_err());
    }
}
