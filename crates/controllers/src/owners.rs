//! Owner references: who controls what, adoption of orphans and release of what no longer matches.

use std::sync::Arc;

use api::meta::Meta as _;
use api::selector::Selector;
use client::{Client, Event, Informer, Object, Patch, Resource};
use futures_util::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;

use crate::Error;

/// The index under which objects without a controller are found, by namespace.
const ORPHANS: &str = "orphans";

/// A reference that makes `owner` the controller.
pub(crate) fn controller_reference<K: Resource>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::API_VERSION.into(),
        kind: K::KIND.into(),
        name: owner.metadata().name().to_owned(),
        uid: owner.metadata().uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The key of the controller of `meta` if it is a `K` and still the one that is meant.
pub(crate) fn controller_key<K: Resource>(meta: &ObjectMeta, owners: &Informer<K>) -> Option<String> {
    let reference = meta.controller()?;
    if reference.kind != K::KIND || reference.api_version.split('/').next() != K::API_VERSION.split('/').next() {
        return None;
    }
    let key = match &meta.namespace {
        Some(namespace) => format!("{namespace}/{}", reference.name),
        None => reference.name.clone(),
    };
    owners.get(&key).filter(|owner| owner.metadata().uid.as_deref() == Some(&reference.uid)).map(|_| key)
}

/// The key of the controller that a changed object does not have any more.
pub(crate) fn former_controller<K: Resource, O: Object>(event: &Event<O>, owners: &Informer<K>) -> Option<String> {
    let Event::Modified { old, new } = event else { return None };
    let has_another = old.meta().controller() != new.meta().controller();
    has_another.then(|| controller_key(old.meta(), owners)).flatten()
}

/// Keys of those who may adopt an object: none if it has a controller, else all of its namespace whose selector matches it.
/// An empty selector, which matches everything, adopts nothing.
pub(crate) fn adopters<K: Resource>(
    meta: &ObjectMeta,
    owners: &Informer<K>,
    selector: fn(&K) -> Result<Selector, Error>,
) -> Vec<String> {
    if meta.controller().is_some() {
        return Vec::new();
    }
    let namespace = meta.namespace();
    let matches = |owner: &Arc<K>| {
        selector(owner).is_ok_and(|selector| !selector.is_empty() && selector.matches(meta.labels.as_ref()))
    };
    owners.by_namespace(namespace).into_iter().filter(matches).map(|owner| client::object_key(&*owner)).collect()
}

/// Adds the index that `candidates` needs.
pub(crate) fn index_orphans<K: Object>(informer: &Informer<K>) {
    informer.add_index(ORPHANS, |object| match object.meta().controller() {
        None => object.meta().namespace.iter().cloned().collect(),
        Some(_) => Vec::new(),
    });
}

/// What `owner` controls, and what it might adopt.
pub(crate) fn candidates<K: Object>(informer: &Informer<K>, owner: &ObjectMeta) -> Vec<Arc<K>> {
    let mut found = informer.by_owner(owner.uid.as_deref().unwrap_or_default());
    found.extend(informer.by_index(ORPHANS, owner.namespace.as_deref().unwrap_or_default()));
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    Keep,
    Adopt,
    Release,
    Ignore,
}

/// Decides about one candidate. An owner on its way out neither adopts nor releases.
fn claim_one(owner_uid: &str, owner_deleting: bool, object: &ObjectMeta, matches: bool) -> Claim {
    match object.controller() {
        Some(reference) if reference.uid != owner_uid => Claim::Ignore,
        Some(_) if matches => Claim::Keep,
        Some(_) if owner_deleting => Claim::Ignore,
        Some(_) => Claim::Release,
        None if owner_deleting || !matches || object.deletion_timestamp.is_some() => Claim::Ignore,
        None => Claim::Adopt,
    }
}

/// Whether `owner` may adopt, as the server has it: a cached one may be on its way out or gone, and the one of its name
/// another.
pub(crate) async fn may_adopt<O: Resource>(client: &Client, owner: &O) -> Result<bool, Error> {
    let meta = owner.metadata();
    let fresh = client.namespaced::<O>(meta.namespace()).get(meta.name()).await?;
    Ok(fresh.metadata().uid() == meta.uid() && fresh.metadata().deletion_timestamp.is_none())
}

/// The candidates that belong to `owner` after adopting what matches and releasing what does not.
pub(crate) async fn claim<O: Resource, K: Resource>(
    client: &Client,
    owner: &O,
    selector: &Selector,
    candidates: Vec<Arc<K>>,
    adoptable: impl Fn(&K) -> bool,
) -> Result<Vec<Arc<K>>, Error> {
    let meta = owner.metadata();
    let (uid, namespace) = (meta.uid(), meta.namespace());
    let api = client.namespaced::<K>(namespace);
    let (mut kept, mut adopt, mut release) = (Vec::new(), Vec::new(), Vec::new());
    for object in candidates {
        let matches = selector.matches(object.metadata().labels.as_ref()) && adoptable(&object);
        match claim_one(uid, meta.deletion_timestamp.is_some(), object.metadata(), matches) {
            Claim::Keep => kept.push(object),
            Claim::Adopt => adopt.push(object),
            Claim::Release => release.push(object),
            Claim::Ignore => {}
        }
    }
    if !adopt.is_empty() && !may_adopt(client, owner).await? {
        adopt.clear();
    }
    let adoptions = adopt.iter().map(|object| {
        let meta = object.metadata();
        let patch = Patch::strategic(json!({
            "metadata": { "uid": meta.uid, "ownerReferences": [controller_reference(owner)] }
        }));
        let (api, name) = (api.clone(), meta.name().to_owned());
        async move { api.patch(&name, &patch).await }
    });
    for adopted in join_all(adoptions).await {
        match adopted {
            Ok(object) => kept.push(Arc::new(object)),
            Err(error) if error.is_not_found() || error.is_invalid() => {} // gone, or adopted by another
            Err(error) => return Err(error.into()),
        }
    }
    for object in release {
        let meta = object.metadata();
        let patch = Patch::strategic(json!({
            "metadata": { "uid": meta.uid, "ownerReferences": [{ "$patch": "delete", "uid": uid }] }
        }));
        match api.patch(meta.name(), &patch).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() || error.is_invalid() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use api::cached::Pod;
    use k8s_openapi::api::apps::v1::DaemonSet;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::pods::tests::{Builder, informer_of};

    fn controlled_by(uid: Option<&str>) -> Option<Vec<OwnerReference>> {
        let reference = |uid: &str| OwnerReference {
            api_version: "apps/v1".into(),
            kind: "DaemonSet".into(),
            name: "agent".into(),
            uid: uid.into(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        uid.map(|uid| vec![reference(uid)])
    }

    /// Whoever loses an object is told, although it does not name its owner any more.
    #[tokio::test]
    async fn a_former_controller_hears_of_its_loss() {
        let set = json!({ "metadata": { "name": "agent", "namespace": "default", "uid": "new" } });
        let sets = informer_of::<DaemonSet>(vec![set]).await;
        let pod = |uid: Option<&str>| {
            let mut pod = Builder::new("p").0;
            pod.metadata.owner_references = controlled_by(uid);
            Arc::new(Pod::from(pod))
        };
        for (old, new, expected) in [
            (Some("new"), None, Some("default/agent")),
            (Some("new"), Some("another"), Some("default/agent")),
            (Some("new"), Some("new"), None),
            (None, Some("new"), None),
            (Some("old"), None, None),
        ] {
            let event = Event::Modified { old: pod(old), new: pod(new) };
            assert_eq!(former_controller(&event, &sets).as_deref(), expected, "{old:?} {new:?}");
        }
        assert_eq!(former_controller(&Event::Deleted(pod(Some("new"))), &sets), None);
    }

    #[test]
    fn one_controller_wins_and_the_dying_do_not_claim() {
        let object = |owner: Option<&str>, deleting: bool| ObjectMeta {
            owner_references: owner.map(|uid| {
                vec![OwnerReference { uid: uid.into(), controller: Some(true), ..OwnerReference::default() }]
            }),
            deletion_timestamp: deleting.then_some(Time(jiff::Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        };
        for (owner, object_deleting, matches, owner_deleting, expected) in [
            (Some("me"), false, true, false, Claim::Keep),
            (Some("me"), true, true, true, Claim::Keep),
            (Some("me"), false, false, false, Claim::Release),
            (Some("me"), false, false, true, Claim::Ignore),
            (Some("other"), false, true, false, Claim::Ignore),
            (None, false, true, false, Claim::Adopt),
            (None, false, true, true, Claim::Ignore),
            (None, true, true, false, Claim::Ignore),
            (None, false, false, false, Claim::Ignore),
        ] {
            let object = object(owner, object_deleting);
            assert_eq!(
                claim_one("me", owner_deleting, &object, matches),
                expected,
                "{owner:?} {object_deleting} {matches} {owner_deleting}"
            );
        }
    }
}
