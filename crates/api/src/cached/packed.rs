//! Objects that are looked at one at a time: kept as text, and given as their type to whoever works on one.

use std::marker::PhantomData;

use super::decode::{shrink, without};
use crate::read::{self, Error, Read, Reader};
use crate::scan;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// An object of kind `K` whose metadata can be read at any time. Everything else is text: the type of a ReplicaSet has
/// room for all that a pod may have, and takes many times as much.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed<K> {
    pub metadata: ObjectMeta,
    /// Without metadata, kind and version. It was decoded once, so that it can be again.
    rest: Box<[u8]>,
    kind: PhantomData<fn() -> K>,
}

impl<K: k8s_openapi::Resource> k8s_openapi::Resource for Packed<K> {
    const API_VERSION: &'static str = K::API_VERSION;
    const GROUP: &'static str = K::GROUP;
    const KIND: &'static str = K::KIND;
    const VERSION: &'static str = K::VERSION;
    const URL_PATH_SEGMENT: &'static str = K::URL_PATH_SEGMENT;
    type Scope = K::Scope;
}

impl<K: k8s_openapi::Resource> Metadata for Packed<K> {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<K: Metadata<Ty = ObjectMeta> + Read> Read for Packed<K> {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let text = from.raw()?;
        let mut object: K = read::from_str(text)?;
        let mut metadata = std::mem::take(object.metadata_mut());
        shrink(&mut metadata.owner_references);
        shrink(&mut metadata.finalizers);
        let (rest, _) = without(text.as_bytes(), ["apiVersion", "kind", "metadata"]);
        Ok(Packed { metadata, rest: rest.into_boxed_slice(), kind: PhantomData })
    }
}

impl<K: Metadata<Ty = ObjectMeta> + Read> Packed<K> {
    /// The object as the API has it.
    pub fn unpack(&self) -> K {
        let mut object: K = read::from_slice(&self.rest).expect("it was decoded from this text before");
        object.metadata_mut().clone_from(&self.metadata);
        object
    }
}

impl<K> Packed<K> {
    /// The value at a path of fields, for those who need no more than that. `T` is the type that the field has in `K`.
    pub fn part<T: Read>(&self, path: &[&str]) -> Option<T> {
        let place = scan::find(&self.rest, path)?;
        read::from_slice::<Option<T>>(&self.rest[place]).ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::Endpoints;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
    use serde_json::{Value, json};

    use super::*;

    fn metadata() -> Value {
        let owner = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d" });
        json!({ "name": "web", "namespace": "n", "uid": "u", "resourceVersion": "7", "ownerReferences": [owner] })
    }

    fn read<K>(object: &Value) -> Packed<K>
    where
        K: Metadata<Ty = ObjectMeta> + Read + PartialEq + std::fmt::Debug,
    {
        let complete: K = crate::codec::from_value(object).unwrap();
        let packed: Packed<K> = crate::codec::from_value(object).unwrap();
        assert_eq!(packed.unpack(), complete, "{object}");
        assert_eq!(&packed.metadata, complete.metadata(), "{object}");
        for text in [object.to_string(), serde_json::to_string_pretty(object).unwrap()] {
            let packed: Packed<K> = read::from_str(&text).unwrap();
            assert_eq!(packed.unpack(), complete, "{text}");
        }
        packed
    }

    #[test]
    fn nothing_is_lost() {
        let selector = json!({ "matchLabels": { "app": "web" } });
        let containers = json!([{ "name": "c", "image": "i \"}\\", "ports": [{ "containerPort": 80 }] }]);
        let set = json!({
            "kind": "ReplicaSet", "apiVersion": "apps/v1", "metadata": metadata(),
            "spec": { "replicas": 3, "selector": selector, "template": { "metadata": metadata(), "spec": { "containers": containers } } },
            "status": { "replicas": 2 },
        });
        let packed = read::<ReplicaSet>(&set);
        assert_eq!(packed.part(&["spec", "replicas"]), Some(3));
        let selector: Option<LabelSelector> = packed.part(&["spec", "selector"]);
        assert_eq!(selector, packed.unpack().spec.map(|spec| spec.selector));
        assert_eq!((packed.part::<i32>(&["spec", "no"]), packed.part::<i32>(&["metadata"])), (None, None));
        // As lists have them.
        let mut item = set;
        item.as_object_mut().unwrap().retain(|field, _| field != "kind" && field != "apiVersion");
        assert_eq!(read::<ReplicaSet>(&item), packed);
        for bare in [json!({}), json!({ "metadata": null, "spec": null }), json!({ "metadata": metadata() })] {
            assert_eq!(read::<ReplicaSet>(&bare).part::<i32>(&["spec", "replicas"]), None);
        }
        let addresses = json!([{ "ip": "10.0.0.1", "nodeName": "n1" }]);
        read::<Endpoints>(
            &json!({ "metadata": metadata(), "subsets": [{ "addresses": addresses, "ports": [{ "port": 80 }] }] }),
        );
    }

    #[test]
    fn what_its_type_would_refuse_is_refused() {
        for text in [
            "[]",
            "7",
            "{",
            "{\"spec\":7}",
            "{\"kind\":\"Pod\"}",
            "{\"metadata\":[7]}",
            "{\"spec\":{\"replicas\":\"3\"}}",
        ] {
            assert!(read::from_str::<Packed<ReplicaSet>>(text).is_err(), "{text}");
        }
    }
}
