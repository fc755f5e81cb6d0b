//! Puts the table together: rules of many objects under ports, listeners and hosts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::sign::CertifiedKey;

use crate::hostname::Pattern;
use crate::table::{Bind, Listener, Port, Protocol, Rank, Rule, Rules, StreamRoute, Table};

/// Whose ports: those of the addresses that Ingresses and Gateways share, or those of addresses that one Gateway has for itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Site {
    Shared,
    Own(Vec<IpAddr>),
}

impl Site {
    /// Where one of its ports is opened; nowhere, if it has no address.
    pub(super) fn binds(&self, port: u16) -> Vec<Bind> {
        match self {
            Self::Shared => vec![Bind::shared(port)],
            Self::Own(addresses) => addresses.iter().map(|address| Bind { address: Some(*address), port }).collect(),
        }
    }

    pub(super) fn has_address(&self) -> bool {
        !matches!(self, Self::Own(addresses) if addresses.is_empty())
    }
}

#[derive(Default)]
pub(super) struct Builder {
    ports: BTreeMap<(Site, u16), PortBuilder>,
}

struct PortBuilder {
    protocol: Protocol,
    listeners: BTreeMap<Pattern, ListenerBuilder>,
    default_certificate: Option<Arc<CertifiedKey>>,
}

#[derive(Default)]
pub(super) struct ListenerBuilder {
    rules: BTreeMap<Pattern, Vec<Rule>>,
    certificates: BTreeMap<Pattern, Arc<CertifiedKey>>,
    streams: BTreeMap<Pattern, (Rank, StreamRoute)>,
}

impl ListenerBuilder {
    pub(super) fn rule(&mut self, host: Pattern, rule: Rule) {
        self.rules.entry(host).or_default().push(rule);
    }

    /// The first to come stays.
    pub(super) fn certificate(&mut self, host: Pattern, certificate: Arc<CertifiedKey>) {
        self.certificates.entry(host).or_insert(certificate);
    }

    /// The one of lowest rank stays.
    pub(super) fn stream(&mut self, host: Pattern, rank: Rank, stream: StreamRoute) {
        let (known, present) = self.streams.entry(host).or_insert_with(|| (rank.clone(), stream.clone()));
        if rank < *known {
            (*known, *present) = (rank, stream);
        }
    }
}

impl Builder {
    /// What a port speaks, if it is spoken for.
    pub(super) fn protocol(&self, site: &Site, port: u16) -> Option<Protocol> {
        self.ports.get(&(site.clone(), port)).map(|port| port.protocol)
    }

    /// On all addresses together.
    pub(super) fn port_count(&self) -> usize {
        self.ports.keys().map(|(site, port)| site.binds(*port).len()).sum()
    }

    fn port(&mut self, site: &Site, port: u16, protocol: Protocol) -> &mut PortBuilder {
        let make = || PortBuilder { protocol, listeners: BTreeMap::new(), default_certificate: None };
        self.ports.entry((site.clone(), port)).or_insert_with(make)
    }

    /// The listener of some hosts of a port, whose protocol is settled by whoever comes first.
    pub(super) fn listener(
        &mut self,
        site: &Site,
        port: u16,
        protocol: Protocol,
        hosts: Pattern,
    ) -> &mut ListenerBuilder {
        self.port(site, port, protocol).listeners.entry(hosts).or_default()
    }

    /// The first to come stays.
    pub(super) fn default_certificate(&mut self, site: &Site, port: u16, certificate: Arc<CertifiedKey>) {
        self.port(site, port, Protocol::Tls).default_certificate.get_or_insert(certificate);
    }

    pub(super) fn finish(self) -> Table {
        let ports = self.ports.into_iter().flat_map(|((site, number), port)| {
            let listeners = port.listeners.into_iter().map(|(hosts, listener)| {
                let hosts_of_listener = listener.rules.into_iter().map(|(host, rules)| (host, Rules::new(rules)));
                let streams = listener.streams.into_iter().map(|(host, (_, stream))| (host, stream));
                let listener = Listener {
                    hosts: hosts_of_listener.collect(),
                    certificates: listener.certificates.into_iter().collect(),
                    streams: streams.collect(),
                };
                (hosts, Arc::new(listener))
            });
            let (protocol, default_certificate) = (port.protocol, port.default_certificate);
            let port = Arc::new(Port { protocol, listeners: listeners.collect(), default_certificate });
            site.binds(number).into_iter().map(move |bind| (bind, port.clone()))
        });
        Table { ports: ports.collect(), ..Table::default() }
    }
}
