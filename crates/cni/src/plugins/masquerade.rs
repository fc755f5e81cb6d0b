//! `ipMasq`: what a pod sends out of its own network leaves with an address of the host.
//!
//! One table for all pods: a map from pod address to the chain of its attachment. A packet costs one look-up however many
//! pods there are, and DEL can tell its own entries from those of a later pod with the same address.

use std::io;

use netlink::nft::{Target, elements};

use super::call::Call;
use super::side::Side;
use crate::nft;
use api::cidr::Cidr;

const TABLE: &str = "inet cox-masquerade";

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("reading what is masqueraded: {0}")]
    Read(#[from] io::Error),
    #[error(transparent)]
    Rules(#[from] nft::Error),
}

/// Lets packets of `addresses` that leave their network be masqueraded.
pub(super) fn add(node: &dyn Side, addresses: &[Cidr], call: &Call) -> Result<(), Error> {
    let chain = chain_name(&call.network, &call.container_id, &call.ifname);
    match node.apply_rules(&rules(addresses, &chain)) {
        Ok(()) => Ok(()),
        // An entry left by a pod that was never deleted: its address is ours now.
        Err(_) => {
            let stale: Vec<(Cidr, String)> = entries()?
                .into_iter()
                .filter(|(address, _)| addresses.iter().any(|ours| ours.addr == address.addr))
                .collect();
            let mut transaction = removal(&stale);
            transaction.push_str(&rules(addresses, &chain));
            Ok(node.apply_rules(&transaction)?)
        }
    }
}

/// Removes what `add` made for this attachment, whichever addresses it had.
pub(super) fn remove(network: &str, container_id: &str, ifname: &str) -> Result<(), Error> {
    let chain = chain_name(network, container_id, ifname);
    let entries = match entries() {
        // No table: nothing was ever masqueraded here.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let ours: Vec<(Cidr, String)> = entries.into_iter().filter(|(_, target)| *target == chain).collect();
    let mut transaction = removal(&ours);
    // Declared first, so that deleting it is no error when it is gone.
    transaction
        .push_str(&format!("add chain {TABLE} {chain}\nflush chain {TABLE} {chain}\ndelete chain {TABLE} {chain}\n"));
    Ok(nft::apply(&transaction)?)
}

pub(super) fn is_present(addresses: &[Cidr], network: &str, container_id: &str, ifname: &str) -> bool {
    let chain = chain_name(network, container_id, ifname);
    let entries = entries().unwrap_or_default();
    addresses.iter().all(|ours| entries.iter().any(|(address, target)| address.addr == ours.addr && *target == chain))
}

fn rules(addresses: &[Cidr], chain: &str) -> String {
    let mut text = format!(
        "add table {TABLE}\n\
         add map {TABLE} sources4 {{ type ipv4_addr : verdict ; }}\n\
         add map {TABLE} sources6 {{ type ipv6_addr : verdict ; }}\n\
         add chain {TABLE} postrouting {{ type nat hook postrouting priority 100 ; }}\n\
         flush chain {TABLE} postrouting\n\
         add rule {TABLE} postrouting ip saddr vmap @sources4\n\
         add rule {TABLE} postrouting ip6 saddr vmap @sources6\n\
         add chain {TABLE} {chain}\n\
         flush chain {TABLE} {chain}\n"
    );
    for address in addresses {
        let (family, multicast) = if address.is_v6() { ("ip6", "ff00::/8") } else { ("ip", "224.0.0.0/4") };
        text.push_str(&format!(
            "add rule {TABLE} {chain} {family} daddr {{ {}, {multicast} }} return\n",
            address.network()
        ));
    }
    text.push_str(&format!("add rule {TABLE} {chain} masquerade\n"));
    for address in addresses {
        let map = if address.is_v6() { "sources6" } else { "sources4" };
        text.push_str(&format!("add element {TABLE} {map} {{ {} : goto {chain} }}\n", address.addr));
    }
    text
}

fn removal(entries: &[(Cidr, String)]) -> String {
    let line = |(address, _): &(Cidr, String)| {
        let map = if address.is_v6() { "sources6" } else { "sources4" };
        format!("delete element {TABLE} {map} {{ {} }}\n", address.addr)
    };
    entries.iter().map(line).collect()
}

/// Address and chain of every entry. `NotFound` without the table.
fn entries() -> io::Result<Vec<(Cidr, String)>> {
    let mut found = Vec::new();
    for map in ["sources4", "sources6"] {
        for element in elements(TABLE, map)? {
            if let (Ok(address), Some(Target::Chain(chain))) = (element.key.parse(), element.target) {
                found.push((Cidr::host(address), chain));
            }
        }
    }
    Ok(found)
}

fn chain_name(network: &str, container_id: &str, ifname: &str) -> String {
    format!("pod-{}", nft::short_hash(&[network, container_id, ifname]))
}
