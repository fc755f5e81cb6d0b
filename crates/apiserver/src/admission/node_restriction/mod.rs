//! NodeRestriction: a kubelet writes its own node, the pods bound to it and what belongs to them, and nothing else.
//!
//! The Node authorizer says which objects a kubelet may touch at all; this plug-in looks inside them.

mod labels;
mod pods;

pub use labels::labels_not_for_nodes;

use std::sync::Arc;

use api::Status;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::api::resource::v1::ResourceSlice;

use super::certificates::subject;
use super::{Admitted, Attributes, Plugin, Verb, admitted, later};
use crate::cluster::Cluster;

pub(super) struct NodeRestriction;

const NODE_LEASES: &str = "kube-node-lease";
const NODE_SIGNERS: [&str; 2] = ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];

impl Plugin for NodeRestriction {
    /// Changes nothing, but must see what the kubelet sent: what plug-ins after it add (a label, say) is not its doing.
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let attributes: &'a Attributes<'_> = attributes;
        let user = attributes.user();
        match user.name.strip_prefix("system:node:").filter(|_| user.in_group("system:nodes")) {
            None => admitted(),
            Some("") => {
                let message = format!("could not determine node from user {:?}", user.name);
                Err(attributes.forbidden(message)).into()
            }
            Some(node) if attributes.is("", "serviceaccounts") && attributes.subresource == "token" => {
                later(token(cluster, attributes, node))
            }
            Some(node) => check(cluster, attributes, node).into(),
        }
    }
}

fn check(cluster: &Cluster, attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let same_name = |what: &str| {
        let own = attributes.object.as_deref().map(|object| object.meta().name.as_deref() == Some(node));
        if own.unwrap_or(attributes.name == node) {
            return Ok(());
        }
        Err(attributes.forbidden(format!("can only access {what} with the same name as the requesting node")))
    };
    match (&*attributes.resource.group, &*attributes.resource.plural, attributes.subresource) {
        ("", "pods", _) => pods::check(cluster, attributes, node),
        ("", "nodes", _) => nodes(attributes, node),
        ("", "persistentvolumeclaims", "status") => claim_status(attributes, node),
        ("", "persistentvolumeclaims", _) => Err(attributes.forbidden("may only update PVC status")),
        ("coordination.k8s.io", "leases", _) if attributes.namespace != NODE_LEASES => {
            Err(attributes.forbidden(format!("can only access leases in the {NODE_LEASES:?} system namespace")))
        }
        ("coordination.k8s.io", "leases", _) => same_name("node lease"),
        ("storage.k8s.io", "csinodes", _) => same_name("CSINode"),
        (api::node_volumes::DRIVER, api::node_volumes::PLURAL, "status") => same_name("NodeVolumes"),
        (api::node_volumes::DRIVER, api::node_volumes::PLURAL, _) => {
            Err(attributes.forbidden("may only update the status of NodeVolumes"))
        }
        ("resource.k8s.io", "resourceslices", _) => slices(attributes, node),
        ("certificates.k8s.io", "certificatesigningrequests", "") => certificates(attributes, node),
        ("certificates.k8s.io", "podcertificaterequests", _) => pod_certificates(cluster, attributes, node),
        _ => Ok(()),
    }
}

fn nodes(attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    if attributes.name != node {
        return Err(attributes.forbidden(format!("node {node:?} is not allowed to modify node {:?}", attributes.name)));
    }
    let Some(new) = attributes.object_ref::<Node>() else { return Ok(()) };
    let old = attributes.old_ref::<Node>();
    let refuse = |what: String| Err(attributes.forbidden(format!("node {node:?} is not allowed to {what}")));
    let source = |node: &Node| node.spec.as_ref().and_then(|spec| spec.config_source.clone());
    let forbidden =
        labels::forbidden(node, new.metadata.labels.as_ref(), old.and_then(|old| old.metadata.labels.as_ref()));
    // Every other node routes these ranges to this one: they are given, never taken.
    let ranges = |node: &Node| -> Vec<String> {
        let Some(spec) = &node.spec else { return Vec::new() };
        spec.pod_cidr.iter().chain(spec.pod_cidrs.iter().flatten()).filter(|range| !range.is_empty()).cloned().collect()
    };
    if attributes.subresource.is_empty() && ranges(new) != old.map(ranges).unwrap_or_default() {
        return refuse("set podCIDR or podCIDRs".to_owned());
    }
    let Some(old) = old else {
        if source(new).is_some() {
            return refuse("create pods with a non-nil configSource".to_owned());
        }
        if !forbidden.is_empty() {
            return refuse(format!("set the following labels: {}", forbidden.join(", ")));
        }
        return Ok(());
    };
    if source(new).is_some() && source(new) != source(old) {
        return refuse("update configSource to a new non-nil configSource".to_owned());
    }
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    if taints(old) != taints(new) {
        return refuse("modify taints".to_owned());
    }
    let owners = |node: &Node| node.metadata.owner_references.clone().unwrap_or_default();
    if owners(old) != owners(new) {
        return refuse("modify ownerReferences".to_owned());
    }
    if !forbidden.is_empty() {
        return Err(attributes.forbidden(format!("is not allowed to modify labels: {}", forbidden.join(", "))));
    }
    Ok(())
}

/// A kubelet that grew a volume reports sizes and conditions, nothing else.
fn claim_status(attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let claims = (attributes.object_ref::<PersistentVolumeClaim>(), attributes.old_ref::<PersistentVolumeClaim>());
    let (Some(new), Some(old)) = claims else { return Ok(()) };
    let rest = |claim: &PersistentVolumeClaim| {
        let mut claim = claim.clone();
        claim.metadata.resource_version = None;
        claim.metadata.managed_fields = None;
        let status = claim.status.get_or_insert_default();
        status.capacity = None;
        status.conditions = None;
        status.allocated_resource_statuses = None;
        status.allocated_resources = None;
        claim
    };
    if rest(new) == rest(old) {
        return Ok(());
    }
    let message =
        format!("node {node:?} is not allowed to update fields other than status.quantity and status.conditions");
    Err(attributes.forbidden(message))
}

/// Tokens are for pods that run on the node, and for audiences that those pods name.
async fn token(cluster: &Cluster, attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let Some(request) = attributes.object_ref::<TokenRequest>() else { return Ok(()) };
    // A request that says nothing asks for a token that is bound to nothing.
    let empty = TokenRequestSpec::default();
    let spec = request.spec.as_ref().unwrap_or(&empty);
    let bound = spec.bound_object_ref.as_ref().filter(|bound| {
        bound.api_version.as_deref() == Some("v1")
            && bound.kind.as_deref() == Some("Pod")
            && bound.name.as_ref().is_some_and(|name| !name.is_empty())
    });
    let Some(bound) = bound else { return Err(attributes.forbidden("node requested token not bound to a pod")) };
    let Some(uid) = bound.uid.as_deref().filter(|uid| !uid.is_empty()) else {
        return Err(attributes.forbidden("node requested token with a pod binding without a uid"));
    };
    let name = bound.name.as_deref().unwrap_or_default();
    let pod = cluster.objects().get::<Pod>(attributes.namespace, name)?;
    let pod = pod.ok_or_else(|| Status::not_found(&api::GroupResource::new("", "pods"), name))?;
    if pod.metadata.uid.as_deref() != Some(uid) {
        return Err(attributes.forbidden(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. \
             The object might have been deleted and then recreated"
        )));
    }
    if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) != Some(node) {
        return Err(attributes.forbidden("node requested token bound to a pod scheduled on a different node"));
    }
    let audience = match spec.audiences.as_deref().unwrap_or_default() {
        [] => "",
        [one] => one.as_str(),
        _ => return Err(attributes.forbidden("node may only request 0 or 1 audiences")),
    };
    if pods::names_audience(cluster, &pod, audience)? || may_request(cluster, attributes, audience).await {
        return Ok(());
    }
    let user = &attributes.user().name;
    Err(attributes.forbidden(format!(
        "audience {audience:?} not found in pod spec volume, {user} is not authorized to request tokens for this audience"
    )))
}

async fn may_request(cluster: &Cluster, attributes: &Attributes<'_>, audience: &str) -> bool {
    let asked = crate::authz::Attributes {
        is_resource: true,
        verb: registry::Verb::custom("request-serviceaccounts-token-audience"),
        resource: audience.to_owned(),
        namespace: attributes.namespace.to_owned(),
        name: attributes.name.to_owned(),
        ..Default::default()
    };
    cluster.authz.decide(attributes.user(), &asked).await.allowed
}

fn slices(attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let (slice, verb) = match attributes.verb {
        Verb::Create => (attributes.object_ref::<ResourceSlice>(), "create"),
        Verb::Delete => (attributes.old_ref::<ResourceSlice>(), "delete"),
        Verb::Update | Verb::Connect => return Ok(()),
    };
    if slice.is_some_and(|slice| slice.spec.node_name.as_deref() != Some(node)) {
        let message = format!("can only {verb} ResourceSlice with the same NodeName as the requesting node");
        return Err(attributes.forbidden(message));
    }
    Ok(())
}

/// A certificate for a pod is asked for by the node that runs it, and says of the pod what is true.
fn pod_certificates(cluster: &Cluster, attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let refuse = |what: String| Err(attributes.forbidden(what));
    if attributes.verb != Verb::Create {
        return refuse(format!("unexpected operation {}", attributes.verb.as_str()));
    }
    if !attributes.subresource.is_empty() {
        return refuse(format!("unexpected subresource {}", attributes.subresource));
    }
    let Some(PodCertificateRequest { spec, .. }) = attributes.object_ref() else { return Ok(()) };
    if spec.node_name != node {
        let named = &spec.node_name;
        return refuse(format!(
            "PodCertificateRequest.Spec.NodeName={named:?}, which is not the requesting node {node:?}"
        ));
    }
    let missing = |resource: &'static str, name: &str| Status::not_found(&api::GroupResource::new("", resource), name);
    let (objects, namespace, pod_name) = (cluster.objects(), attributes.namespace, &spec.pod_name);
    let record = objects.metadata::<Node>("", node)?.ok_or_else(|| missing("nodes", node))?;
    let pod = objects.get::<Pod>(namespace, pod_name)?.ok_or_else(|| missing("pods", pod_name))?;
    let pod_key = format!("{namespace}/{pod_name}");
    // Identities that differ may be those of objects that were made again a moment ago.
    let differs = |what: String| Err(Status::internal(format!("PodCertificateRequest for pod {pod_key:?} {what}")));
    if record.uid.as_ref() != Some(&spec.node_uid) {
        return differs(format!("names node UID {:?}, inconsistent with the running node", spec.node_uid));
    }
    if pod.metadata.uid.as_ref() != Some(&spec.pod_uid) {
        return differs(format!("contains pod UID ({:?}) which differs from running pod", spec.pod_uid));
    }
    let pod_spec = pod.spec.as_ref();
    if pod_spec.and_then(|spec| spec.node_name.as_deref()) != Some(node) {
        return refuse(format!("pod {pod_key:?} is not running on node {node:?} named in the PodCertificateRequest"));
    }
    if api::pod::is_mirror(&pod.metadata) {
        return refuse(format!("pod {pod_key:?} is a mirror pod"));
    }
    let account = pod_spec.and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
    let named = &spec.service_account_name;
    if named != account {
        return refuse(format!(
            "PodCertificateRequest for pod {pod_key:?} contains serviceAccountName ({named:?}) that differs from running pod ({account:?})"
        ));
    }
    let record = objects.get::<ServiceAccount>(namespace, account)?;
    let record = record.ok_or_else(|| missing("serviceaccounts", account))?;
    if record.metadata.uid.as_ref() != Some(&spec.service_account_uid) {
        let uid = &spec.service_account_uid;
        return differs(format!("names service account UID {uid:?}, which differs from the running service account"));
    }
    Ok(())
}

/// A certificate for a node names that node.
fn certificates(attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let request = attributes.object_ref::<CertificateSigningRequest>().filter(|_| attributes.verb == Verb::Create);
    let Some(request) = request.filter(|request| NODE_SIGNERS.contains(&request.spec.signer_name.as_str())) else {
        return Ok(());
    };
    let named = subject(&request.spec.request.0)
        .map_err(|problem| attributes.forbidden(format!("unable to parse csr: {problem}")))?;
    if named.common_name != format!("system:node:{node}") {
        return Err(attributes.forbidden(format!("can only create a node CSR with CN=system:node:{node}")));
    }
    Ok(())
}
