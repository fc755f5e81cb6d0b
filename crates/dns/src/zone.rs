//! The cluster's domain, after the Kubernetes DNS specification (schema 1.1.0). Pure: a question and an index in, records out.
//!
//! ```text
//! <service>.<ns>.svc.<domain>                       A, AAAA, SRV, CNAME (ExternalName)
//! _<port>._<proto>.<service>.<ns>.svc.<domain>      SRV
//! <hostname>.<service>.<ns>.svc.<domain>            A, AAAA of one endpoint
//! <a-b-c-d>.<ns>.pod.<domain>                       A, AAAA
//! dns-version.<domain>                              TXT
//! <reversed address>.in-addr.arpa, ip6.arpa         PTR
//! ```

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use api::cidr::Cidr;
use api::endpoint::is_ready;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::index::{Index, cluster_ips, service_key};
use crate::settings::{NameOptions, Pods};

const SCHEMA_VERSION: &str = "1.1.0";
/// How long a missing name is missing: short, since clients ask for services as they are made.
const NEGATIVE_TTL: u32 = 5;
const MAX_LABEL: usize = 63;

pub(crate) struct Zone {
    domain: Name,
    labels: Vec<String>,
    options: NameOptions,
    ranges: Vec<Cidr>,
}

/// What the zone says about a question.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Records {
        answers: Vec<Record>,
        additionals: Vec<Record>,
    },
    /// The name exists, with other types.
    NoData,
    NoSuchName,
    /// An alias: the records, and the name to go on with if it is outside the zone.
    Alias {
        answers: Vec<Record>,
        target: Name,
    },
    /// Not a name of ours.
    Elsewhere,
    /// Said by whoever wrote the configuration.
    Composed {
        code: ResponseCode,
        answers: Vec<Record>,
        additionals: Vec<Record>,
        authorities: Vec<Record>,
    },
    /// Nothing but a code.
    Failed(ResponseCode),
}

impl Zone {
    pub(crate) fn new(domain: Name, options: NameOptions, ranges: &[String]) -> Self {
        let ranges = ranges.iter().filter_map(|range| range.parse().ok()).collect();
        Self { labels: labels(&domain), domain, options, ranges }
    }

    /// Whether a name is in the domain.
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.domain.zone_of(name)
    }

    pub(crate) fn is_apex(&self, name: &Name) -> bool {
        self.domain == *name
    }

    /// Where a pod of a namespace looks for a name, before it takes it as it is.
    pub(crate) fn search_path(&self, namespace: &str) -> Vec<Name> {
        let below = |prefix: String| Name::from_ascii(format!("{prefix}{}", self.domain)).ok();
        [format!("{namespace}.svc."), "svc.".to_owned(), String::new()].into_iter().filter_map(below).collect()
    }

    /// The records of the zone itself.
    pub(crate) fn apex_records(&self, index: &dyn Index) -> Vec<Record> {
        let mut records = self.ask(index, &self.domain, &[RecordType::NS]);
        for (host, kinds) in [("ns.dns", &[RecordType::A, RecordType::AAAA][..]), ("dns-version", &[RecordType::TXT])] {
            if let Ok(name) = Name::from_ascii(format!("{host}.{}", self.domain)) {
                records.extend(self.ask(index, &name, kinds));
            }
        }
        records
    }

    /// All records of a service: what would be answered under each of its names.
    pub(crate) fn service_records(&self, index: &dyn Index, service: &Service) -> Vec<Record> {
        use RecordType::{A, AAAA, SRV};
        let (Some(namespace), Some(name)) = (&service.metadata.namespace, &service.metadata.name) else {
            return Vec::new();
        };
        if !index.has_namespace(namespace) {
            return Vec::new();
        }
        let full = |prefix: &str| Name::from_ascii(format!("{prefix}{name}.{namespace}.svc.{}", self.domain)).ok();
        let slices = self.find_slices(index, namespace, name);
        let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        let is_headless = is_headless(service);
        let hosts: BTreeSet<String> = endpoints
            .filter(|endpoint| is_ready(endpoint) && (is_headless || endpoint.hostname.is_some()))
            .filter_map(|endpoint| self.endpoint_host(endpoint))
            .collect();
        let of_service = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        let of_service = of_service.filter(|_| !is_headless).map(|port| (port.name.clone(), port.protocol.clone()));
        let of_slices = slices.iter().filter(|_| is_headless).flat_map(|slice| slice.ports.iter().flatten());
        let ports: BTreeSet<(String, String)> = of_service
            .chain(of_slices.map(|port| (port.name.clone(), port.protocol.clone())))
            .filter_map(|(name, protocol)| Some((name?, protocol.unwrap_or_else(|| "TCP".to_owned()).to_lowercase())))
            .filter(|(name, _)| !name.is_empty())
            .collect();
        let mut records: Vec<Record> = full("").map(|name| self.ask(index, &name, &[A, AAAA])).unwrap_or_default();
        for host in hosts {
            records
                .extend(full(&format!("{host}.")).map(|name| self.ask(index, &name, &[A, AAAA])).unwrap_or_default());
        }
        for (port, protocol) in ports {
            let name = full(&format!("_{port}._{protocol}."));
            records.extend(name.map(|name| self.ask(index, &name, &[SRV])).unwrap_or_default());
        }
        records
    }

    fn ask(&self, index: &dyn Index, name: &Name, kinds: &[RecordType]) -> Vec<Record> {
        let mut records: Vec<Record> = Vec::new();
        for kind in kinds {
            match self.answer(index, name, *kind) {
                Outcome::Records { answers, .. } => records.extend(answers),
                // An alias is all that a name has.
                Outcome::Alias { answers, .. } => return answers,
                _ => {}
            }
        }
        records
    }

    pub(crate) fn needs_pods(&self) -> bool {
        self.options.pods == Pods::Verified
    }

    /// Whether names of this namespace are answered.
    fn has_namespace(&self, index: &dyn Index, namespace: &str) -> bool {
        self.shows(namespace) && index.has_namespace(namespace)
    }

    fn shows(&self, namespace: &str) -> bool {
        self.options.namespaces.is_empty() || self.options.namespaces.iter().any(|shown| shown == namespace)
    }

    fn find_service(&self, index: &dyn Index, namespace: &str, name: &str) -> Option<Arc<Service>> {
        let service = index.service(namespace, name).filter(|_| self.shows(namespace))?;
        let is_external = service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"));
        let has_ready = || {
            let slices = index.slices(namespace, name);
            slices.iter().any(|slice| slice.endpoints.iter().flatten().any(is_ready))
        };
        (!self.options.ignores_empty_services || is_external || has_ready()).then_some(service)
    }

    /// The slices of a service whose endpoints have names.
    fn find_slices(&self, index: &dyn Index, namespace: &str, service: &str) -> Vec<Arc<EndpointSlice>> {
        match self.options.without_endpoints || !self.shows(namespace) {
            true => Vec::new(),
            false => index.slices(namespace, service),
        }
    }

    /// What an endpoint is called: its hostname, its pod's name where that is asked for, or its address with dashes.
    fn endpoint_host(&self, endpoint: &Endpoint) -> Option<String> {
        let hostname = endpoint.hostname.as_deref().filter(|hostname| !hostname.is_empty());
        let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref());
        let pod = pod.filter(|name| self.options.endpoint_pod_names && name.len() <= MAX_LABEL);
        match hostname.or(pod) {
            Some(name) => Some(name.to_ascii_lowercase()),
            None => endpoint.addresses.first().map(|addr| addr.replace(['.', ':'], "-")),
        }
    }

    pub(crate) fn answer(&self, index: &dyn Index, name: &Name, kind: RecordType) -> Outcome {
        let all = labels(name);
        if let Some(addr) = reverse_address(&all) {
            return self.pointer(index, name, kind, addr);
        }
        let Some(rest) = all.len().checked_sub(self.labels.len()).filter(|at| all[*at..] == self.labels[..]) else {
            return Outcome::Elsewhere;
        };
        let parts: Vec<&str> = all[..rest].iter().map(String::as_str).collect();
        match parts.as_slice() {
            [] => self.apex(index, name, kind),
            ["dns-version"] => match kind {
                RecordType::TXT => self.records(name, vec![RData::TXT(TXT::new(vec![SCHEMA_VERSION.to_owned()]))]),
                _ => Outcome::NoData,
            },
            ["ns", "dns"] => self.name_server(index, name, kind),
            ["dns"] | ["svc"] | ["pod"] => Outcome::NoData,
            [namespace, "svc" | "pod"] => exists(self.has_namespace(index, namespace)),
            [address, namespace, "pod"] => self.pod(index, name, kind, address, namespace),
            [service, namespace, "svc"] => self.service(index, name, kind, service, namespace, None),
            [host, service, namespace, "svc"] => match host.strip_prefix('_') {
                // `_tcp.<service>…` alone: there are names below it.
                Some(_) => exists(self.find_service(index, namespace, service).is_some()),
                None => self.host(index, name, kind, host, service, namespace),
            },
            [port, protocol, service, namespace, "svc"] => match (port.strip_prefix('_'), protocol.strip_prefix('_')) {
                (Some(port), Some(protocol)) => {
                    self.service(index, name, kind, service, namespace, Some((port, protocol)))
                }
                _ => Outcome::NoSuchName,
            },
            _ => Outcome::NoSuchName,
        }
    }

    /// Goes with negative answers, so that resolvers know how long to believe them.
    pub(crate) fn authority(&self, index: &dyn Index) -> Record {
        let host = |prefix: &str| Name::from_ascii(format!("{prefix}.{}", self.domain)).unwrap_or_default();
        let soa = SOA::new(host("ns.dns"), host("hostmaster"), index.serial(), 7200, 1800, 86400, NEGATIVE_TTL);
        Record::from_rdata(self.domain.clone(), NEGATIVE_TTL, RData::SOA(soa))
    }

    fn apex(&self, index: &dyn Index, name: &Name, kind: RecordType) -> Outcome {
        match kind {
            RecordType::SOA => {
                let mut soa = self.authority(index);
                soa.name = name.clone();
                Outcome::Records { answers: vec![soa], additionals: Vec::new() }
            }
            RecordType::NS => match Name::from_ascii(format!("ns.dns.{}", self.domain)) {
                Ok(host) => self.records(name, vec![RData::NS(NS(host))]),
                Err(_) => Outcome::NoData,
            },
            _ => Outcome::NoData,
        }
    }

    fn name_server(&self, index: &dyn Index, name: &Name, kind: RecordType) -> Outcome {
        let addresses =
            index.service("kube-system", "kube-dns").map(|service| cluster_ips(&service)).unwrap_or_default();
        self.addresses(name, kind, &addresses)
    }

    fn pod(&self, index: &dyn Index, name: &Name, kind: RecordType, address: &str, namespace: &str) -> Outcome {
        let Some(addr) = undash(address).filter(|_| self.has_namespace(index, namespace)) else {
            return Outcome::NoSuchName;
        };
        let is_known = match self.options.pods {
            Pods::Disabled => false,
            Pods::Insecure => true,
            Pods::Verified => index.has_pod(namespace, addr),
        };
        match is_known {
            true => self.addresses(name, kind, &[addr]),
            false => Outcome::NoSuchName,
        }
    }

    fn service(
        &self,
        index: &dyn Index,
        name: &Name,
        kind: RecordType,
        service: &str,
        namespace: &str,
        port: Option<(&str, &str)>,
    ) -> Outcome {
        let Some(object) = self.find_service(index, namespace, service) else { return Outcome::NoSuchName };
        let Some(spec) = &object.spec else { return Outcome::NoSuchName };
        if spec.type_.as_deref() == Some("ExternalName") {
            return match port {
                Some(_) => Outcome::NoSuchName,
                None => self.alias(name, spec.external_name.as_deref().unwrap_or_default()),
            };
        }
        let own = cluster_ips(&object);
        let full = |prefix: &str| Name::from_ascii(format!("{prefix}{service}.{namespace}.svc.{}", self.domain)).ok();
        // (port, target, addresses of the target)
        let mut targets: Vec<(u16, Name, Vec<IpAddr>)> = Vec::new();
        if own.is_empty() {
            let slices = self.find_slices(index, namespace, service);
            for slice in &slices {
                for endpoint in slice.endpoints.iter().flatten().filter(|endpoint| is_ready(endpoint)) {
                    let Some(target) = self.endpoint_host(endpoint).and_then(|host| full(&format!("{host}."))) else {
                        continue;
                    };
                    let addresses = endpoint_addresses(endpoint);
                    // An endpoint without ports still has addresses.
                    if port.is_none() && slice.ports.iter().flatten().next().is_none() {
                        targets.push((0, target, addresses));
                        continue;
                    }
                    for number in slice
                        .ports
                        .iter()
                        .flatten()
                        .filter(|p| matches(port, p.name.as_deref(), p.protocol.as_deref()))
                        .filter_map(|p| u16::try_from(p.port?).ok())
                    {
                        targets.push((number, target.clone(), addresses.clone()));
                    }
                }
            }
        } else if let Some(target) = full("") {
            for number in spec
                .ports
                .iter()
                .flatten()
                .filter(|p| matches(port, p.name.as_deref(), p.protocol.as_deref()))
                .filter_map(|p| u16::try_from(p.port).ok())
            {
                targets.push((number, target.clone(), own.clone()));
            }
            // An address does not need a port.
            if port.is_none() && targets.is_empty() {
                targets.push((0, target, own));
            }
        }
        if targets.is_empty() {
            // A headless service without endpoints has a name; a port that nobody has does not.
            return if port.is_some() { Outcome::NoSuchName } else { Outcome::NoData };
        }
        match kind {
            RecordType::SRV => self.services(name, targets),
            _ => {
                let unique: BTreeSet<IpAddr> = targets.into_iter().flat_map(|(_, _, addresses)| addresses).collect();
                self.addresses(name, kind, &unique.into_iter().collect::<Vec<_>>())
            }
        }
    }

    fn services(&self, name: &Name, targets: Vec<(u16, Name, Vec<IpAddr>)>) -> Outcome {
        let mut answers: Vec<Record> = Vec::new();
        let mut additionals: Vec<Record> = Vec::new();
        let weight = (100 / targets.len().max(1)).max(1) as u16;
        for (port, target, addresses) in targets.into_iter().filter(|(port, _, _)| *port > 0) {
            let srv = RData::SRV(SRV::new(0, weight, port, target.clone()));
            let record = Record::from_rdata(name.clone(), self.options.ttl, srv);
            if !answers.contains(&record) {
                answers.push(record);
            }
            for addr in addresses {
                let record = Record::from_rdata(target.clone(), self.options.ttl, address_data(addr));
                if !additionals.contains(&record) {
                    additionals.push(record);
                }
            }
        }
        match answers.is_empty() {
            true => Outcome::NoData,
            false => Outcome::Records { answers, additionals },
        }
    }

    /// One endpoint of a service, by its hostname or its address with dashes.
    fn host(
        &self,
        index: &dyn Index,
        name: &Name,
        kind: RecordType,
        host: &str,
        service: &str,
        namespace: &str,
    ) -> Outcome {
        let slices = self.find_slices(index, namespace, service);
        let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        let addresses: BTreeSet<IpAddr> = endpoints
            .filter(|endpoint| is_ready(endpoint) && self.endpoint_host(endpoint).as_deref() == Some(host))
            .flat_map(endpoint_addresses)
            .collect();
        match addresses.is_empty() {
            true => Outcome::NoSuchName,
            false => self.addresses(name, kind, &addresses.into_iter().collect::<Vec<_>>()),
        }
    }

    fn pointer(&self, index: &dyn Index, name: &Name, kind: RecordType, addr: IpAddr) -> Outcome {
        let mut names: BTreeSet<String> = BTreeSet::new();
        for service in index.services_at(addr) {
            if let (Some(namespace), Some(service)) = (&service.metadata.namespace, &service.metadata.name) {
                names.insert(format!("{service}.{namespace}.svc.{}", self.domain));
            }
        }
        if names.is_empty() {
            for slice in index.slices_at(addr) {
                names.extend(self.endpoint_names(index, &slice, addr));
            }
        }
        let records: Vec<RData> =
            names.iter().filter_map(|name| Name::from_ascii(name).ok()).map(|name| RData::PTR(PTR(name))).collect();
        match (records.is_empty(), kind) {
            (false, RecordType::PTR) => self.records(name, records),
            (false, _) => Outcome::NoData,
            (true, _) if self.ranges.iter().any(|range| range.contains(addr)) => Outcome::NoSuchName,
            (true, _) => Outcome::Elsewhere,
        }
    }

    /// Endpoints have names of their own only in headless services or with a hostname.
    fn endpoint_names(&self, index: &dyn Index, slice: &EndpointSlice, addr: IpAddr) -> Vec<String> {
        let Some(key) = service_key(slice) else { return Vec::new() };
        let (namespace, service) = key.split_once('/').unwrap_or(("", &key));
        let is_headless = index.service(namespace, service).is_some_and(|service| is_headless(&service));
        let endpoints = slice.endpoints.iter().flatten();
        endpoints
            .filter(|endpoint| is_headless || endpoint.hostname.is_some())
            .filter(|endpoint| endpoint_addresses(endpoint).contains(&addr))
            .filter_map(|endpoint| self.endpoint_host(endpoint))
            .map(|host| format!("{host}.{service}.{namespace}.svc.{}", self.domain))
            .collect()
    }

    fn alias(&self, name: &Name, target: &str) -> Outcome {
        // A name that is an address is no name: upstream's servers answer with it as a label, which helps nobody.
        match Name::from_ascii(format!("{}.", target.trim_end_matches('.'))) {
            Ok(target) if !target.is_root() => {
                let record = Record::from_rdata(name.clone(), self.options.ttl, RData::CNAME(CNAME(target.clone())));
                Outcome::Alias { answers: vec![record], target }
            }
            _ => Outcome::NoData,
        }
    }

    fn addresses(&self, name: &Name, kind: RecordType, addresses: &[IpAddr]) -> Outcome {
        let wanted = |addr: &&IpAddr| match kind {
            RecordType::A => addr.is_ipv4(),
            RecordType::AAAA => addr.is_ipv6(),
            RecordType::ANY => true,
            _ => false,
        };
        let data: Vec<RData> = addresses.iter().filter(wanted).map(|addr| address_data(*addr)).collect();
        match data.is_empty() {
            true => Outcome::NoData,
            false => self.records(name, data),
        }
    }

    fn records(&self, name: &Name, data: Vec<RData>) -> Outcome {
        let answers = data.into_iter().map(|data| Record::from_rdata(name.clone(), self.options.ttl, data)).collect();
        Outcome::Records { answers, additionals: Vec::new() }
    }
}

impl Outcome {
    pub(crate) fn code(&self) -> ResponseCode {
        match self {
            Self::NoSuchName => ResponseCode::NXDomain,
            Self::Elsewhere => ResponseCode::Refused,
            Self::Composed { code, .. } | Self::Failed(code) => *code,
            _ => ResponseCode::NoError,
        }
    }
}

fn exists(exists: bool) -> Outcome {
    if exists { Outcome::NoData } else { Outcome::NoSuchName }
}

/// From the left, in lower case.
pub(crate) fn labels(name: &Name) -> Vec<String> {
    name.iter().map(|label| String::from_utf8_lossy(label).to_ascii_lowercase()).collect()
}

pub(crate) fn address_data(addr: IpAddr) -> RData {
    match addr {
        IpAddr::V4(addr) => RData::A(A(addr)),
        IpAddr::V6(addr) => RData::AAAA(AAAA(addr)),
    }
}

fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.cluster_ip.as_deref() == Some("None"))
}

pub(crate) fn endpoint_addresses(endpoint: &Endpoint) -> Vec<IpAddr> {
    endpoint.addresses.iter().filter_map(|addr| addr.parse().ok()).collect()
}

fn matches(wanted: Option<(&str, &str)>, name: Option<&str>, protocol: Option<&str>) -> bool {
    wanted.is_none_or(|(port, proto)| {
        name.unwrap_or_default().eq_ignore_ascii_case(port) && protocol.unwrap_or("TCP").eq_ignore_ascii_case(proto)
    })
}

/// `10-0-0-1` or `fd00--1`.
fn undash(text: &str) -> Option<IpAddr> {
    text.replace('-', ".").parse::<Ipv4Addr>().map(IpAddr::from).ok().or_else(|| {
        // A leading or trailing dash stands for part of `::`.
        text.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::from).ok()
    })
}

pub(crate) fn reverse_address(labels: &[String]) -> Option<IpAddr> {
    let parts: Vec<&str> = labels.iter().map(String::as_str).collect();
    match parts.as_slice() {
        [d, c, b, a, "in-addr", "arpa"] => {
            let number = |text: &&str| text.parse::<u8>().ok();
            Some(Ipv4Addr::new(number(a)?, number(b)?, number(c)?, number(d)?).into())
        }
        [nibbles @ .., "ip6", "arpa"] if nibbles.len() == 32 => {
            let mut bits: u128 = 0;
            for nibble in nibbles.iter().rev() {
                let digit = (nibble.len() == 1).then(|| u128::from_str_radix(nibble, 16).ok())??;
                bits = bits << 4 | digit;
            }
            Some(Ipv6Addr::from_bits(bits).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::offline::Objects;

    fn index() -> Objects {
        let service = |name: &str, spec: Value| -> Arc<Service> {
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec})).unwrap(),
            )
        };
        let slice = |service: &str, ports: Value, endpoints: Value| -> Arc<EndpointSlice> {
            let metadata =
                json!({"name": service, "namespace": "ns", "labels": {"kubernetes.io/service-name": service}});
            let value = json!({"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints});
            Arc::new(serde_json::from_value(value).unwrap())
        };
        let http = json!([{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
        Objects {
            namespaces: vec!["ns".into()],
            pods: vec![("ns".into(), "10.42.0.2".parse().unwrap())],
            services: vec![
                service(
                    "web",
                    json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9", "fd43::9"], "ports": http}),
                ),
                service("db", json!({"clusterIP": "None", "ports": [{"name": "pg", "port": 5432}]})),
                service("empty", json!({"clusterIP": "None"})),
                service("ext", json!({"type": "ExternalName", "externalName": "foo.example.com"})),
            ],
            slices: vec![
                slice("web", json!([{"name": "http", "port": 8080}]), json!([{"addresses": ["10.42.0.7"]}])),
                slice(
                    "db",
                    json!([{"name": "pg", "port": 5432}]),
                    json!([
                        {"addresses": ["10.42.0.2"], "hostname": "db-0"},
                        {"addresses": ["10.42.0.3"], "targetRef": {"kind": "Pod", "name": "db-pod"}},
                        {"addresses": ["10.42.0.4"], "conditions": {"ready": false}},
                    ]),
                ),
            ],
        }
    }

    fn ask(name: &str, kind: RecordType) -> String {
        ask_with(NameOptions { ttl: 30, pods: Pods::Insecure, ..NameOptions::default() }, name, kind)
    }

    fn ask_with(options: NameOptions, name: &str, kind: RecordType) -> String {
        let domain = Name::from_ascii("cluster.local.").unwrap();
        let zone = Zone::new(domain, options, &["10.42.0.0/16".into()]);
        match zone.answer(&index(), &Name::from_ascii(name).unwrap(), kind) {
            Outcome::Records { answers, .. } => {
                answers.iter().map(|record| record.data.to_string()).collect::<Vec<_>>().join(" | ")
            }
            Outcome::Alias { target, .. } => format!("alias {target}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn options_change_what_has_a_name() {
        use RecordType::{A, SRV};
        let with = |change: fn(&mut NameOptions)| {
            let mut options = NameOptions { pods: Pods::Insecure, ..NameOptions::default() };
            change(&mut options);
            options
        };
        let (web, db, pod) =
            ("web.ns.svc.cluster.local.", "db.ns.svc.cluster.local.", "10-42-0-2.ns.pod.cluster.local.");
        for (change, name, kind, expected) in [
            ((|o| o.pods = Pods::Disabled) as fn(&mut NameOptions), pod, A, "NoSuchName"),
            (|o| o.pods = Pods::Verified, pod, A, "10.42.0.2"),
            (|o| o.pods = Pods::Verified, "10-42-0-9.ns.pod.cluster.local.", A, "NoSuchName"),
            (|o| o.namespaces = vec!["ns".into()], web, A, "10.43.0.9"),
            (|o| o.namespaces = vec!["other".into()], web, A, "NoSuchName"),
            (|o| o.namespaces = vec!["other".into()], pod, A, "NoSuchName"),
            (|o| o.namespaces = vec!["other".into()], "ns.svc.cluster.local.", A, "NoSuchName"),
            (|o| o.without_endpoints = true, db, A, "NoData"),
            (|o| o.without_endpoints = true, "db-0.db.ns.svc.cluster.local.", A, "NoSuchName"),
            (|o| o.without_endpoints = true, web, A, "10.43.0.9"),
            (|o| o.ignores_empty_services = true, "empty.ns.svc.cluster.local.", A, "NoSuchName"),
            (|o| o.ignores_empty_services = true, web, A, "10.43.0.9"),
            (|o| o.ignores_empty_services = true, "ext.ns.svc.cluster.local.", A, "alias foo.example.com."),
            (|o| o.endpoint_pod_names = true, "db-pod.db.ns.svc.cluster.local.", A, "10.42.0.3"),
            (|o| o.endpoint_pod_names = true, "db-0.db.ns.svc.cluster.local.", A, "10.42.0.2"),
            (
                |o| o.endpoint_pod_names = true,
                "_pg._tcp.db.ns.svc.cluster.local.",
                SRV,
                "0 50 5432 db-0.db.ns.svc.cluster.local. | 0 50 5432 db-pod.db.ns.svc.cluster.local.",
            ),
        ] {
            assert_eq!(ask_with(with(change), name, kind), expected, "{name}");
        }
    }

    #[test]
    fn the_specification() {
        use RecordType::{A, AAAA, MX, PTR, SRV, TXT};
        for (name, kind, expected) in [
            ("web.ns.svc.cluster.local.", A, "10.43.0.9"),
            ("WEB.Ns.svc.Cluster.Local.", A, "10.43.0.9"),
            ("web.ns.svc.cluster.local.", AAAA, "fd43::9"),
            ("web.ns.svc.cluster.local.", MX, "NoData"),
            ("_http._tcp.web.ns.svc.cluster.local.", SRV, "0 100 80 web.ns.svc.cluster.local."),
            ("_dns._udp.web.ns.svc.cluster.local.", SRV, "0 100 53 web.ns.svc.cluster.local."),
            ("_dns._tcp.web.ns.svc.cluster.local.", SRV, "NoSuchName"),
            ("_tcp.web.ns.svc.cluster.local.", SRV, "NoData"),
            ("db.ns.svc.cluster.local.", A, "10.42.0.2 | 10.42.0.3"),
            ("db.ns.svc.cluster.local.", AAAA, "NoData"),
            ("db-0.db.ns.svc.cluster.local.", A, "10.42.0.2"),
            ("10-42-0-3.db.ns.svc.cluster.local.", A, "10.42.0.3"),
            ("10-42-0-4.db.ns.svc.cluster.local.", A, "NoSuchName"),
            (
                "_pg._tcp.db.ns.svc.cluster.local.",
                SRV,
                "0 50 5432 db-0.db.ns.svc.cluster.local. | 0 50 5432 10-42-0-3.db.ns.svc.cluster.local.",
            ),
            ("empty.ns.svc.cluster.local.", A, "NoData"),
            ("ext.ns.svc.cluster.local.", A, "alias foo.example.com."),
            ("10-42-0-2.ns.pod.cluster.local.", A, "10.42.0.2"),
            ("fd00--2.ns.pod.cluster.local.", AAAA, "fd00::2"),
            ("x.ns.pod.cluster.local.", A, "NoSuchName"),
            ("10-42-0-2.none.pod.cluster.local.", A, "NoSuchName"),
            ("dns-version.cluster.local.", TXT, "1.1.0"),
            ("none.ns.svc.cluster.local.", A, "NoSuchName"),
            ("web.none.svc.cluster.local.", A, "NoSuchName"),
            ("ns.svc.cluster.local.", A, "NoData"),
            ("none.svc.cluster.local.", A, "NoSuchName"),
            ("svc.cluster.local.", A, "NoData"),
            ("cluster.local.", A, "NoData"),
            ("x.cluster.local.", A, "NoSuchName"),
            ("example.com.", A, "Elsewhere"),
            ("9.0.43.10.in-addr.arpa.", PTR, "web.ns.svc.cluster.local."),
            ("2.0.42.10.in-addr.arpa.", PTR, "db-0.db.ns.svc.cluster.local."),
            ("3.0.42.10.in-addr.arpa.", PTR, "10-42-0-3.db.ns.svc.cluster.local."),
            ("7.0.42.10.in-addr.arpa.", PTR, "NoSuchName"),
            ("1.2.0.192.in-addr.arpa.", PTR, "Elsewhere"),
            (
                "9.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.4.d.f.ip6.arpa.",
                PTR,
                "web.ns.svc.cluster.local.",
            ),
        ] {
            assert_eq!(ask(name, kind), expected, "{name} {kind}");
        }
    }
}
