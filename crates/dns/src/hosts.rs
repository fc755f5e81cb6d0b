//! Names and addresses in the manner of `/etc/hosts`, for zones that say so. Pure.

use std::collections::HashMap;
use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::PTR;
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::settings::Fallthrough;
use crate::zone::{Outcome, address_data, labels, reverse_address};

const DEFAULT_TTL: u32 = 3600;

#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) zones: Vec<Name>,
    pub(crate) ttl: u32,
    pub(crate) without_reverse: bool,
    pub(crate) fallthrough: Fallthrough,
    by_name: HashMap<Name, Vec<IpAddr>>,
    by_address: HashMap<IpAddr, Vec<Name>>,
}

impl Default for Hosts {
    fn default() -> Self {
        Self {
            zones: Vec::new(),
            ttl: DEFAULT_TTL,
            without_reverse: false,
            fallthrough: Fallthrough::default(),
            by_name: HashMap::new(),
            by_address: HashMap::new(),
        }
    }
}

impl Hosts {
    /// `192.0.2.1 name alias # comment`; lines that are none are passed over, as resolvers do.
    pub(crate) fn add_line(&mut self, line: &str) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { return };
        for word in words {
            let Ok(name) = Name::from_ascii(format!("{}.", word.trim_end_matches('.'))) else { continue };
            let name = name.to_lowercase();
            let addresses = self.by_name.entry(name.clone()).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
                self.by_address.entry(address).or_default().push(name);
            }
        }
    }

    /// The addresses of a name in lower case.
    pub(crate) fn addresses(&self, name: &Name) -> &[IpAddr] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn answer(&self, name: &Name, kind: RecordType) -> Outcome {
        if !self.zones.iter().any(|zone| zone.zone_of(name)) {
            return Outcome::Elsewhere;
        }
        let data: Vec<RData> = match kind {
            RecordType::PTR if !self.without_reverse => {
                let address = reverse_address(&labels(name));
                let names = address.and_then(|address| self.by_address.get(&address)).into_iter().flatten();
                names.map(|name| RData::PTR(PTR(name.clone()))).collect()
            }
            RecordType::A | RecordType::AAAA => {
                let addresses = self.addresses(&name.to_lowercase()).iter();
                addresses.filter(|a| a.is_ipv6() == (kind == RecordType::AAAA)).map(|a| address_data(*a)).collect()
            }
            _ => Vec::new(),
        };
        if !data.is_empty() {
            let answers = data.into_iter().map(|data| Record::from_rdata(name.clone(), self.ttl, data)).collect();
            return Outcome::Records { answers, additionals: Vec::new() };
        }
        match (self.addresses(&name.to_lowercase()).is_empty(), self.fallthrough.has(name)) {
            (false, _) => Outcome::NoData,
            (true, true) => Outcome::Elsewhere,
            // As CoreDNS: there is no authority to deny the name with.
            (true, false) => Outcome::Failed(ResponseCode::ServFail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_both_ways() {
        let root = || vec![Name::root()];
        let mut hosts = Hosts { zones: root(), fallthrough: Fallthrough(root()), ..Hosts::default() };
        for line in
            ["192.0.2.1 One.test two.test", "192.0.2.2 one.test", "2001:db8::1 one.test", "x y", "# 192.0.2.3 c"]
        {
            hosts.add_line(line);
        }
        let ask = |hosts: &Hosts, name: &str, kind| match hosts.answer(&Name::from_ascii(name).unwrap(), kind) {
            Outcome::Records { answers, .. } => {
                answers.iter().map(|record| record.data.to_string()).collect::<Vec<_>>().join(" | ")
            }
            other => format!("{other:?}"),
        };
        use RecordType::{A, AAAA, MX, PTR};
        for (name, kind, expected) in [
            ("one.test.", A, "192.0.2.1 | 192.0.2.2"),
            ("ONE.test.", AAAA, "2001:db8::1"),
            ("two.test.", AAAA, "NoData"),
            ("two.test.", MX, "NoData"),
            ("1.2.0.192.in-addr.arpa.", PTR, "one.test. | two.test."),
            ("9.2.0.192.in-addr.arpa.", PTR, "Elsewhere"),
            ("three.test.", A, "Elsewhere"),
        ] {
            assert_eq!(ask(&hosts, name, kind), expected, "{name} {kind}");
        }
        hosts.fallthrough = Fallthrough::default();
        hosts.without_reverse = true;
        assert_eq!(ask(&hosts, "three.test.", A), "Failed(ServFail)");
        assert_eq!(ask(&hosts, "1.2.0.192.in-addr.arpa.", PTR), "Failed(ServFail)");
        hosts.zones = vec![Name::from_ascii("other.").unwrap()];
        assert_eq!(ask(&hosts, "one.test.", A), "Elsewhere");
    }
}
