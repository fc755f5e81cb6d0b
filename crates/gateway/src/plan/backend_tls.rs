//! BackendTLSPolicies: whom to trust behind a Service, and by which name.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use api::meta::Meta as _;
use api::sort::CompactSort as _;
use rustls_pki_types::ServerName;
use serde_json::json;

use super::conditions::{Wanted, merge};
use super::gateways::has_our_class;
use super::routes::rank;
use super::{GATEWAY_CONTROLLER, Kind, Settings, Status};
use crate::gateway_api::{AncestorStatus, BackendRef, BackendTLSPolicy, GROUP, ParentRef};
use crate::table::{BackendTls, Roots};
use crate::world::World;

/// The standard's bound of a status.
const MAX_ANCESTORS: usize = 16;

/// Reason and message of a condition that is not met.
type Outcome = Result<(), (String, String)>;

/// A policy says how a Service is to be reached, and cannot be followed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NotToBeReached(String);

/// A port of a Service, or all of them.
type Target = (String, Option<String>);

/// What becomes of a policy.
struct Read<'a> {
    policy: &'a Arc<BackendTLSPolicy>,
    targets: Vec<Target>,
    tls: Result<Arc<BackendTls>, (String, String)>,
    resolved: Outcome,
}

/// The policies that hold, by what they are about.
#[derive(Default)]
pub(super) struct Policies<'a> {
    all: Vec<Read<'a>>,
    /// Which of them holds.
    chosen: BTreeMap<Target, usize>,
}

impl<'a> Policies<'a> {
    pub(super) fn new(world: &'a World) -> Self {
        let mut policies: Vec<&Arc<BackendTLSPolicy>> = world.backend_tls_policies.values().collect();
        // The oldest has the first word.
        policies.compact_sort_by_key(|policy| rank(&***policy, (0, 0)));
        let mut found = Self::default();
        for policy in policies {
            let read = read(policy, world);
            for target in &read.targets {
                found.chosen.entry(target.clone()).or_insert(found.all.len());
            }
            found.all.push(read);
        }
        found
    }

    /// How a port of a Service is spoken to: what is said of the port before what is said of all. An error: it must not be spoken
    /// to at all.
    pub(super) fn of(&self, service: &str, port: &str) -> Option<Result<Arc<BackendTls>, NotToBeReached>> {
        let of_port = self.chosen.get(&(service.to_owned(), Some(port.to_owned())));
        let chosen = of_port.or_else(|| self.chosen.get(&(service.to_owned(), None)))?;
        let read = self.all.get(*chosen)?;
        Some(read.tls.clone().map_err(|(_, message)| NotToBeReached(message)))
    }

    pub(super) fn statuses(&self, world: &World, settings: &Settings) -> Vec<Status> {
        self.all.iter().enumerate().filter_map(|(place, read)| self.status(place, read, world, settings)).collect()
    }

    fn status(&self, place: usize, read: &Read<'_>, world: &World, settings: &Settings) -> Option<Status> {
        let policy = read.policy;
        let is_ours = |status: &&AncestorStatus| status.controller_name == GATEWAY_CONTROLLER;
        let present = &policy.status.ancestors;
        let mut wanted: Vec<AncestorStatus> = present.iter().filter(|status| !is_ours(status)).cloned().collect();
        let holds = |target: &Target| self.chosen.get(target) == Some(&place);
        let accepted = match &read.tls {
            Err(problem) => Err(problem.clone()),
            Ok(_) if !read.targets.is_empty() && !read.targets.iter().any(holds) => {
                Err(("Conflicted".to_owned(), "an older policy has the same target".to_owned()))
            }
            Ok(_) => Ok(()),
        };
        let conditions =
            [Wanted::of("Accepted", "Accepted", &accepted), Wanted::of("ResolvedRefs", "ResolvedRefs", &read.resolved)];
        for gateway in gateways_of(read, world).into_iter().take(MAX_ANCESTORS.saturating_sub(wanted.len())) {
            let before = present.iter().filter(is_ours).find(|status| status.ancestor_ref == gateway);
            let before = before.map(|status| status.conditions.as_slice()).unwrap_or_default();
            wanted.push(AncestorStatus {
                conditions: merge(before, &conditions, policy.metadata.generation, settings.now),
                ancestor_ref: gateway,
                controller_name: GATEWAY_CONTROLLER.to_owned(),
            });
        }
        (*present != wanted).then(|| Status {
            kind: Kind::BackendTlsPolicy,
            namespace: policy.metadata.namespace.clone(),
            name: policy.metadata.name().to_owned(),
            resource_version: policy.metadata.resource_version.clone(),
            status: json!({"ancestors": serde_json::to_value(&wanted).unwrap_or_default()}),
        })
    }
}

fn read<'a>(policy: &'a Arc<BackendTLSPolicy>, world: &World) -> Read<'a> {
    let namespace = policy.metadata.namespace();
    let targets = policy.spec.target_refs.iter().filter(|target| target.group.is_empty() && target.kind == "Service");
    let targets: Vec<Target> =
        targets.map(|target| (format!("{namespace}/{}", target.name), target.section_name.clone())).collect();
    let validation = &policy.spec.validation;
    let fault = |reason: &str, message: String| (reason.to_owned(), message);
    let mut resolved: Outcome = Ok(());
    let mut found = Vec::new();
    for reference in &validation.ca_certificate_refs {
        let kind = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("ConfigMap"));
        if kind != ("", "ConfigMap") {
            resolved = Err(fault("InvalidKind", format!("authorities of kind {:?} are not supported", kind.1)));
            continue;
        }
        match world.authorities.get(&format!("{namespace}/{}", reference.name)) {
            Some(Ok(authority)) => found.push(authority),
            Some(Err(why)) => {
                resolved = Err(fault("InvalidCACertificateRef", format!("config map {:?}: {why}", reference.name)));
            }
            None => {
                let message = format!("config map {:?} not found", reference.name);
                resolved = Err(fault("InvalidCACertificateRef", message));
            }
        }
    }
    let tls = || {
        let invalid = |message: String| fault("Invalid", message);
        let name = |text: &str| match ServerName::try_from(text.to_owned()) {
            Ok(name @ ServerName::DnsName(_)) => Ok(name),
            _ => Err(invalid(format!("{text:?} is not the name of a host"))),
        };
        let (mut names, mut uris) = (Vec::new(), Vec::new());
        for one in &validation.subject_alt_names {
            let uri = one.uri.as_deref().unwrap_or_default();
            match one.r#type.as_str() {
                "Hostname" => names.push(name(one.hostname.as_deref().unwrap_or_default())?),
                "URI" if !uri.is_empty() => uris.push(uri.to_owned()),
                "URI" => return Err(invalid("a name of type URI is empty".to_owned())),
                other => return Err(invalid(format!("names of type {other:?} are not supported"))),
            }
        }
        let roots = match validation.well_known_ca_certificates.as_deref() {
            None | Some("") if found.is_empty() => {
                return Err(fault("NoValidCACertificate", "no authority is named that can be read".to_owned()));
            }
            None | Some("") => Roots::Of(found.iter().map(|authority| authority.roots.clone()).collect()),
            Some("System") if validation.ca_certificate_refs.is_empty() => Roots::System,
            Some(other) => return Err(invalid(format!("well-known authorities {other:?} are not supported here"))),
        };
        let name = name(&validation.hostname)?;
        let mut hasher = DefaultHasher::new();
        let hashes: Vec<u64> = found.iter().map(|authority| authority.hash).collect();
        (&validation.hostname, format!("{names:?}"), &uris, hashes, matches!(roots, Roots::System)).hash(&mut hasher);
        Ok(Arc::new(BackendTls { id: hasher.finish(), name, names, uris, roots }))
    };
    Read { policy, targets, tls: tls(), resolved }
}

/// The gateways that lead to a policy's targets.
fn gateways_of(read: &Read<'_>, world: &World) -> Vec<ParentRef> {
    let mut gateways: BTreeSet<(String, String)> = BTreeSet::new();
    let mut look = |namespace: Option<&String>, parents: &[ParentRef], backends: &[&BackendRef]| {
        let namespace = namespace.map(String::as_str).unwrap_or_default();
        let is_meant = |backend: &BackendRef| {
            let service = format!("{}/{}", backend.namespace.as_deref().unwrap_or(namespace), backend.name);
            read.targets.iter().any(|(target, _)| *target == service)
        };
        if !backends.iter().any(|backend| is_meant(backend)) {
            return;
        }
        for parent in parents {
            let of_gateway = parent.kind.as_deref().unwrap_or("Gateway") == "Gateway"
                && parent.group.as_deref().unwrap_or(GROUP) == GROUP;
            let at = parent.namespace.as_deref().unwrap_or(namespace);
            let gateway = world.gateways.get(&format!("{at}/{}", parent.name));
            if of_gateway && gateway.is_some_and(|gateway| has_our_class(gateway, world)) {
                gateways.insert((at.to_owned(), parent.name.clone()));
            }
        }
    };
    for route in world.http_routes.values() {
        let backends: Vec<&BackendRef> = route.spec.rules.iter().flat_map(|rule| &rule.backend_refs).collect();
        look(route.metadata.namespace.as_ref(), &route.spec.parent_refs, &backends);
    }
    for route in world.grpc_routes.values() {
        let backends: Vec<&BackendRef> = route.spec.rules.iter().flat_map(|rule| &rule.backend_refs).collect();
        look(route.metadata.namespace.as_ref(), &route.spec.parent_refs, &backends);
    }
    let ancestor = |(namespace, name)| ParentRef {
        group: Some(GROUP.to_owned()),
        kind: Some("Gateway".to_owned()),
        namespace: Some(namespace),
        name,
        ..ParentRef::default()
    };
    gateways.into_iter().map(ancestor).collect()
}
