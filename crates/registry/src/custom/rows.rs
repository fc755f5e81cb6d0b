//! Rows of the resource table from a definition: one per served version.

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionVersion,
    CustomResourceSubresourceScale, JSONSchemaProps,
};
use serde_json::Value;

use super::columns::{self, Columns};
use super::object::TypeMeta;
use super::schema::Schema;
use super::strategy::{CustomStrategy, Reader};
use super::{merge, openapi};
use crate::resource::{Conversion, Text};
use crate::scale_paths::ScalePaths;
use crate::strategy::Selectable;
use crate::unset::{items, or_empty};
use crate::{Action, Resource, Scope};

/// Where the objects of a definition live under `/registry/`.
pub fn store_prefix(definition: &CustomResourceDefinition) -> String {
    format!("{}/{}", definition.spec.group, definition.spec.names.plural)
}

/// The rows of a definition whose names were accepted.
pub fn rows(definition: &CustomResourceDefinition, names: &CustomResourceDefinitionNames) -> Vec<Resource> {
    let versions = definition.spec.versions.iter();
    let storage = definition.spec.versions.iter().find(|version| version.storage);
    let Some(storage) = storage else { return Vec::new() };
    versions.filter(|version| version.served).map(|version| row(definition, names, version, &storage.name)).collect()
}

fn row(
    definition: &CustomResourceDefinition,
    names: &CustomResourceDefinitionNames,
    version: &CustomResourceDefinitionVersion,
    storage: &str,
) -> Resource {
    let spec = &definition.spec;
    let kind = &spec.names.kind;
    let api_version = format!("{}/{}", spec.group, version.name);
    let props = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.clone()).unwrap_or_default();
    // Objects outlive no definition, and one that never changed had no other schema.
    let is_as_stored = version.storage && definition.metadata.generation == Some(1);
    let reader = Reader {
        of: Arc::new(TypeMeta { api_version: api_version.clone(), kind: kind.clone() }),
        schema: Schema::root(&props),
        is_as_stored,
    };
    let reader = Arc::new(reader);
    let subresources = version.subresources.as_ref();
    let scale = subresources.and_then(|parts| parts.scale.as_ref()).map(scale_paths);
    let has_status = subresources.is_some_and(|parts| parts.status.is_some());
    let deprecation = (version.deprecated == Some(true)).then(|| {
        let written = version.deprecation_warning.clone();
        written.unwrap_or_else(|| format!("{api_version} {kind} is deprecated"))
    });
    let fields = items(&version.selectable_fields).iter();
    let fields =
        fields.map(|field| (field.json_path.trim_start_matches('.').to_owned(), columns::keys(&field.json_path)));
    let describe = openapi::describe(&spec.group, &version.name, kind, &props);
    let strategy = CustomStrategy {
        merge: merge::root(&format!("{api_version}.{kind}"), &reader.schema),
        metadata: metadata_schema(&props),
        columns: Columns::new(items(&version.additional_printer_columns)),
        selectable: Selectable::Custom(fields.collect()),
        has_status,
        scale: scale.clone(),
        deprecation,
        reader: reader.clone(),
    };
    let actions = [(has_status, Action::Status), (scale.is_some(), Action::Scale)];
    let actions: Vec<Action> =
        actions.into_iter().filter(|(is_there, _)| *is_there).map(|(_, action)| action).collect();
    let texts = |list: &Option<Vec<String>>| items(list).iter().map(|text| Text::from(text.clone())).collect();
    Resource {
        short_names: texts(&names.short_names),
        categories: texts(&names.categories),
        list_kind: Some(Text::from(or_empty(&names.list_kind).to_owned())).filter(|text| !text.is_empty()),
        storage_version: format!("{}/{storage}", spec.group).into(),
        conversion: (!is_as_stored).then(|| Conversion::Custom(Arc::new(move |value: &mut Value| reader.read(value)))),
        scale,
        ..Resource::custom(
            [spec.group.clone(), version.name.clone(), kind.clone()],
            [spec.names.plural.clone(), or_empty(&names.singular).to_owned(), store_prefix(definition)],
            if spec.scope == "Namespaced" { Scope::Namespaced } else { Scope::Cluster },
            Arc::new(strategy),
            describe,
        )
    }
    .with(&actions)
}

fn scale_paths(scale: &CustomResourceSubresourceScale) -> ScalePaths {
    ScalePaths {
        spec: columns::keys(&scale.spec_replicas_path),
        status: columns::keys(&scale.status_replicas_path),
        selector: scale.label_selector_path.as_deref().filter(|path| !path.is_empty()).map(columns::keys),
    }
}

/// What a schema says about names, as a schema of an object that has nothing but metadata.
fn metadata_schema(props: &JSONSchemaProps) -> Option<Schema> {
    let metadata = props.properties.as_ref()?.get("metadata")?.clone();
    metadata.properties.as_ref().filter(|properties| !properties.is_empty())?;
    let outer = JSONSchemaProps {
        properties: Some([("metadata".to_owned(), metadata)].into()),
        type_: Some("object".to_owned()),
        ..Default::default()
    };
    Some(Schema::new(&outer))
}

/// A row in the stored version, served or not.
pub fn any(definition: &CustomResourceDefinition) -> Option<Resource> {
    let storage = definition.spec.versions.iter().find(|version| version.storage)?;
    Some(row(definition, &definition.spec.names, storage, &storage.name))
}
