//! The graph of owners and dependents, as the metadata of every object tells it.
//!
//! Pure: it takes observations and answers with the keys that need attention. Edges go by group and uid, so an object that was
//! deleted and made anew is another node, and a server shows nothing for the objects of other groups, whatever uids it gives its
//! own. An owner that is referred to but has not been seen is `absent` until it is
//! either seen or looked up and found missing.
//!
//! There is a node for every object of the cluster, so nodes share what they can: uids, kinds, and the owners that all pods of
//! a set name alike.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use api::meta::Meta as _;
use client::Gvr;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";

/// What a node is known by.
pub(super) fn id(group: &str, uid: &str) -> String {
    format!("{group}/{uid}")
}

/// Group and uid. No group has a slash; there is no telling what a uid of others has.
pub(super) fn parts(id: &str) -> (&str, &str) {
    id.split_once('/').unwrap_or(("", id))
}

/// The group of an owner.
pub(super) fn group_of(owner: &OwnerReference) -> &str {
    owner.api_version.split_once('/').map_or("", |(group, _)| group)
}

fn owner_id(owner: &OwnerReference) -> String {
    id(group_of(owner), &owner.uid)
}

fn leads_to(owner: &OwnerReference, id: &str) -> bool {
    (group_of(owner), owner.uid.as_str()) == parts(id)
}

fn is_same(one: &OwnerReference, other: &OwnerReference) -> bool {
    one.uid == other.uid && group_of(one) == group_of(other)
}

/// What the queue is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Work {
    /// See whether the object should go, or whether its own deletion can go on.
    Check(String),
    /// Cut the dependents loose before the owner goes.
    Orphan(String),
}

/// Where an object is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) gvr: Arc<Gvr>,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

impl Place {
    /// Whether one object is found in both, in whichever versions.
    pub(super) fn is(&self, other: &Place) -> bool {
        (&self.gvr.group, &self.gvr.resource) == (&other.gvr.group, &other.gvr.resource)
            && (&self.namespace, &self.name) == (&other.namespace, &other.name)
    }
}

/// How a dependent calls its owner, and from which namespace.
pub(super) type Reference = (OwnerReference, Option<String>);

#[derive(Debug)]
pub(super) struct Node {
    /// `None` for an owner only known from references.
    pub(super) place: Option<Place>,
    /// Of an unseen owner: how its dependents call it, and from which namespace.
    pub(super) reference: Option<Box<Reference>>,
    pub(super) owners: Arc<[OwnerReference]>,
    pub(super) dependents: HashSet<Arc<str>>,
    /// The owners of the dependent that was seen last, whose first this is: those of the others are mostly the same.
    named: Option<Arc<[OwnerReference]>>,
    pub(super) is_deleting: bool,
    /// Deleted in the foreground: it waits for the dependents that block it.
    pub(super) waits_for_dependents: bool,
}

impl Node {
    fn new() -> Self {
        Self {
            place: None,
            reference: None,
            owners: Arc::default(),
            dependents: HashSet::new(),
            named: None,
            is_deleting: false,
            waits_for_dependents: false,
        }
    }
}

/// What a decision about one object needs to know: its node without the dependents, of which there may be thousands.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) place: Option<Place>,
    pub(super) reference: Option<Box<Reference>>,
    pub(super) is_deleting: bool,
    pub(super) waits_for_dependents: bool,
    pub(super) has_dependents: bool,
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: HashMap<Arc<str>, Node>,
}

impl Graph {
    pub(super) fn get(&self, id: &str) -> Option<&Node> {
        self.nodes.get(id)
    }

    pub(super) fn facts(&self, id: &str) -> Option<Facts> {
        self.nodes.get(id).map(|node| Facts {
            place: node.place.clone(),
            reference: node.reference.clone(),
            is_deleting: node.is_deleting,
            waits_for_dependents: node.waits_for_dependents,
            has_dependents: !node.dependents.is_empty(),
        })
    }

    /// Where the dependents of an object are, as far as they were seen.
    pub(super) fn dependents(&self, id: &str) -> Vec<Place> {
        let dependents = self.nodes.get(id).into_iter().flat_map(|node| &node.dependents);
        dependents.filter_map(|dependent| self.nodes.get(dependent)?.place.clone()).collect()
    }

    /// The groups of an object and of its owners.
    pub(super) fn groups_of_owners(&self, id: &str) -> Vec<String> {
        let owners = self.nodes.get(id).into_iter().flat_map(|node| node.owners.iter());
        std::iter::once(parts(id).0).chain(owners.map(group_of)).map(str::to_owned).collect()
    }

    /// The groups of an object and of its dependents, each once.
    pub(super) fn groups_of_dependents(&self, id: &str) -> Vec<String> {
        let dependents = self.nodes.get(id).into_iter().flat_map(|node| &node.dependents);
        let groups: HashSet<&str> = dependents.map(|dependent| parts(dependent).0).chain([parts(id).0]).collect();
        groups.into_iter().map(str::to_owned).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The object was added or changed.
    pub(super) fn observe(&mut self, gvr: &Arc<Gvr>, meta: &ObjectMeta) -> Vec<Work> {
        let Some(uid) = meta.uid.as_deref() else { return Vec::new() };
        let id = id(&gvr.group, uid);
        let id = self.nodes.get_key_value(&*id).map_or_else(|| Arc::from(&*id), |(known, _)| known.clone());
        let mut work = Vec::new();
        let place = Place { gvr: gvr.clone(), namespace: meta.namespace.clone(), name: meta.name().to_owned() };
        let owners = self.shared(meta.owner_references.as_deref().unwrap_or_default());
        let has_finalizer = |name: &str| meta.finalizers.iter().flatten().any(|finalizer| finalizer == name);
        let is_deleting = meta.deletion_timestamp.is_some();
        let waits = is_deleting && has_finalizer(FOREGROUND);

        let node = self.nodes.entry(id.clone()).or_insert_with(Node::new);
        let before = (std::mem::replace(&mut node.owners, owners.clone()), node.waits_for_dependents);
        node.place = Some(place);
        node.reference = None;
        node.is_deleting = is_deleting;
        node.waits_for_dependents = waits;
        if is_deleting && has_finalizer(ORPHAN) {
            work.push(Work::Orphan(id.to_string()));
        }
        if waits && !before.1 {
            work.extend(node.dependents.iter().map(|dependent| Work::Check(dependent.to_string())));
            work.push(Work::Check(id.to_string()));
        }
        self.relink(&id, meta.namespace.as_ref(), &before.0, &owners, &mut work);
        work
    }

    /// The same owners as another dependent's, where it has the same.
    fn shared(&self, owners: &[OwnerReference]) -> Arc<[OwnerReference]> {
        let known = owners.first().and_then(|first| self.nodes.get(&*owner_id(first))?.named.as_ref());
        known.filter(|known| ***known == *owners).map_or_else(|| Arc::from(owners), Arc::clone)
    }

    fn relink(
        &mut self,
        id: &Arc<str>,
        namespace: Option<&String>,
        old: &[OwnerReference],
        new: &Arc<[OwnerReference]>,
        work: &mut Vec<Work>,
    ) {
        for owner in old {
            let kept = new.iter().find(|kept| is_same(kept, owner));
            let blocked = owner.block_owner_deletion == Some(true);
            let unblocked = blocked && kept.is_none_or(|kept| kept.block_owner_deletion != Some(true));
            let owner = owner_id(owner);
            if let Some(node) = self.nodes.get_mut(&*owner) {
                if kept.is_none() {
                    node.dependents.remove(&**id);
                }
                // A waiting owner may have lost its last blocker.
                if unblocked && node.waits_for_dependents {
                    work.push(Work::Check(owner.clone()));
                }
            }
            if kept.is_none() {
                self.forget_if_unused(&owner);
            }
        }
        for (at, owner) in new.iter().enumerate() {
            let added = !old.iter().any(|known| is_same(known, owner));
            let owner_id = owner_id(owner);
            if !self.nodes.contains_key(&*owner_id) {
                self.nodes.insert(Arc::from(&*owner_id), Node::new());
            }
            let Some(node) = self.nodes.get_mut(&*owner_id) else { continue };
            node.dependents.insert(id.clone());
            if at == 0 {
                node.named = Some(new.clone());
            }
            if node.place.is_none() && node.reference.is_none() {
                node.reference = Some(Box::new((owner.clone(), namespace.cloned())));
                // Perhaps it comes with a later event, perhaps it is gone for good: look.
                work.push(Work::Check(owner_id));
            } else if added && (node.waits_for_dependents || !same_place(node, owner, namespace)) {
                work.push(Work::Check(id.to_string()));
            }
        }
    }

    /// The object is gone.
    pub(super) fn remove(&mut self, id: &str) -> Vec<Work> {
        let Some(node) = self.nodes.remove(id) else { return Vec::new() };
        let mut work: Vec<Work> = node.dependents.iter().map(|dependent| Work::Check(dependent.to_string())).collect();
        for owner in node.owners.iter().map(owner_id) {
            if let Some(owner_node) = self.nodes.get_mut(&*owner) {
                owner_node.dependents.remove(id);
                if owner_node.waits_for_dependents {
                    work.push(Work::Check(owner.clone()));
                }
            }
            self.forget_if_unused(&owner);
        }
        work
    }

    /// Dependents that keep a foreground deletion waiting: whether there are any, and which of them must still be told to go.
    pub(super) fn blockers(&self, id: &str) -> (bool, Vec<String>) {
        let (mut any, mut unchecked) = (false, Vec::new());
        let Some(owner_node) = self.nodes.get(id) else { return (any, unchecked) };
        for dependent in &owner_node.dependents {
            let Some(node) = self.nodes.get(dependent) else { continue };
            let namespace = node.place.as_ref().and_then(|place| place.namespace.as_ref());
            let blocks = |owner: &OwnerReference| {
                owner.block_owner_deletion == Some(true)
                    && leads_to(owner, id)
                    && same_place(owner_node, owner, namespace)
            };
            if node.owners.iter().any(blocks) {
                any = true;
                if !node.is_deleting || node.waits_for_dependents {
                    unchecked.push(dependent.to_string());
                }
            }
        }
        (any, unchecked)
    }

    /// Whether something that this object owns waits for its own dependents.
    pub(super) fn has_waiting_dependent(&self, id: &str) -> bool {
        let Some(node) = self.nodes.get(id) else { return false };
        node.dependents.iter().any(|dependent| self.nodes.get(dependent).is_some_and(|node| node.waits_for_dependents))
    }

    /// An owner nobody refers to any more, and which was never seen, need not be remembered.
    fn forget_if_unused(&mut self, id: &str) {
        if self.nodes.get(id).is_some_and(|node| node.place.is_none() && node.dependents.is_empty()) {
            self.nodes.remove(id);
        }
    }
}

/// References do not cross namespaces: one that points to an object elsewhere points to nothing.
fn same_place(node: &Node, owner: &OwnerReference, namespace: Option<&String>) -> bool {
    node.place.as_ref().is_none_or(|place| {
        place.name == owner.name && (place.namespace.is_none() || place.namespace.as_ref() == namespace)
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn gvr() -> Arc<Gvr> {
        Arc::new(Gvr::new("", "v1", "things"))
    }

    fn object(uid: &str, owners: &[&str]) -> ObjectMeta {
        let owner = |uid: &&str| OwnerReference {
            uid: (*uid).into(),
            name: (*uid).into(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        };
        ObjectMeta {
            uid: Some(uid.into()),
            name: Some(uid.into()),
            owner_references: Some(owners.iter().map(owner).collect()),
            ..ObjectMeta::default()
        }
    }

    fn deleting(mut object: ObjectMeta, finalizer: &str) -> ObjectMeta {
        object.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        object.finalizers = Some(vec![finalizer.into()]);
        object
    }

    fn check(uid: &str) -> Work {
        check_of("", uid)
    }

    fn check_of(group: &str, uid: &str) -> Work {
        Work::Check(id(group, uid))
    }

    #[test]
    fn a_deleted_owner_has_its_dependents_checked() {
        let mut graph = Graph::default();
        assert_eq!(graph.observe(&gvr(), &object("set", &[])), []);
        assert_eq!(graph.observe(&gvr(), &object("pod", &["set"])), []);
        assert_eq!(graph.remove("/set"), [check("pod")]);
    }

    #[test]
    fn dependents_share_what_they_say_of_their_owner() {
        let mut graph = Graph::default();
        graph.observe(&gvr(), &object("set", &[]));
        for pod in ["a", "b", "c"] {
            graph.observe(&gvr(), &object(pod, &["set"]));
        }
        let owners = |graph: &Graph, uid: &str| graph.get(&id("", uid)).unwrap().owners.clone();
        assert!(Arc::ptr_eq(&owners(&graph, "a"), &owners(&graph, "c")));
        let mut free = object("b", &["set"]);
        free.owner_references.as_mut().unwrap()[0].block_owner_deletion = Some(false);
        graph.observe(&gvr(), &free);
        assert_eq!(owners(&graph, "b")[0].block_owner_deletion, Some(false));
        assert_eq!(owners(&graph, "a")[0].block_owner_deletion, Some(true));
        let mut known: Vec<_> = graph.get("/set").unwrap().dependents.iter().collect();
        known.sort();
        assert_eq!(known.len(), 3);
        let (key, _) = graph.nodes.get_key_value("/a").unwrap();
        assert!(Arc::ptr_eq(known[0], key), "a uid is there once");
    }

    #[test]
    fn security_uids_of_another_group_are_others() {
        let (mut graph, theirs) = (Graph::default(), Arc::new(Gvr::new("example.com", "v1", "things")));
        graph.observe(&gvr(), &object("set", &[]));
        graph.observe(&gvr(), &object("pod", &["set"]));
        assert_eq!(graph.observe(&theirs, &deleting(object("set", &[]), FOREGROUND)), [check_of("example.com", "set")]);
        assert_eq!(graph.remove("example.com/set"), []);
        let facts = graph.facts("/set").unwrap();
        assert!(facts.has_dependents && !facts.is_deleting && facts.place.unwrap().gvr == gvr());
        // Nor do references block that lead to another namespace.
        graph.observe(&gvr(), &ObjectMeta { namespace: Some("a".into()), ..object("set", &[]) });
        graph.observe(&gvr(), &ObjectMeta { namespace: Some("b".into()), ..object("pod", &["set"]) });
        assert!(!graph.blockers("/set").0);
        graph.observe(&gvr(), &ObjectMeta { namespace: Some("a".into()), ..object("pod", &["set"]) });
        assert!(graph.blockers("/set").0);
    }

    #[test]
    fn an_owner_never_seen_is_looked_for() {
        let mut graph = Graph::default();
        assert_eq!(graph.observe(&gvr(), &object("pod", &["ghost"])), [check("ghost")]);
        assert_eq!(graph.observe(&gvr(), &object("ghost", &[])), [], "it was only late");
        assert_eq!(graph.remove("/pod"), []);
        assert_eq!(graph.len(), 1);
    }

    #[test]
    fn foreground_deletion_waits_for_its_blockers() {
        let mut graph = Graph::default();
        graph.observe(&gvr(), &object("set", &[]));
        graph.observe(&gvr(), &object("pod", &["set"]));
        let mut work = graph.observe(&gvr(), &deleting(object("set", &[]), FOREGROUND));
        work.sort();
        assert_eq!(work, [check("pod"), check("set")]);
        assert_eq!(graph.blockers("/set"), (true, vec!["/pod".to_owned()]));
        graph.observe(&gvr(), &deleting(object("pod", &["set"]), "its own"));
        assert_eq!(graph.blockers("/set"), (true, vec![]), "told once is enough");
        assert_eq!(graph.remove("/pod"), [check("set")]);
        assert_eq!(graph.blockers("/set"), (false, vec![]));
    }

    #[test]
    fn a_circle_is_noticed_and_broken() {
        let mut graph = Graph::default();
        for (uid, owner) in [("a", "c"), ("b", "a"), ("c", "b")] {
            graph.observe(&gvr(), &object(uid, &[owner]));
        }
        graph.observe(&gvr(), &deleting(object("a", &["c"]), FOREGROUND));
        graph.observe(&gvr(), &deleting(object("b", &["a"]), FOREGROUND));
        assert!(!graph.has_waiting_dependent("/b"), "c is not being deleted yet");
        assert!(graph.has_waiting_dependent("/c"), "a is");
        let mut free = object("c", &["b"]);
        free.owner_references.as_mut().unwrap()[0].block_owner_deletion = Some(false);
        assert_eq!(graph.observe(&gvr(), &free), [check("b")]);
        assert!(!graph.blockers("/b").0);
    }

    #[test]
    fn orphaning_is_its_own_work() {
        let mut graph = Graph::default();
        graph.observe(&gvr(), &object("set", &[]));
        graph.observe(&gvr(), &object("pod", &["set"]));
        assert_eq!(graph.observe(&gvr(), &deleting(object("set", &[]), ORPHAN)), [Work::Orphan(id("", "set"))]);
        assert_eq!(graph.observe(&gvr(), &object("pod", &[])), []);
        assert!(!graph.facts("/set").unwrap().has_dependents);
        assert_eq!(graph.remove("/set"), []);
    }
}
