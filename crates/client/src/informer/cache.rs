//! The indexed objects of one informer, and what each change of them means.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::held::Held;
use super::{Event, key_of};

type IndexFn = Box<dyn Fn(&Held) -> Vec<String> + Send + Sync>;

type Key = Arc<str>;

/// From an index value to the keys found under it.
type Entries = HashMap<String, Keys>;

/// The keys under one value. In the largest indexes, as that of addresses, it is one, which needs no set of its own.
enum Keys {
    One(Key),
    #[expect(clippy::box_collection, reason = "a value that leads to one object stays small")]
    Many(Box<HashSet<Key>>),
}

impl Keys {
    fn iter(&self) -> impl Iterator<Item = &Key> {
        let (one, many) = match self {
            Keys::One(key) => (Some(key), None),
            Keys::Many(keys) => (None, Some(keys)),
        };
        one.into_iter().chain(many.into_iter().flat_map(|keys| keys.iter()))
    }

    fn insert(&mut self, key: &Key) {
        match self {
            Keys::One(known) if **known == **key => {}
            Keys::One(known) => *self = Keys::Many(Box::new(HashSet::from([known.clone(), key.clone()]))),
            Keys::Many(keys) => {
                keys.insert(key.clone());
            }
        }
    }

    /// Returns whether none is left.
    fn remove(&mut self, key: &Key) -> bool {
        match self {
            Keys::One(known) => **known == **key,
            Keys::Many(keys) => {
                keys.remove(key);
                keys.is_empty()
            }
        }
    }
}

struct Index {
    values: IndexFn,
    entries: Entries,
}

#[derive(Default)]
pub(super) struct Cache {
    objects: HashMap<Key, Arc<Held>>,
    namespaces: Entries,
    owners: Entries,
    indexes: HashMap<&'static str, Index>,
}

/// What is shown objects that were looked for.
type See<'a> = &'a mut dyn FnMut(&Arc<Held>);

impl Cache {
    pub(super) fn get(&self, key: &str) -> Option<&Arc<Held>> {
        self.objects.get(key)
    }

    pub(super) fn each(&self, see: See<'_>) {
        self.objects.values().for_each(see);
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn each_in_namespace(&self, namespace: &str, see: See<'_>) {
        self.each_of(self.namespaces.get(namespace), see);
    }

    pub(super) fn each_of_owner(&self, uid: &str, see: See<'_>) {
        self.each_of(self.owners.get(uid), see);
    }

    pub(super) fn each_of_index(&self, name: &str, value: &str, see: See<'_>) {
        self.each_of(self.indexes.get(name).and_then(|index| index.entries.get(value)), see);
    }

    fn each_of(&self, keys: Option<&Keys>, see: See<'_>) {
        let Some(keys) = keys else { return };
        keys.iter().filter_map(|key| self.objects.get(key)).for_each(see);
    }

    pub(super) fn add_index(&mut self, name: &'static str, values: IndexFn) {
        let mut entries = Entries::new();
        for (key, object) in &self.objects {
            insert(&mut entries, values(&**object), key);
        }
        self.indexes.insert(name, Index { values, entries });
    }

    /// Stores `new` unless it is the version already here. An object that was deleted and made anew under
    /// the same name is two events, so that handlers never mistake one for the other.
    pub(super) fn put(&mut self, new: Arc<Held>) -> Vec<Event<Held>> {
        let key: Key = key_of(new.object_meta()).into();
        let events = match self.objects.get(&key).cloned() {
            None => vec![Event::Added(new.clone())],
            Some(old) if old.object_meta().uid != new.object_meta().uid => {
                vec![Event::Deleted(old), Event::Added(new.clone())]
            }
            Some(old)
                if old.object_meta().resource_version == new.object_meta().resource_version
                    && old.object_meta().resource_version.is_some() =>
            {
                return Vec::new();
            }
            Some(old) => vec![Event::Modified { old, new: new.clone() }],
        };
        self.reindex(&key, Some(&*new));
        self.objects.insert(key, new);
        events
    }

    /// Forgets an object; the event carries its final state.
    pub(super) fn remove(&mut self, object: Arc<Held>) -> Option<Event<Held>> {
        let key: Key = key_of(object.object_meta()).into();
        self.reindex(&key, None);
        self.objects.remove(&key).map(|_| Event::Deleted(object))
    }

    pub(super) fn replace(&mut self, objects: Vec<Arc<Held>>) -> Vec<Event<Held>> {
        let kept: HashSet<String> = objects.iter().map(|object| key_of(object.object_meta())).collect();
        let gone: Vec<Key> = self.objects.keys().filter(|key| !kept.contains(&***key)).cloned().collect();
        let mut events = Vec::new();
        for key in gone {
            self.reindex(&key, None);
            events.extend(self.objects.remove(&key).map(Event::Deleted));
        }
        for object in objects {
            events.extend(self.put(object));
        }
        events
    }

    /// Moves `key` from where its present object is found to where `new` will be. Most changes move nothing.
    fn reindex(&mut self, key: &Key, new: Option<&Held>) {
        let old: Option<&Held> = self.objects.get(key).map(|old| &**old);
        let (old_meta, new_meta) = (old.map(|old| old.object_meta()), new.map(|new| new.object_meta()));
        move_key(&mut self.namespaces, key, old_meta.map(namespaces), new_meta.map(namespaces));
        move_key(&mut self.owners, key, old_meta.map(owners), new_meta.map(owners));
        for Index { values, entries } in self.indexes.values_mut() {
            move_key(entries, key, old.map(&*values), new.map(&*values));
        }
    }
}

fn move_key(entries: &mut Entries, key: &Key, old: Option<Vec<String>>, new: Option<Vec<String>>) {
    if old != new {
        withdraw(entries, old.unwrap_or_default(), key);
        insert(entries, new.unwrap_or_default(), key);
    }
}

fn namespaces(meta: &ObjectMeta) -> Vec<String> {
    meta.namespace.iter().cloned().collect()
}

fn owners(meta: &ObjectMeta) -> Vec<String> {
    meta.owner_references.iter().flatten().map(|owner| owner.uid.clone()).collect()
}

fn insert(entries: &mut Entries, values: impl IntoIterator<Item = String>, key: &Key) {
    for value in values {
        match entries.entry(value) {
            Entry::Occupied(mut keys) => keys.get_mut().insert(key),
            Entry::Vacant(place) => {
                place.insert(Keys::One(key.clone()));
            }
        }
    }
}

fn withdraw(entries: &mut Entries, values: impl IntoIterator<Item = String>, key: &Key) {
    for value in values {
        if entries.get_mut(&value).is_some_and(|keys| keys.remove(key)) {
            entries.remove(&value);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn map(name: &str, uid: &str, version: &str) -> Arc<Held> {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        map.metadata.namespace = Some("ns".into());
        map.metadata.uid = Some(uid.into());
        map.metadata.resource_version = Some(version.into());
        Arc::new(map)
    }

    fn name(object: &Arc<Held>) -> String {
        object.object_meta().name.clone().unwrap()
    }

    fn count(visit: impl FnOnce(See<'_>)) -> usize {
        let mut count = 0;
        visit(&mut |_| count += 1);
        count
    }

    fn described(events: &[Event<Held>]) -> Vec<String> {
        let mut described: Vec<_> = events
            .iter()
            .map(|event| {
                let sign = match event {
                    Event::Added(_) => '+',
                    Event::Modified { .. } => '~',
                    Event::Deleted(_) => '-',
                };
                format!("{sign}{}", name(event.object()))
            })
            .collect();
        described.sort();
        described
    }

    #[test]
    fn every_change_becomes_the_right_events() {
        let mut cache = Cache::default();
        for (object, expected) in [
            (map("a", "1", "1"), vec!["+a"]),
            (map("a", "1", "1"), vec![]),
            (map("a", "1", "2"), vec!["~a"]),
            (map("a", "2", "3"), vec!["+a", "-a"]),
        ] {
            assert_eq!(described(&cache.put(object)), expected);
        }
        cache.put(map("b", "3", "4"));
        let events = cache.replace(vec![map("a", "2", "5"), map("c", "4", "6")]);
        assert_eq!(described(&events), ["+c", "-b", "~a"], "a relist reports what vanished meanwhile");
        assert!(cache.remove(map("x", "9", "9")).is_none());
    }

    #[test]
    fn indexes_follow_the_objects() {
        let mut cache = Cache::default();
        cache.put(map("a", "1", "1"));
        let of_version = |cache: &Cache, version: &str| count(|see| cache.each_of_index("version", version, see));
        let in_namespace = |cache: &Cache| count(|see| cache.each_in_namespace("ns", see));
        let versions =
            |object: &Held| -> Vec<String> { object.object_meta().resource_version.iter().cloned().collect() };
        cache.add_index("version", Box::new(versions));
        assert_eq!(of_version(&cache, "1"), 1);
        cache.put(map("a", "1", "2"));
        assert_eq!((of_version(&cache, "1"), of_version(&cache, "2")), (0, 1));
        assert_eq!(in_namespace(&cache), 1);
        cache.remove(map("a", "1", "2"));
        assert_eq!((in_namespace(&cache), of_version(&cache, "2")), (0, 0));
    }

    #[test]
    fn values_lead_to_one_object_or_to_many() {
        let mut cache = Cache::default();
        let names = |cache: &Cache| {
            let mut names = Vec::new();
            cache.each_in_namespace("ns", &mut |object| names.push(name(object)));
            names.sort();
            names
        };
        for (put, expected) in [("a", vec!["a"]), ("a", vec!["a"]), ("b", vec!["a", "b"]), ("c", vec!["a", "b", "c"])] {
            cache.put(map(put, put, "1"));
            assert_eq!(names(&cache), expected);
        }
        for (gone, expected) in [("b", vec!["a", "c"]), ("b", vec!["a", "c"]), ("a", vec!["c"]), ("c", vec![])] {
            cache.remove(map(gone, gone, "1"));
            assert_eq!(names(&cache), expected);
        }
        // What is under a value as the only one is not taken away with another.
        let mut keys = Keys::One("ns/a".into());
        assert!(!keys.remove(&"ns/b".into()) && keys.remove(&"ns/a".into()));
    }
}
