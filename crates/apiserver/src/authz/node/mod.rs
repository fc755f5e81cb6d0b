//! The node authorizer: a kubelet reads what its own pods need, and writes its own objects.
//!
//! Flow: watch caches -> feeds -> [`Graph`] -> decisions. What a node may write is narrowed further by the NodeRestriction
//! admission plug-in, which sees the objects.

mod graph;

use api::UserInfo;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use parking_lot::Mutex;
use registry::Verb;
use registry::parts::Parts;

use graph::{Graph, Kind};

use super::feed::{Change, Feed};
use super::rbac::allows;
use super::{Attributes, Opinion};
use crate::watch_cache::{Caches, Entry};

const NODES: &str = "system:nodes";

pub(crate) struct NodeAuthorizer {
    followed: Mutex<Followed>,
}

struct Followed {
    graph: Graph,
    pods: Feed,
    volumes: Feed,
    attachments: Feed,
    slices: Feed,
    requests: Feed,
}

/// Whether a user claims to be a node.
pub(crate) fn is_node(user: &UserInfo) -> bool {
    user.in_group(NODES) && user.name.starts_with("system:node:")
}

impl NodeAuthorizer {
    pub(crate) fn new(caches: &Caches) -> Self {
        let feed = |prefix| Feed::new(caches, prefix);
        let followed = Followed {
            graph: Graph::default(),
            pods: feed("pods"),
            volumes: feed("persistentvolumes"),
            attachments: feed("volumeattachments"),
            slices: feed("resourceslices"),
            requests: feed("podcertificaterequests"),
        };
        Self { followed: Mutex::new(followed) }
    }

    pub(super) fn decide(&self, user: &UserInfo, attributes: &Attributes) -> Opinion {
        let Some(node) = user.name.strip_prefix("system:node:").filter(|_| user.in_group(NODES)) else {
            return Opinion::None(String::new());
        };
        if node.is_empty() {
            return Opinion::None(format!("unknown node for user {:?}", user.name));
        }
        if attributes.is_resource
            && let Some(opinion) = self.decide_resource(node, attributes)
        {
            return opinion;
        }
        if super::bootstrap_policy::node_rules().iter().any(|rule| allows(rule, attributes)) {
            return Opinion::Allow(String::new());
        }
        Opinion::None(String::new())
    }

    /// Resources of which a node sees only its own; `None` for all others.
    fn decide_resource(&self, node: &str, attributes: &Attributes) -> Option<Opinion> {
        let allow = || Some(Opinion::Allow(String::new()));
        let no = |reason: &str| Some(Opinion::None(reason.to_owned()));
        let (verb, subresource, name) = (&attributes.verb, &*attributes.subresource, &*attributes.name);
        let related =
            |kind: Kind| self.related(node, attributes, |graph| graph.reaches(kind, &attributes.namespace, name, node));
        let only_get = || {
            if *verb != Verb::Get {
                return Some("can only get individual resources of this type");
            }
            (!subresource.is_empty()).then_some("cannot get subresource")
        };
        match (&*attributes.group, &*attributes.resource) {
            ("", resource @ ("secrets" | "configmaps")) => {
                if !verb.is_read() {
                    return no("can only read resources of this type");
                }
                if !subresource.is_empty() {
                    return no("cannot read subresource");
                }
                if attributes.namespace.is_empty() {
                    return no("can only read namespaced object of this type");
                }
                related(if resource == "secrets" { Kind::Secret } else { Kind::ConfigMap })
            }
            ("", "persistentvolumeclaims") if subresource == "status" => match verb {
                Verb::Update | Verb::Patch => related(Kind::Claim),
                _ => no("can only get/update/patch this type"),
            },
            ("", "persistentvolumeclaims") => only_get().map_or_else(|| related(Kind::Claim), no),
            ("resource.k8s.io", "resourceclaims") => only_get().map_or_else(|| related(Kind::ResourceClaim), no),
            ("", "persistentvolumes") => {
                only_get().map_or_else(|| self.related(node, attributes, |graph| graph.volume_reaches(name, node)), no)
            }
            ("storage.k8s.io", "volumeattachments") => only_get()
                .map_or_else(|| self.related(node, attributes, |graph| graph.attachment_is_on(name, node)), no),
            ("", "serviceaccounts") => match (verb, subresource) {
                (Verb::Get, "") => related(Kind::ServiceAccount),
                (Verb::Create, "token") if !name.is_empty() => related(Kind::ServiceAccount),
                (Verb::Create, "token") => no("can only create tokens for individual service accounts"),
                _ => no("can only create token subresource of serviceaccount"),
            },
            ("coordination.k8s.io", "leases") => {
                if !matches!(verb, Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete) {
                    return no("can only get, create, update, patch, or delete a node lease");
                }
                if attributes.namespace != "kube-node-lease" {
                    return no("can only access leases in the \"kube-node-lease\" system namespace");
                }
                // The name is not known on create; admission looks at it then.
                if *verb != Verb::Create && name != node {
                    return no("can only access node lease with the same name as the requesting node");
                }
                allow()
            }
            ("storage.k8s.io", "csinodes") => {
                if !matches!(verb, Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete) {
                    return no("can only get, create, update, patch, or delete a CSINode");
                }
                if !subresource.is_empty() {
                    return no("cannot authorize CSINode subresources");
                }
                if *verb != Verb::Create && name != node {
                    return no("can only access CSINode with the same name as the requesting node");
                }
                allow()
            }
            ("resource.k8s.io", "resourceslices") => self.decide_slices(node, attributes),
            ("certificates.k8s.io", "podcertificaterequests") => self.decide_requests(node, attributes),
            // What the node is asked about its own volumes, and its answers.
            (api::node_volumes::DRIVER, api::node_volumes::PLURAL) => match (verb, subresource) {
                _ if name != node => no("can only access NodeVolumes with the same name as the requesting node"),
                (Verb::Get | Verb::List | Verb::Watch, "") | (Verb::Update | Verb::Patch, "status") => allow(),
                _ => no("can only get, list or watch NodeVolumes, and update or patch their status"),
            },
            ("", "nodes") => match (verb, subresource) {
                (Verb::Create | Verb::Update | Verb::Patch, "") | (Verb::Update | Verb::Patch, "status") => allow(),
                (verb, "") if verb.is_read() && name == node => allow(),
                (verb, "") if verb.is_read() && name.is_empty() => {
                    no(&format!("node '{node}' cannot read all nodes, only its own Node object"))
                }
                (verb, "") if verb.is_read() => {
                    no(&format!("node '{node}' cannot read '{name}', only its own Node object"))
                }
                _ => no(""),
            },
            ("", "pods") => self.decide_pods(node, attributes),
            _ => None,
        }
    }

    fn decide_pods(&self, node: &str, attributes: &Attributes) -> Option<Opinion> {
        let allow = || Some(Opinion::Allow(String::new()));
        let on_node =
            || self.related(node, attributes, |graph| graph.pod_is_on(&attributes.namespace, &attributes.name, node));
        match (&attributes.verb, &*attributes.subresource) {
            (Verb::Get, "") => on_node(),
            (Verb::List | Verb::Watch, "") => {
                let selector = api::selector::FieldSelector::parse(&attributes.field_selector);
                if selector.is_ok_and(|selector| selector.requires("spec.nodeName") == Some(node)) {
                    return allow();
                }
                if !attributes.name.is_empty() {
                    return on_node();
                }
                Some(Opinion::None("can only list/watch pods with spec.nodeName field selector".to_owned()))
            }
            // Mirror pods and the pods of this node; admission looks at which.
            (Verb::Create | Verb::Delete, "") | (Verb::Update | Verb::Patch, "status") | (Verb::Create, "eviction") => {
                allow()
            }
            _ => Some(Opinion::None(String::new())),
        }
    }

    fn decide_slices(&self, node: &str, attributes: &Attributes) -> Option<Opinion> {
        let allow = || Some(Opinion::Allow(String::new()));
        let no = |reason: &str| Some(Opinion::None(reason.to_owned()));
        if !attributes.subresource.is_empty() {
            return no("cannot authorize ResourceSlice subresources");
        }
        match &attributes.verb {
            // Admission looks at whose it is.
            Verb::Create => allow(),
            Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => {
                self.related(node, attributes, |graph| graph.slice_is_on(&attributes.name, node))
            }
            Verb::List | Verb::Watch | Verb::DeleteCollection => {
                let selector = api::selector::FieldSelector::parse(&attributes.field_selector);
                if selector.is_ok_and(|selector| selector.requires("spec.nodeName") == Some(node)) {
                    return allow();
                }
                no("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
            ),
        }
    }

    /// Certificates that a node asks for in the names of its pods.
    fn decide_requests(&self, node: &str, attributes: &Attributes) -> Option<Opinion> {
        let no = |reason: &str| Some(Opinion::None(reason.to_owned()));
        if !attributes.subresource.is_empty() {
            return no("nodes may not access the status subresource of PodCertificateRequests");
        }
        match &attributes.verb {
            // Admission looks at whose it is.
            Verb::Create => Some(Opinion::Allow(String::new())),
            Verb::Get => self
                .related(node, attributes, |graph| graph.request_is_of(&attributes.namespace, &attributes.name, node)),
            Verb::List | Verb::Watch => {
                let selector = api::selector::FieldSelector::parse(&attributes.field_selector);
                match selector.is_ok_and(|selector| selector.requires("spec.nodeName") == Some(node)) {
                    true => Some(Opinion::Allow(String::new())),
                    false => no("can only list/watch podcertificaterequests with nodeName field selector"),
                }
            }
            verb => no(&format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn related(&self, node: &str, attributes: &Attributes, reaches: impl FnOnce(&Graph) -> bool) -> Option<Opinion> {
        if attributes.name.is_empty() {
            return Some(Opinion::None("No Object name found".to_owned()));
        }
        let mut followed = self.followed.lock();
        followed.catch_up();
        Some(if reaches(&followed.graph) {
            Opinion::Allow(String::new())
        } else {
            Opinion::None(format!("no relationship found between node '{node}' and this object"))
        })
    }
}

impl Followed {
    fn catch_up(&mut self) {
        let graph = &mut self.graph;
        self.pods.read(graph, Graph::clear_pods, |graph, change| {
            // Most changes are to the status, which names nothing but resource claims.
            let part = |entry: &Entry, path: &[&str]| {
                crate::json::find(&entry.stored, path).map(|range| entry.stored[range].to_vec())
            };
            if let (Some(old), Some(new)) = (change.old, change.new)
                && [&["spec"][..], &["metadata", "uid"], &["status", "resourceClaimStatuses"]]
                    .iter()
                    .all(|path| part(old, path) == part(new, path))
            {
                return;
            }
            graph.set_pod(change.key, object::<Pod>(&change).as_ref());
        });
        self.volumes.read(graph, Graph::clear_volumes, |graph, change| {
            graph.set_volume(change.key, object::<PersistentVolume>(&change).as_ref());
        });
        self.attachments.read(graph, Graph::clear_attachments, |graph, change| {
            let attachment = object::<VolumeAttachment>(&change);
            graph.set_attachment(change.key, attachment.map(|attachment| attachment.spec.node_name));
        });
        self.slices.read(graph, Graph::clear_slices, |graph, change| {
            let slice = object::<ResourceSlice>(&change);
            graph.set_slice(change.key, slice.and_then(|slice| slice.spec.node_name));
        });
        self.requests.read(graph, Graph::clear_requests, |graph, change| {
            let request = object::<PodCertificateRequest>(&change);
            graph.set_request(change.key, request.map(|request| request.spec.node_name));
        });
    }
}

/// The object as it is now; one that cannot be read leads nowhere.
fn object<K: Parts>(change: &Change<'_>) -> Option<K> {
    change.new.and_then(|entry| entry.object().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn authorizer() -> NodeAuthorizer {
        let mut graph = Graph::default();
        let pod = |name: &str, node: &str, rest: serde_json::Value| -> Pod {
            let mut pod = json!({"metadata": {"name": name, "namespace": "a"},
                "spec": {"nodeName": node, "serviceAccountName": "robot", "containers": []}});
            pod["spec"].as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            serde_json::from_value(pod).unwrap()
        };
        let own = pod(
            "p",
            "n",
            json!({
            "containers": [{"name": "c", "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}}],
                "envFrom": [{"configMapRef": {"name": "from"}}]}],
            "ephemeralContainers": [{"name": "e", "envFrom": [{"secretRef": {"name": "late"}}]}],
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [{"name": "s", "secret": {"secretName": "vol"}},
                {"name": "p", "projected": {"sources": [{"configMap": {"name": "projected"}}]}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}},
                {"name": "own", "ephemeral": {}}]}),
        );
        let other = pod("q", "m", json!({"volumes": [{"name": "s", "secret": {"secretName": "theirs"}}]}));
        let mut mirror = pod("mirror", "n", json!({"volumes": [{"name": "s", "secret": {"secretName": "stolen"}}]}));
        mirror.metadata.annotations = Some([("kubernetes.io/config.mirror".to_owned(), String::new())].into());
        for pod in [own, other, mirror] {
            graph.set_pod(&format!("a/{}", pod.metadata.name.as_deref().unwrap()), Some(&pod));
        }
        let volume: PersistentVolume =
            serde_json::from_value(json!({"spec": {"claimRef": {"namespace": "a", "name": "claim"},
            "csi": {"driver": "d", "volumeHandle": "h", "nodeStageSecretRef": {"namespace": "b", "name": "stage"}}}}))
            .unwrap();
        graph.set_volume("pv", Some(&volume));
        graph.set_attachment("va", Some("n".to_owned()));
        let feed = || Feed::nothing();
        graph.set_slice("s", Some("n".to_owned()));
        graph.set_request("a/own", Some("n".to_owned()));
        graph.set_request("a/other", Some("m".to_owned()));
        let (pods, volumes, attachments, slices, requests) = (feed(), feed(), feed(), feed(), feed());
        let followed = Followed { graph, pods, volumes, attachments, slices, requests };
        NodeAuthorizer { followed: Mutex::new(followed) }
    }

    /// `verb group/resource/subresource namespace/name selector`
    fn ask(authorizer: &NodeAuthorizer, question: &str) -> bool {
        let words: Vec<&str> = question.split(' ').collect();
        let [verb, resource, object, rest @ ..] = words.as_slice() else { panic!("{question}") };
        let (group, resource) = resource.rsplit_once(':').unwrap_or(("", resource));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let (namespace, name) = object.split_once('/').unwrap_or(("", object));
        let attributes = Attributes {
            is_resource: true,
            verb: (*verb).into(),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            field_selector: rest.first().copied().unwrap_or_default().into(),
            ..Default::default()
        };
        let user = UserInfo::new("system:node:n", &[NODES]);
        matches!(authorizer.decide(&user, &attributes), Opinion::Allow(_))
    }

    #[test]
    fn a_node_reaches_its_own_and_nothing_else() {
        let authorizer = authorizer();
        for (question, allowed) in [
            ("get secrets a/env", true),
            ("list secrets a/env", true),
            ("watch secrets a/vol", true),
            ("get secrets a/pull", true),
            ("get secrets a/late", true),
            ("get secrets a/theirs", false),
            ("get secrets a/stolen", false),
            ("get secrets b/env", false),
            ("get secrets b/stage", true),
            ("list secrets a/", false),
            ("list secrets /", false),
            ("update secrets a/env", false),
            ("get configmaps a/from", true),
            ("get configmaps a/projected", true),
            ("get configmaps a/env", false),
            ("get persistentvolumeclaims a/claim", true),
            ("get persistentvolumeclaims a/p-own", true),
            ("list persistentvolumeclaims a/claim", false),
            ("update persistentvolumeclaims/status a/claim", true),
            ("update persistentvolumeclaims a/claim", false),
            ("get persistentvolumes /pv", true),
            ("get persistentvolumes /other", false),
            ("get storage.k8s.io:volumeattachments /va", true),
            ("get storage.k8s.io:volumeattachments /vb", false),
            ("create serviceaccounts/token a/robot", true),
            ("create serviceaccounts/token a/admin", false),
            ("get serviceaccounts a/robot", true),
            ("update serviceaccounts a/robot", false),
            ("get pods a/p", true),
            ("get pods a/q", false),
            ("list pods a/ spec.nodeName=n", true),
            ("list pods / spec.nodeName=n", true),
            ("list pods a/ spec.nodeName=m", false),
            ("list pods a/ spec.nodeName!=m", false),
            ("list pods a/", false),
            ("update pods/status a/p", true),
            ("update pods a/p", false),
            ("create pods/exec a/p", false),
            ("get nodes /n", true),
            ("get nodes /m", false),
            ("list nodes /", false),
            ("update nodes/status /n", true),
            ("delete nodes /n", false),
            ("update coordination.k8s.io:leases kube-node-lease/n", true),
            ("update coordination.k8s.io:leases kube-node-lease/m", false),
            ("update coordination.k8s.io:leases a/n", false),
            ("get storage.k8s.io:csinodes /n", true),
            ("get storage.k8s.io:csinodes /m", false),
            ("get local.cox:nodevolumes /n", true),
            ("list local.cox:nodevolumes /n", true),
            ("watch local.cox:nodevolumes /n", true),
            ("patch local.cox:nodevolumes/status /n", true),
            ("patch local.cox:nodevolumes /n", false),
            ("delete local.cox:nodevolumes /n", false),
            ("create local.cox:nodevolumes /", false),
            ("list local.cox:nodevolumes /", false),
            ("get local.cox:nodevolumes /m", false),
            ("patch local.cox:nodevolumes/status /m", false),
            ("list persistentvolumes /", false),
            ("create persistentvolumes /", false),
            ("patch persistentvolumes /v", false),
            ("list persistentvolumeclaims a/", false),
            ("create storage.k8s.io:csistoragecapacities kube-system/", false),
            ("create resource.k8s.io:resourceslices /", true),
            ("update resource.k8s.io:resourceslices /s", true),
            ("update resource.k8s.io:resourceslices /t", false),
            ("get resource.k8s.io:resourceslices /t", false),
            ("list resource.k8s.io:resourceslices / spec.nodeName=n", true),
            ("list resource.k8s.io:resourceslices / spec.nodeName=m", false),
            ("deletecollection resource.k8s.io:resourceslices /", false),
            ("create certificates.k8s.io:podcertificaterequests a/", true),
            ("get certificates.k8s.io:podcertificaterequests a/own", true),
            ("get certificates.k8s.io:podcertificaterequests a/other", false),
            ("list certificates.k8s.io:podcertificaterequests a/", false),
            ("list certificates.k8s.io:podcertificaterequests a/ spec.nodeName=m", false),
            ("watch certificates.k8s.io:podcertificaterequests / spec.nodeName=n", true),
            ("update certificates.k8s.io:podcertificaterequests a/own", false),
            ("update certificates.k8s.io:podcertificaterequests/status a/own", false),
            ("list services a/", true),
            ("create services a/", false),
        ] {
            assert_eq!(ask(&authorizer, question), allowed, "{question}");
        }
    }

    #[test]
    fn only_nodes_are_nodes_and_pods_that_leave_take_their_rights_along() {
        let authorizer = authorizer();
        let attributes = Attributes {
            is_resource: true,
            verb: "get".into(),
            resource: "secrets".into(),
            namespace: "a".into(),
            name: "vol".into(),
            ..Default::default()
        };
        let allowed = |user: &UserInfo| matches!(authorizer.decide(user, &attributes), Opinion::Allow(_));
        assert!(allowed(&UserInfo::new("system:node:n", &[NODES])));
        assert!(!allowed(&UserInfo::new("system:node:n", &[])));
        assert!(!allowed(&UserInfo::new("n", &[NODES])));
        assert!(!allowed(&UserInfo::new("system:node:", &[NODES])));
        assert!(!allowed(&UserInfo::new("system:node:m", &[NODES])));
        authorizer.followed.lock().graph.set_pod("a/p", None);
        assert!(!allowed(&UserInfo::new("system:node:n", &[NODES])));
    }
}
