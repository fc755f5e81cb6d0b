//! One copy of an object for all informers of the process that hold the same version of it.
//!
//! Several components in one process follow the same kinds, each with its own identity and its own watch. What they see
//! of an object is equal, so that whoever comes later takes the copy that is there.
//!
//! Invariant: a shared object equals the one that was decoded. Identity and version only find it: a server that was
//! restored, or another one, may give them to something else.

use std::any::{Any, TypeId};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex};

use api::shared::{Table, lock};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::Resource;

type Held = dyn Any + Send + Sync;
/// A type, and a hash of identity and version.
type Key = (TypeId, u64);

static OBJECTS: LazyLock<Mutex<Table<Key, Held>>> = LazyLock::new(Mutex::default);
static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// `object`, or the equal one that another informer holds.
pub(super) fn one<K: Resource>(object: K) -> Arc<K> {
    // What is no more than a pointer, as a pod of `api::cached`, is shared already.
    if size_of::<K>() <= size_of::<usize>() {
        return Arc::new(object);
    }
    let Some((key, known)) = find(TypeId::of::<K>(), object.metadata()) else { return Arc::new(object) };
    // Compared without the lock: objects can be large.
    match known.and_then(|known| known.downcast::<K>().ok()) {
        Some(known) if *known == object => known,
        _ => {
            let new = Arc::new(object);
            keep(key, new.clone());
            new
        }
    }
}

/// Where an object of this type, identity and version is kept, and what is there; none if it has no version. This and the next are
/// apart from [`one`] because they are the same for all types.
fn find(kind: TypeId, meta: &ObjectMeta) -> Option<(Key, Option<Arc<Held>>)> {
    let (uid, version) = meta.uid.as_ref().zip(meta.resource_version.as_ref())?;
    let key = (kind, HASH.hash_one((uid, version)));
    let known = lock(&OBJECTS).find(&key);
    Some((key, known))
}

fn keep(key: Key, new: Arc<Held>) {
    lock(&OBJECTS).keep(key, new, |_| false);
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use serde_json::json;

    use super::*;

    fn map(uid: &str, version: &str, value: &str) -> ConfigMap {
        let metadata = json!({ "name": "a", "uid": uid, "resourceVersion": version });
        serde_json::from_value(json!({ "metadata": metadata, "data": { "key": value } })).unwrap()
    }

    #[test]
    fn equal_versions_are_one_object() {
        let first = one(map("shared-u", "1", "a"));
        assert!(Arc::ptr_eq(&first, &one(map("shared-u", "1", "a"))));
        for other in [map("shared-u", "2", "a"), map("shared-v", "1", "a"), map("shared-u", "1", "b")] {
            let seen = one(other.clone());
            assert!(!Arc::ptr_eq(&first, &seen) && *seen == other);
        }
        let secret = Secret { metadata: first.metadata.clone(), ..Secret::default() };
        assert_eq!(*one(secret.clone()), secret);
    }

    #[test]
    fn what_has_no_version_is_nobody_elses() {
        let unversioned = || ConfigMap::default();
        assert!(!Arc::ptr_eq(&one(unversioned()), &one(unversioned())));
    }
}
