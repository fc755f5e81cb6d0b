//! What is answered how: from flags, or from a Corefile in their place. A plan does not change; a new one takes its place.
//!
//! In a server block, questions pass in CoreDNS's order, whatever the order of its lines: rewrites, templates, hosts, the
//! cluster's names, other resolvers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use api::sort::CompactSort as _;
use hickory_proto::ProtoError;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, Record, RecordType};

use crate::corefile::{self, Refusal, Server, Surroundings};
use crate::forward::Forwarder;
use crate::hosts::Hosts;
use crate::index::Index;
use crate::rewrite::Rule;
use crate::settings::{Cache, Fallthrough, Forward, Kubernetes, Log, NameOptions, Pods, Policy, Transfer};
use crate::template::Template;
use crate::zone::{Outcome, Zone, labels, reverse_address};

/// As long as resolvers are believed where flags say how the server works.
const FLAGS_CACHE: (u32, u32) = (3600, 30);

/// What the server is told by flags.
pub(crate) struct Flags<'a> {
    pub(crate) domain: &'a str,
    pub(crate) ttl: u32,
    pub(crate) upstreams: &'a [SocketAddr],
    pub(crate) stub_domains: &'a [(String, Vec<SocketAddr>)],
    pub(crate) ranges: &'a [String],
    /// What pods have in their search paths after the cluster's domain: that of the node.
    pub(crate) search: &'a [String],
    /// Addresses that lead back to us: asking them would go round in circles.
    pub(crate) own: Vec<SocketAddr>,
}

/// A cluster's domain that is no name.
#[derive(Debug, thiserror::Error)]
#[error("invalid domain {text:?}: {source}")]
pub struct InvalidDomain {
    text: String,
    source: ProtoError,
}

pub(crate) struct Plan {
    /// The most specific zones first.
    blocks: Vec<Block>,
}

/// What becomes of the names of some zones.
pub(crate) struct Block {
    zones: Vec<Name>,
    pub(crate) rewrites: Vec<Rule>,
    templates: Vec<Template>,
    hosts: Option<Hosts>,
    cluster: Option<Cluster>,
    forwarders: Vec<Arc<Forwarder>>,
    log: Option<Log>,
    /// Whether the addresses of an answer take turns.
    pub(crate) rotates: bool,
    autopath: Option<Autopath>,
    transfer: Option<Transfer>,
}

/// Where the search path of a pod is walked for it.
struct Autopath {
    zones: Vec<Name>,
    /// What every search path ends with.
    search: Vec<Name>,
}

/// The names of the cluster, in one or several domains.
struct Cluster {
    zones: Vec<Zone>,
    reverse: Vec<Name>,
    fallthrough: Fallthrough,
}

/// What is known of a name without asking others.
pub(crate) struct Known {
    pub(crate) outcome: Outcome,
    /// Goes with a denial, so that resolvers know how long to believe it.
    pub(crate) authority: Option<Record>,
}

impl Plan {
    /// Everything that flags can say.
    pub(crate) fn of_flags(flags: &Flags<'_>) -> Result<Plan, InvalidDomain> {
        let text = format!("{}.", flags.domain.trim_matches('.').to_ascii_lowercase());
        let domain = Name::from_ascii(&text).map_err(|source| InvalidDomain { text, source })?;
        let reverse: Vec<Name> =
            ["in-addr.arpa.", "ip6.arpa."].iter().filter_map(|name| Name::from_ascii(name).ok()).collect();
        let names = NameOptions { ttl: flags.ttl, pods: Pods::Insecure, ..NameOptions::default() };
        let zones = [domain].into_iter().chain(reverse.iter().cloned()).collect();
        let forward = |from: Name, to: &[SocketAddr]| Forward {
            from,
            except: Vec::new(),
            to: to.to_vec(),
            policy: Policy::Sequential,
            over_tcp: false,
        };
        let stubs = flags.stub_domains.iter().filter_map(|(domain, servers)| {
            let name = Name::from_ascii(format!("{}.", domain.trim_matches('.'))).ok()?;
            Some(forward(name.to_lowercase(), servers))
        });
        let mut forwards: Vec<Forward> = stubs.chain([forward(Name::root(), flags.upstreams)]).collect();
        forwards.compact_sort_by_key(|forward| std::cmp::Reverse(forward.from.num_labels()));
        let server = Server {
            zones: vec![Name::root()],
            kubernetes: Some(Kubernetes { zones, names, fallthrough: Fallthrough(reverse) }),
            forwards,
            cache: Some(Cache::new(FLAGS_CACHE.0, FLAGS_CACHE.1)),
            rotates: true,
            ..Server::default()
        };
        Ok(Plan::new(vec![server], flags))
    }

    /// What a Corefile says; of the flags, the resolvers, the ranges and our own addresses still hold.
    pub(crate) fn of_corefile(
        text: &str,
        files: &BTreeMap<String, String>,
        flags: &Flags<'_>,
    ) -> Result<Plan, Refusal> {
        let servers = corefile::parse(text, Surroundings { resolvers: flags.upstreams, own: &flags.own, files })?;
        Ok(Plan::new(servers, flags))
    }

    fn new(servers: Vec<Server>, flags: &Flags<'_>) -> Plan {
        let mut blocks: Vec<Block> = Vec::new();
        let domain = |text: &String| Name::from_ascii(format!("{}.", text.trim_end_matches('.'))).ok();
        let search: Vec<Name> = flags.search.iter().filter_map(domain).collect();
        for server in servers {
            let cluster = server.kubernetes.map(|kubernetes| {
                let arpa = Name::from_ascii("arpa.").unwrap_or_default();
                let (reverse, domains): (Vec<Name>, Vec<Name>) =
                    kubernetes.zones.into_iter().partition(|zone| arpa.zone_of(zone));
                let zone = |domain| Zone::new(domain, kubernetes.names.clone(), flags.ranges);
                Cluster { zones: domains.into_iter().map(zone).collect(), reverse, fallthrough: kubernetes.fallthrough }
            });
            let forwarder = |forward| Arc::new(Forwarder::new(forward, server.cache.clone(), &flags.own));
            blocks.push(Block {
                zones: server.zones,
                rewrites: server.rewrites,
                templates: server.templates,
                hosts: server.hosts,
                cluster,
                forwarders: server.forwards.into_iter().map(forwarder).collect(),
                log: server.log,
                rotates: server.rotates,
                autopath: server.autopath.map(|zones| Autopath { zones, search: search.clone() }),
                transfer: server.transfer,
            });
        }
        Plan { blocks }
    }

    /// The block with the most specific zone of a name.
    pub(crate) fn block(&self, name: &Name) -> Option<&Block> {
        let of = |block: &Block| block.zones.iter().filter(|zone| zone.zone_of(name)).map(Name::num_labels).max();
        self.blocks
            .iter()
            .filter_map(|block| Some((of(block)?, block)))
            .max_by_key(|(labels, _)| *labels)
            .map(|(_, block)| block)
    }

    /// The zone of this name, if this client may have all of it.
    pub(crate) fn transferred(&self, name: &Name, client: Option<IpAddr>) -> Option<&Zone> {
        let transfer = self.block(name)?.transfer.as_ref();
        transfer.filter(|transfer| client.is_some_and(|client| transfer.allows(name, client)))?;
        self.zone(name)
    }

    /// The zone of the cluster's that has this name itself.
    pub(crate) fn zone(&self, name: &Name) -> Option<&Zone> {
        self.block(name)?.cluster.as_ref()?.zones.iter().find(|zone| zone.is_apex(name))
    }

    /// Whether names of pods are those of pods that there are.
    pub(crate) fn needs_pods(&self) -> bool {
        let zones = self.blocks.iter().filter_map(|block| block.cluster.as_ref()).flat_map(|cluster| &cluster.zones);
        zones.into_iter().any(Zone::needs_pods)
    }

    /// How many names of others are remembered.
    pub(crate) fn remembered_names(&self) -> usize {
        self.blocks.iter().flat_map(|block| &block.forwarders).map(|forwarder| forwarder.remembered_names()).sum()
    }
}

impl Block {
    pub(crate) fn known(&self, index: &dyn Index, name: &Name, kind: RecordType) -> Known {
        let others = self.templates.iter().map(|template| template.answer(name, kind));
        let mut others = others.chain(self.hosts.iter().map(|hosts| hosts.answer(name, kind)));
        if let Some(outcome) = others.find(|outcome| *outcome != Outcome::Elsewhere) {
            return Known { outcome, authority: None };
        }
        match &self.cluster {
            Some(cluster) => cluster.known(index, name, kind),
            None => Known { outcome: Outcome::Elsewhere, authority: None },
        }
    }

    /// The names that a client would ask for one after the other, if this is the first of them; none if it is not.
    pub(crate) fn searched(&self, index: &dyn Index, client: Option<IpAddr>, name: &Name) -> Vec<Name> {
        let path = || {
            let autopath =
                self.autopath.as_ref().filter(|autopath| autopath.zones.iter().any(|zone| zone.zone_of(name)))?;
            let zone = self.cluster.as_ref()?.zones.iter().find(|zone| zone.has(name))?;
            let own = zone.search_path(&index.namespace_of_pod(client?)?);
            // The name as it is comes last.
            Some(own.into_iter().chain(autopath.search.iter().cloned()).chain([Name::root()]).collect::<Vec<Name>>())
        };
        let Some(path) = path() else { return Vec::new() };
        let Some(first) = path.first().filter(|first| first.zone_of(name)) else { return Vec::new() };
        let count = usize::from(name.num_labels()) - usize::from(first.num_labels());
        if count == 0 {
            return Vec::new();
        }
        let joined = |suffix: &Name| Name::from_labels(name.iter().take(count).chain(suffix.iter())).ok();
        path.iter().filter_map(joined).collect()
    }

    /// Whether what is answered depends on who asks.
    pub(crate) fn is_personal(&self) -> bool {
        self.autopath.is_some()
    }

    /// Whom to ask about a name.
    pub(crate) fn forwarder(&self, name: &Name) -> Option<&Arc<Forwarder>> {
        self.forwarders.iter().find(|forwarder| forwarder.is_for(name))
    }

    pub(crate) fn logs(&self, name: &Name, code: ResponseCode, has_answers: bool) -> bool {
        let Some(log) = self.log.as_ref().filter(|log| log.zones.iter().any(|zone| zone.zone_of(name))) else {
            return false;
        };
        match (code, has_answers) {
            (ResponseCode::NoError, true) => log.success,
            (ResponseCode::NoError, false) | (ResponseCode::NXDomain, _) => log.denial,
            _ => log.error,
        }
    }
}

impl Cluster {
    fn known(&self, index: &dyn Index, name: &Name, kind: RecordType) -> Known {
        let is_reverse = reverse_address(&labels(name)).is_some();
        let zone = match is_reverse && self.reverse.iter().any(|zone| zone.zone_of(name)) {
            true => self.zones.first(),
            false => self.zones.iter().find(|zone| !is_reverse && zone.has(name)),
        };
        let Some(zone) = zone else { return Known { outcome: Outcome::Elsewhere, authority: None } };
        let outcome = match (zone.answer(index, name, kind), self.fallthrough.has(name)) {
            // Addresses of others, whose names others may know.
            (Outcome::Elsewhere, false) => Outcome::NoSuchName,
            // Nobody else knows names of addresses in the cluster's ranges.
            (Outcome::NoSuchName, true) if !is_reverse => Outcome::Elsewhere,
            (outcome, _) => outcome,
        };
        Known { authority: Some(zone.authority(index)), outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::Objects;

    fn plan(text: &str) -> Plan {
        let flags = Flags {
            domain: "cluster.local",
            ttl: 30,
            upstreams: &["192.0.2.53:53".parse().unwrap()],
            stub_domains: &[],
            ranges: &["10.42.0.0/16".into()],
            search: &["corp.test".into()],
            own: vec![],
        };
        Plan::of_corefile(text, &BTreeMap::new(), &flags).unwrap()
    }

    fn ask(plan: &Plan, name: &str) -> String {
        let name = Name::from_ascii(name).unwrap();
        let Some(block) = plan.block(&name) else { return "no block".into() };
        let kind = if name.to_ascii().ends_with("arpa.") { RecordType::PTR } else { RecordType::A };
        match block.known(&Objects { namespaces: vec!["ns".into()], ..Objects::default() }, &name, kind).outcome {
            Outcome::Records { answers, .. } | Outcome::Composed { answers, .. } => {
                answers.iter().map(|record| record.data.to_string()).collect::<Vec<_>>().join(" ")
            }
            Outcome::Elsewhere => match block.forwarder(&name) {
                Some(forwarder) => format!("asks {:?}", forwarder.servers()),
                None => "Elsewhere".into(),
            },
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn questions_pass_a_block_in_corednss_order() {
        let plan = plan(
            ". {
                forward corp.test 192.0.2.1 { \n except not.corp.test \n }
                forward . /etc/resolv.conf
                kubernetes cluster.local in-addr.arpa {
                    pods insecure
                    fallthrough in-addr.arpa
                }
                hosts {
                    192.0.2.7 host.test x.ns.svc.cluster.local
                    fallthrough
                }
                template IN A t.test {
                    answer \"{{ .Name }} IN A 192.0.2.8\"
                }
            }
            only.test {
                forward . 192.0.2.2:5353
            }
            closed.test {
                kubernetes cluster.closed.test 10.0.0.0/8 {
                    fallthrough ns.svc.cluster.closed.test
                }
            }",
        );
        for (name, expected) in [
            ("host.test.", "192.0.2.7"),
            ("a.t.test.", "192.0.2.8"),
            // Hosts come before the cluster's names, and let the others through.
            ("x.ns.svc.cluster.local.", "192.0.2.7"),
            ("y.ns.svc.cluster.local.", "NoSuchName"),
            ("10-42-0-1.ns.pod.cluster.local.", "10.42.0.1"),
            ("a.corp.test.", "asks [192.0.2.1:53]"),
            ("a.not.corp.test.", "asks [192.0.2.53:53]"),
            ("example.com.", "asks [192.0.2.53:53]"),
            ("a.only.test.", "asks [192.0.2.2:5353]"),
            // Of the cluster's own ranges nobody else knows anything.
            ("1.0.42.10.in-addr.arpa.", "NoSuchName"),
            ("1.2.0.192.in-addr.arpa.", "asks [192.0.2.53:53]"),
            ("y.ns.svc.cluster.closed.test.", "Elsewhere"),
            ("y.other.svc.cluster.closed.test.", "NoSuchName"),
            ("10-42-0-1.ns.pod.cluster.closed.test.", "NoSuchName"),
            ("a.closed.test.", "Elsewhere"),
        ] {
            assert_eq!(ask(&plan, name), expected, "{name}");
        }
        assert!(!plan.needs_pods());
        assert!(self::plan("a.test {\n kubernetes a.test {\n pods verified\n }\n}").needs_pods());
        assert_eq!(ask(&self::plan("a.test {\n}"), "b.test."), "no block");
    }

    #[test]
    fn what_is_logged_is_chosen_by_zone_and_class() {
        let plan = plan(". {\n log a.test {\n class denial\n }\n}");
        let logs = |name: &str, code, has_answers| {
            let name = Name::from_ascii(name).unwrap();
            plan.block(&name).unwrap().logs(&name, code, has_answers)
        };
        assert!(logs("x.a.test.", ResponseCode::NXDomain, false));
        assert!(logs("x.a.test.", ResponseCode::NoError, false));
        assert!(!logs("x.a.test.", ResponseCode::NoError, true));
        assert!(!logs("x.a.test.", ResponseCode::ServFail, false));
        assert!(!logs("x.b.test.", ResponseCode::NXDomain, false));
    }
}
