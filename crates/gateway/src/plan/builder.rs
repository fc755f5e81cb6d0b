//! Puts the table together: rules of many objects under ports, listeners and hosts.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::sign::CertifiedKey;

use crate::hostname::Pattern;
use crate::table::{Listener, Port, Protocol, Rank, Rule, Rules, StreamRoute, Table};

#[derive(Default)]
pub(super) struct Builder {
    ports: BTreeMap<u16, PortBuilder>,
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
    pub(super) fn protocol(&self, port: u16) -> Option<Protocol> {
        self.ports.get(&port).map(|port| port.protocol)
    }

    pub(super) fn port_count(&self) -> usize {
        self.ports.len()
    }

    fn port(&mut self, port: u16, protocol: Protocol) -> &mut PortBuilder {
        let make = || PortBuilder { protocol, listeners: BTreeMap::new(), default_certificate: None };
        self.ports.entry(port).or_insert_with(make)
    }

    /// The listener of some hosts of a port, whose protocol is settled by whoever comes first.
    pub(super) fn listener(&mut self, port: u16, protocol: Protocol, hosts: Pattern) -> &mut ListenerBuilder {
        self.port(port, protocol).listeners.entry(hosts).or_default()
    }

    /// The first to come stays.
    pub(super) fn default_certificate(&mut self, port: u16, certificate: Arc<CertifiedKey>) {
        self.port(port, Protocol::Tls).default_certificate.get_or_insert(certificate);
    }

    pub(super) fn finish(self) -> Table {
        let ports = self.ports.into_iter().map(|(number, port)| {
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
            let port = Port { protocol, listeners: listeners.collect(), default_certificate };
            (number, Arc::new(port))
        });
        Table { ports: ports.collect(), ..Table::default() }
    }
}
