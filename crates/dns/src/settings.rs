//! What the parts of a plan are told, by flags or by a Corefile. Pure data.

use std::net::{IpAddr, SocketAddr};

use hickory_proto::rr::Name;

/// Who may have all records of a zone.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Transfer {
    pub(crate) zones: Vec<Name>,
    pub(crate) to: Vec<IpAddr>,
    pub(crate) to_everyone: bool,
}

impl Transfer {
    pub(crate) fn allows(&self, zone: &Name, client: IpAddr) -> bool {
        self.zones.iter().any(|of| of.zone_of(zone)) && (self.to_everyone || self.to.contains(&client.to_canonical()))
    }
}

/// Names that fall through to what comes next.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fallthrough(pub(crate) Vec<Name>);

impl Fallthrough {
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.0.iter().any(|zone| zone.zone_of(name))
    }
}

/// The names of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Kubernetes {
    /// Reverse zones among them.
    pub(crate) zones: Vec<Name>,
    pub(crate) names: NameOptions,
    pub(crate) fallthrough: Fallthrough,
}

/// How the names of a cluster are answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NameOptions {
    pub(crate) ttl: u32,
    pub(crate) pods: Pods,
    /// Of these namespaces only; none: of all.
    pub(crate) namespaces: Vec<String>,
    pub(crate) without_endpoints: bool,
    /// Services without a ready endpoint have no name.
    pub(crate) ignores_empty_services: bool,
    /// Endpoints without a hostname are called after their pods.
    pub(crate) endpoint_pod_names: bool,
}

impl Default for NameOptions {
    fn default() -> Self {
        Self {
            ttl: 5,
            pods: Pods::Disabled,
            namespaces: Vec::new(),
            without_endpoints: false,
            ignores_empty_services: false,
            endpoint_pod_names: false,
        }
    }
}

/// Which names of pods there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pods {
    Disabled,
    /// Of any address.
    Insecure,
    /// Of pods that there are.
    Verified,
}

/// Other resolvers, for the names of a zone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forward {
    pub(crate) from: Name,
    pub(crate) except: Vec<Name>,
    pub(crate) to: Vec<SocketAddr>,
    pub(crate) policy: Policy,
    pub(crate) over_tcp: bool,
}

/// Which of several resolvers is asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Random,
    RoundRobin,
    Sequential,
}

/// The longest time, in seconds, for which answers of other servers are kept, and of which names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cache {
    pub(crate) success: u32,
    pub(crate) denial: u32,
    /// Names that are in none of these are asked for each time.
    pub(crate) zones: Vec<Name>,
    /// Zones of which answers are not kept, and those of which denials are not.
    pub(crate) without_success: Vec<Name>,
    pub(crate) without_denial: Vec<Name>,
}

impl Cache {
    /// About all names.
    pub(crate) fn new(success: u32, denial: u32) -> Cache {
        let zones = vec![Name::root()];
        Cache { success, denial, zones, without_success: Vec::new(), without_denial: Vec::new() }
    }

    /// For how long others are believed about a name.
    pub(crate) fn seconds(&self, name: &Name, is_denial: bool) -> u32 {
        let (seconds, without) = match is_denial {
            true => (self.denial, &self.without_denial),
            false => (self.success, &self.without_success),
        };
        let is_in = |zones: &[Name]| zones.iter().any(|zone| zone.zone_of(name));
        if is_in(&self.zones) && !is_in(without) { seconds } else { 0 }
    }
}

/// Whose questions are logged, by what became of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Log {
    pub(crate) zones: Vec<Name>,
    pub(crate) success: bool,
    pub(crate) denial: bool,
    pub(crate) error: bool,
}
