//! Reads the types that the build wrote down (`build/main.rs`), and keeps those that were asked for.

use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use super::{Field, Struct, StructRef, Type, table, zero};

mod types {
    include!(concat!(env!("OUT_DIR"), "/types.rs"));
}

/// The definitions met so far, by their places.
static KNOWN: Mutex<Vec<Option<StructRef>>> = Mutex::new(Vec::new());

/// Those of them that were asked for. Every write asks several times for that of its kind, and takes no lock for it.
static ASKED: LazyLock<Box<[OnceLock<StructRef>]>> =
    LazyLock::new(|| types::DEFINITIONS.iter().map(|_| OnceLock::new()).collect());

/// The schema of a kind; of one that is not built in, that of a structure about which nothing is known.
pub fn of<K: k8s_openapi::Resource>() -> StructRef {
    let place = place(K::API_VERSION, K::KIND);
    debug_assert!(place.is_some(), "{} {} has no schema", K::API_VERSION, K::KIND);
    place.map_or_else(|| StructRef::from(Struct::new(K::KIND, Vec::new()).open(true)), structure)
}

/// The name of a kind's definition.
pub fn name(api_version: &str, kind: &str) -> Option<&'static str> {
    place(api_version, kind).map(|place| types::DEFINITIONS[place].0)
}

fn place(api_version: &str, kind: &str) -> Option<usize> {
    let found = types::KINDS.binary_search_by(|(known, name, _)| (*known, *name).cmp(&(api_version, kind)));
    found.ok().map(|at| types::KINDS[at].2)
}

fn structure(place: usize) -> StructRef {
    let asked = ASKED[place].get_or_init(|| {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.resize(types::DEFINITIONS.len(), None);
        definition(&mut known, place)
    });
    asked.clone()
}

fn definition(known: &mut [Option<StructRef>], place: usize) -> StructRef {
    if let Some(definition) = &known[place] {
        return definition.clone();
    }
    let definition = StructRef(Arc::new(OnceLock::new()));
    known[place] = Some(definition.clone());
    let (name, fields) = types::DEFINITIONS[place];
    let marks = zero::Marks::of(name);
    let fields = fields.split_ascii_whitespace().filter_map(|field| field.split_once(':')).map(|(field, text)| {
        let (field, required) = field.strip_suffix('!').map_or((field, false), |field| (field, true));
        let ty = of_text(known, text);
        Field {
            name: field.into(),
            merge: table::merge(name, field),
            key_default: table::key_default(name, field),
            granular: table::is_granular(name, field),
            zero: marks.zero(field, &ty, required),
            required,
            ty,
        }
    });
    let fields = fields.collect();
    // Set exactly once: the place was empty a moment ago, and whoever called has the lock.
    let _ = definition.0.set(Struct::new(name, fields));
    definition
}

fn of_text(known: &mut [Option<StructRef>], text: &str) -> Type {
    if let Some(item) = text.strip_prefix("[]") {
        return Type::List(Box::new(of_text(known, item)));
    }
    if let Some(item) = text.strip_prefix("{}") {
        return Type::Map(Box::new(of_text(known, item)));
    }
    match text {
        "bool" => Type::Bool,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "number" => Type::Number,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "time" => Type::Time,
        "intOrString" => Type::IntOrString,
        "quantity" => Type::Quantity,
        place => place.parse().map_or(Type::Any, |place| Type::Struct(definition(known, place))),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::{Pod, Service};
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

    use super::*;
    use crate::schema::ListType;

    #[test]
    fn kinds_have_types_and_merge_rules() {
        let pod = of::<Pod>();
        assert!(pod.field("apiVersion").is_some() && pod.field("kind").is_some());
        let spec = pod.field("spec").unwrap().ty.as_struct().unwrap();
        let containers = spec.field("containers").unwrap();
        assert_eq!(containers.merge.unwrap().list, ListType::Map(&["name"]));
        let Type::List(container) = &containers.ty else { panic!("not a list") };
        let ports = container.as_struct().unwrap().field("ports").unwrap();
        assert_eq!(ports.merge.unwrap().patch_key, Some("containerPort"));
        assert!(matches!(spec.field("nodeSelector").unwrap().ty, Type::Map(_)));
        let service = of::<Service>();
        let spec = service.field("spec").unwrap().ty.as_struct().unwrap();
        assert!(spec.field("selector").unwrap().merge.unwrap().atomic);
    }

    #[test]
    fn shared_definitions_exist_once() {
        let template = |kind: &StructRef| {
            let spec = kind.field("spec").unwrap().ty.as_struct().unwrap();
            let template = spec.field("template").unwrap().ty.as_struct().unwrap();
            std::ptr::from_ref(template)
        };
        let replica_set = of::<k8s_openapi::api::apps::v1::ReplicaSet>();
        assert_eq!(template(&of::<Deployment>()), template(&replica_set));
        assert_eq!(&*of::<Deployment>().name, "io.k8s.api.apps.v1.Deployment");
    }

    #[test]
    fn every_definition_can_be_read() {
        for ((api_version, kind, place), (name, _)) in
            types::KINDS.iter().map(|kind| (kind, types::DEFINITIONS[kind.2]))
        {
            assert_eq!(super::name(api_version, kind), Some(name));
            assert!(!structure(*place).fields().is_empty(), "{name}");
        }
        let known = KNOWN.lock().unwrap().iter().flatten().count();
        assert!(known > 500, "{known}");
        assert_eq!(super::name("v1", "Gadget"), None);
    }

    #[test]
    fn recursive_schemas_are_linked() {
        let definition = of::<CustomResourceDefinition>();
        assert_eq!(definition.short_name(), "CustomResourceDefinition");
        let known = KNOWN.lock().unwrap();
        let props = known.iter().flatten().find(|d| d.short_name() == "JSONSchemaProps").unwrap();
        let Type::Map(inner) = &props.field("properties").unwrap().ty else { panic!("not a map") };
        assert!(std::ptr::eq(inner.as_struct().unwrap(), &**props));
    }
}
