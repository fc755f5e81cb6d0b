//! Which addresses a Gateway has: those that all share or, where there is a pool, some of it for itself.
//!
//! What a Gateway has it keeps, as its status says, and nobody who comes later gets it. Without a pool all have the same.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::cidr::{self, Cidr};
use api::meta::Meta as _;
use api::sort::CompactSort as _;

use super::Settings;
use super::builder::Site;
use super::gateways::refusal;
use crate::gateway_api::{Gateway, GatewayAddress};

/// Whoever comes first has an address: how many one namespace can have is for a quota to say.
const USED_UP: &str = "every address of the pool is another gateway's; a ResourceQuota of \
    count/gateways.gateway.networking.k8s.io limits how many a namespace has";

/// What a Gateway got.
pub(super) struct Assigned {
    pub(super) site: Site,
    /// What its status says.
    pub(super) published: Vec<IpAddr>,
    /// Why that is not what it asks for: reason and message of a condition.
    pub(super) problem: Option<(&'static str, String)>,
    /// Of which family of the pool it has no address, although it is served: the message of a condition.
    pub(super) lack: Option<String>,
}

/// What each Gateway got. The first of them choose first, after what any of them has already.
pub(super) fn assign<'w>(gateways: Vec<&'w Arc<Gateway>>, settings: &Settings) -> Vec<(&'w Arc<Gateway>, Assigned)> {
    let mut owners = Owners { settings, by_address: BTreeMap::new(), held: BTreeMap::new(), lowest: [None; 2] };
    for gateway in &gateways {
        owners.confirm(gateway);
    }
    gateways.into_iter().map(|gateway| (gateway, owners.assign(gateway))).collect()
}

/// The addresses that Gateways got for themselves, with the uids of those.
pub(super) fn owners(gateways: &[(&Arc<Gateway>, Assigned)]) -> BTreeMap<IpAddr, String> {
    let mut owners = BTreeMap::new();
    for (gateway, assigned) in gateways {
        if let Site::Own(addresses) = &assigned.site {
            let uid = gateway.metadata.uid().to_owned();
            owners.extend(addresses.iter().map(|address| (*address, uid.clone())));
        }
    }
    owners
}

/// Whose each address of the pool is.
struct Owners<'s> {
    settings: &'s Settings,
    by_address: BTreeMap<IpAddr, String>,
    /// What a Gateway that names none has already, of IPv6 or not.
    held: BTreeMap<(String, bool), IpAddr>,
    /// Of each family, one that no free one is before.
    lowest: [Option<IpAddr>; 2],
}

impl Owners<'_> {
    /// What its status says that a Gateway has, as far as it still asks for it: of each family one, or those that it names.
    fn confirm(&mut self, gateway: &Gateway) {
        if refusal(gateway).is_some() {
            return;
        }
        let (key, named) = (client::object_key(gateway), named(gateway));
        let mut families = [false; 2];
        for address in gateway.status.addresses.iter().filter_map(parsed) {
            let family = &mut families[usize::from(address.is_ipv6())];
            let is_wanted = match named.is_empty() {
                true => !std::mem::replace(family, true),
                false => named.iter().any(|named| parsed(named) == Some(address)),
            };
            if is_wanted && self.is_in_pool(address) {
                let owner = self.by_address.entry(address).or_insert_with(|| key.clone());
                if *owner == key && named.is_empty() {
                    self.held.insert((key.clone(), address.is_ipv6()), address);
                }
            }
        }
    }

    fn assign(&mut self, gateway: &Gateway) -> Assigned {
        if self.settings.pool.is_empty() {
            return self.shared(gateway);
        }
        if refusal(gateway).is_some() {
            return Assigned { site: Site::Own(Vec::new()), published: Vec::new(), problem: None, lack: None };
        }
        match named(gateway).as_slice() {
            [] => self.any(gateway),
            named => self.these(gateway, named),
        }
    }

    /// One address of each family of the pool.
    fn any(&mut self, gateway: &Gateway) -> Assigned {
        let key = client::object_key(gateway);
        let (mut found, mut lack) = (Vec::new(), None);
        for (is_v6, family) in [(false, "IPv4"), (true, "IPv6")] {
            let held = self.held.get(&(key.clone(), is_v6)).copied();
            let address = held.or_else(|| self.free(is_v6));
            if let Some(address) = address {
                self.by_address.insert(address, key.clone());
                found.push(address);
            } else if self.settings.pool.iter().any(|range| range.is_v6() == is_v6) {
                lack = Some(format!("the pool has no free {family} address"));
            }
        }
        let problem = found.is_empty().then(|| ("AddressNotAssigned", USED_UP.to_owned()));
        Assigned { site: Site::Own(found.clone()), published: found, problem, lack }
    }

    /// The lowest that nobody has. Each that somebody has is passed over once, so all together take no longer than there are Gateways.
    fn free(&mut self, is_v6: bool) -> Option<IpAddr> {
        let from = self.lowest[usize::from(is_v6)];
        let is_free = |address: &IpAddr| !self.by_address.contains_key(address) && self.is_in_pool(*address);
        let ranges = || self.settings.pool.iter().filter(move |range| range.is_v6() == is_v6);
        let mut left = ranges().skip_while(|range| from.is_some_and(|from| !range.contains(from)));
        let found = left.find_map(|range| {
            let first = from.filter(|from| range.contains(*from)).unwrap_or(range.network().addr);
            let last = range.last();
            let next = |address: &IpAddr| cidr::next(*address).filter(|_| *address != last);
            std::iter::successors(Some(first), next).find(is_free)
        });
        let end = ranges().next_back().map(Cidr::last);
        self.lowest[usize::from(is_v6)] = found.or(end);
        found
    }

    /// Those that it names, as far as they can be had.
    fn these(&mut self, gateway: &Gateway, named: &[&GatewayAddress]) -> Assigned {
        let key = client::object_key(gateway);
        let (mut shared, mut own, mut problem) = (Vec::new(), Vec::new(), None);
        for asked in named {
            let address = parsed(asked);
            let refused = match address {
                Some(address) if self.is_ours(address) => {
                    shared.push(address);
                    continue;
                }
                Some(address) if self.is_in_pool(address) => {
                    let owner = self.by_address.entry(address).or_insert_with(|| key.clone());
                    if *owner == key {
                        own.push(address);
                        continue;
                    }
                    "is another gateway's"
                }
                Some(address) if self.settings.taken.contains(&address) => "is one that the machine has for itself",
                _ => "is neither the gateway's nor one of its pool",
            };
            problem.get_or_insert_with(|| ("AddressNotUsable", format!("address {:?} {refused}", asked.value)));
        }
        if own.is_empty() && !shared.is_empty() {
            return Assigned { site: Site::Shared, published: shared, problem, lack: None };
        }
        if let Some(address) = shared.first() {
            let text = format!("address \"{address}\" is shared with others and cannot be had with those of the pool");
            problem.get_or_insert(("AddressNotUsable", text));
        }
        own.compact_sort();
        own.dedup();
        Assigned { site: Site::Own(own.clone()), published: own, problem, lack: None }
    }

    /// What all have, of which it may name some.
    fn shared(&self, gateway: &Gateway) -> Assigned {
        let (named, ours) = (named(gateway), &self.settings.addresses);
        let is_named = |address: &&IpAddr| {
            named.is_empty() || named.iter().any(|named| parsed(named) == Some(address.to_canonical()))
        };
        let unusable = named.iter().find(|named| parsed(named).is_none_or(|address| !self.is_ours(address)));
        let problem =
            unusable.map(|named| ("AddressNotUsable", format!("address {:?} is not the gateway's", named.value)));
        let published = ours.iter().filter(is_named).copied().collect();
        Assigned { site: Site::Shared, published, problem, lack: None }
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.settings.addresses.iter().any(|ours| ours.to_canonical() == address)
    }

    fn is_in_pool(&self, address: IpAddr) -> bool {
        let is_taken = self.is_ours(address) || self.settings.taken.contains(&address);
        !is_taken && self.settings.pool.iter().any(|range| range.contains(address))
    }
}

/// The addresses that a Gateway asks for by value.
fn named(gateway: &Gateway) -> Vec<&GatewayAddress> {
    gateway.spec.addresses.iter().filter(|asked| !asked.value.is_empty()).collect()
}

fn parsed(address: &GatewayAddress) -> Option<IpAddr> {
    address.value.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}
