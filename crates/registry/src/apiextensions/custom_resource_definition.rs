//! CustomResourceDefinition: the description of a kind. What is checked here is the description itself.
//!
//! Where all versions say the same, upstream holds it once and its errors name that place (`spec.validation` instead of
//! `spec.versions[0].schema`); so do ours.

use api::field::{FieldErrors, Path};
use api::sort::CompactSort as _;
use api::validation;
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceConversion, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresources, JSONSchemaProps,
    WebhookConversion,
};

use super::conditions::has_condition;
use super::schema;
use crate::admissionregistration::webhook::{self, choice};
use crate::unset::{items, or_empty, set_text, text};
use crate::{Call, Deletion, Strategy};

pub struct CustomResourceDefinitionStrategy;

const APPROVED: &str = "api-approved.kubernetes.io";
const COLUMN_TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: &[&str] = &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const REVIEW_VERSIONS: &[&str] = &["v1", "v1beta1"];

impl Strategy for CustomResourceDefinitionStrategy {
    type Object = CustomResourceDefinition;
    const COUNTS_GENERATIONS: bool = true;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn apply_defaults(&self, definition: &mut CustomResourceDefinition) {
        let names = &mut definition.spec.names;
        set_text(&mut names.singular, &names.kind.to_lowercase());
        if !names.kind.is_empty() {
            set_text(&mut names.list_kind, &format!("{}List", names.kind));
        }
        let conversion = definition
            .spec
            .conversion
            .get_or_insert_with(|| CustomResourceConversion { strategy: "None".to_owned(), webhook: None });
        let client = conversion.webhook.as_mut().and_then(|webhook| webhook.client_config.as_mut());
        if let Some(service) = client.and_then(|client| client.service.as_mut()) {
            service.port.get_or_insert(443);
        }
    }

    /// Its objects go first.
    fn before_delete(&self, definition: &mut CustomResourceDefinition, now: Timestamp) -> Option<Deletion> {
        super::conditions::mark(definition, now);
        None
    }

    fn prepare_for_create(&self, _: &Call<'_>, definition: &mut CustomResourceDefinition) {
        note_storage(definition);
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut CustomResourceDefinition, _: &CustomResourceDefinition) {
        note_storage(new);
    }

    fn validate_create(&self, definition: &CustomResourceDefinition) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let name = or_empty(&definition.metadata.name);
        let spec = &definition.spec;
        if name != format!("{}.{}", spec.names.plural, spec.group) {
            errors.invalid("metadata.name", name, r#"must be spec.names.plural+"."+spec.group"#);
        }
        check_spec(&mut errors, spec, None);
        check_status(&mut errors, definition);
        check_approval(&mut errors, definition, None);
        if spec.preserve_unknown_fields == Some(true) {
            errors.invalid("spec.preserveUnknownFields", true, PRESERVE);
        }
        errors
    }

    fn validate_update(&self, new: &CustomResourceDefinition, old: &CustomResourceDefinition) -> FieldErrors {
        let mut errors = FieldErrors::default();
        check_spec(&mut errors, &new.spec, Some(&old.spec));
        if has_condition(old, "Established") {
            errors.immutable("spec.scope", &new.spec.scope, &old.spec.scope);
            errors.immutable("spec.names.kind", &new.spec.names.kind, &old.spec.names.kind);
        }
        errors.immutable("spec.group", &new.spec.group, &old.spec.group);
        errors.immutable("spec.names.plural", &new.spec.names.plural, &old.spec.names.plural);
        check_status(&mut errors, new);
        check_approval(&mut errors, new, Some(old));
        if new.spec.preserve_unknown_fields == Some(true) && old.spec.preserve_unknown_fields != Some(true) {
            errors.invalid("spec.preserveUnknownFields", true, PRESERVE);
        }
        errors
    }

    fn validate_status_update(&self, new: &CustomResourceDefinition, _: &CustomResourceDefinition) -> FieldErrors {
        let mut errors = FieldErrors::default();
        check_accepted_names(&mut errors, new);
        errors
    }

    fn warnings(&self, new: &CustomResourceDefinition, old: Option<&CustomResourceDefinition>) -> Vec<String> {
        let formats = |definition: &CustomResourceDefinition| -> Vec<String> {
            let schemas = definition.spec.versions.iter().filter_map(|version| version.schema.as_ref());
            schemas.filter_map(|schema| schema.open_api_v3_schema.as_ref()).flat_map(schema::unknown_formats).collect()
        };
        let known = old.map(formats).unwrap_or_default();
        let mut new = formats(new);
        new.retain(|format| !known.contains(format));
        new.iter().map(|format| format!("unrecognized format {}", api::field::quote(format))).collect()
    }
}

const PRESERVE: &str =
    "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";

/// Adds the storage version to those in which objects may be stored.
fn note_storage(definition: &mut CustomResourceDefinition) {
    let Some(version) = definition.spec.versions.iter().find(|version| version.storage) else { return };
    let stored = definition.status.get_or_insert_default().stored_versions.get_or_insert_default();
    if !stored.contains(&version.name) {
        stored.push(version.name.clone());
    }
}

fn check_spec(
    errors: &mut FieldErrors,
    spec: &CustomResourceDefinitionSpec,
    old: Option<&CustomResourceDefinitionSpec>,
) {
    let path = Path::new("spec");
    if spec.group.is_empty() {
        errors.required(path.child("group"), "");
    } else {
        let problems = validation::dns1123_subdomain(&spec.group);
        if !problems.is_empty() {
            errors.invalid(path.child("group"), &spec.group, problems.join(","));
        } else if !spec.group.contains('.') {
            errors.invalid(path.child("group"), &spec.group, "should be a domain with at least one dot");
        }
    }
    choice(errors, &path.child("scope"), &spec.scope, &["Cluster", "Namespaced"]);
    let old = old.map(|old| old.versions.as_slice()).unwrap_or_default();
    check_versions(errors, &path, &spec.versions, old);
    let names = &spec.names;
    let at = path.child("names");
    for (field, value) in [
        ("plural", names.plural.as_str()),
        ("singular", or_empty(&names.singular)),
        ("kind", &names.kind),
        ("listKind", or_empty(&names.list_kind)),
    ] {
        if value.is_empty() {
            errors.required(at.child(field), "");
        }
    }
    check_names(errors, &at, names);
    if let Some(conversion) = &spec.conversion {
        check_conversion(errors, &path.child("conversion"), conversion);
    }
}

/// Whether every version has the same of something, so that it is spoken of once.
fn shared<'a, T: PartialEq + 'a>(
    versions: &'a [CustomResourceDefinitionVersion],
    of: impl Fn(&'a CustomResourceDefinitionVersion) -> Option<&'a T>,
) -> bool {
    let mut all = versions.iter().map(of);
    all.next().is_some_and(|first| first.is_some() && all.all(|other| other == first))
}

fn schema_of(version: &CustomResourceDefinitionVersion) -> Option<&JSONSchemaProps> {
    version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref())
}

fn check_versions(
    errors: &mut FieldErrors,
    spec: &Path<'_>,
    versions: &[CustomResourceDefinitionVersion],
    old: &[CustomResourceDefinitionVersion],
) {
    let list = spec.child("versions");
    let same_schema = shared(versions, |version| version.schema.as_ref());
    let same_subresources = shared(versions, |version| version.subresources.as_ref());
    let same_columns = shared(versions, |version| version.additional_printer_columns.as_ref());
    for (index, version) in versions.iter().enumerate() {
        let path = list.index(index);
        let schema = schema_of(version);
        if schema.is_none() {
            errors.required(path.child("schema.openAPIV3Schema"), "");
        }
        let problems = validation::dns1035_label(&version.name);
        if !problems.is_empty() {
            errors.invalid(path.child("name"), &version.name, problems.join(","));
        }
        check_warning(errors, &path.child("deprecationWarning"), version);
        if let Some(schema) = schema.filter(|_| !same_schema || index == 0) {
            let at = if same_schema { spec.child("validation") } else { path.child("schema") };
            let has_status = version.subresources.as_ref().is_some_and(|parts| parts.status.is_some());
            let old = old.iter().find(|old| old.name == version.name).and_then(schema_of);
            schema::check(errors, &at.child("openAPIV3Schema"), schema, old, has_status);
        }
        if let Some(subresources) = version.subresources.as_ref().filter(|_| !same_subresources || index == 0) {
            let at = if same_subresources { spec.child("subresources") } else { path.child("subresources") };
            check_subresources(errors, &at, subresources);
        }
        for (number, column) in items(&version.additional_printer_columns).iter().enumerate() {
            let at = if same_columns { spec } else { &path };
            if !same_columns || index == 0 {
                check_column(errors, &at.child("additionalPrinterColumns").index(number), column);
            }
        }
        if let Some(schema) = schema {
            let at = path.child("selectableFields");
            let fields = items(&version.selectable_fields);
            schema::check_selectable(errors, &at, schema, fields.iter().map(|field| field.json_path.as_str()));
        }
    }
    let mut names: Vec<&str> = versions.iter().map(|version| version.name.as_str()).collect();
    names.compact_sort();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        errors.invalid(list, versions, "must contain unique version names");
    }
    if versions.iter().filter(|version| version.storage).count() != 1 {
        errors.invalid(list, versions, "must have exactly one version marked as storage version");
    }
}

fn check_warning(errors: &mut FieldErrors, path: &Path<'_>, version: &CustomResourceDefinitionVersion) {
    let Some(warning) = &version.deprecation_warning else { return };
    if version.deprecated != Some(true) {
        return errors.invalid(path, warning, "can only be set for deprecated versions");
    }
    if warning.len() > 256 {
        errors.invalid(path, warning, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        errors.invalid(path, warning, "must not be an empty string");
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, letter)| letter.is_control()) {
        let rule = "must only contain printable UTF-8 characters; non-printable character found at index";
        errors.invalid(path, warning, format!("{rule} {at}"));
    }
}

fn check_names(errors: &mut FieldErrors, path: &Path<'_>, names: &CustomResourceDefinitionNames) {
    let lower = [("plural", names.plural.as_str()), ("singular", or_empty(&names.singular))];
    for (field, value) in lower.into_iter().filter(|(_, value)| !value.is_empty()) {
        let problems = validation::dns1035_label(value);
        if !problems.is_empty() {
            errors.invalid(path.child(field), value, problems.join(","));
        }
    }
    let mixed = [("kind", names.kind.as_str()), ("listKind", or_empty(&names.list_kind))];
    for (field, value) in mixed.into_iter().filter(|(_, value)| !value.is_empty()) {
        let problems = validation::dns1035_label(&value.to_lowercase());
        if !problems.is_empty() {
            let rule = format!("may have mixed case, but should otherwise match: {}", problems.join(","));
            errors.invalid(path.child(field), value, rule);
        }
    }
    let each = |errors: &mut FieldErrors, field: &str, values: &[String]| {
        for (index, value) in values.iter().enumerate() {
            let problems = validation::dns1035_label(value);
            if !problems.is_empty() {
                errors.invalid(path.child(field).index(index), value, problems.join(","));
            }
        }
    };
    each(errors, "shortNames", items(&names.short_names));
    if text(&names.list_kind).is_some_and(|list| list == names.kind) {
        errors.invalid(path.child("listKind"), &names.list_kind, "kind and listKind may not be the same");
    }
    each(errors, "categories", items(&names.categories));
}

fn check_column(errors: &mut FieldErrors, path: &Path<'_>, column: &CustomResourceColumnDefinition) {
    if column.name.is_empty() {
        errors.required(path.child("name"), "");
    }
    let one_of = |list: &[&str]| format!("must be one of {}", list.join(","));
    if column.type_.is_empty() {
        errors.required(path.child("type"), one_of(COLUMN_TYPES));
    } else if !COLUMN_TYPES.contains(&column.type_.as_str()) {
        errors.invalid(path.child("type"), &column.type_, one_of(COLUMN_TYPES));
    }
    if let Some(format) = text(&column.format).filter(|format| !COLUMN_FORMATS.contains(format)) {
        errors.invalid(path.child("format"), format, one_of(COLUMN_FORMATS));
    }
    if column.json_path.is_empty() {
        errors.required(path.child("JSONPath"), "");
    } else {
        check_json_path(errors, &path.child("JSONPath"), &column.json_path, &[]);
    }
}

/// A path like `.spec.replicas`, below one of `roots` if there are any.
fn check_json_path(errors: &mut FieldErrors, path: &Path<'_>, value: &str, roots: &[&str]) {
    if !value.starts_with('.') {
        errors.invalid(path, value, "must be a simple json path starting with .");
    } else if !roots.is_empty() && !roots.iter().any(|root| value.starts_with(&format!("{root}."))) {
        let rule = match roots {
            [root] => format!("should be a json path under {root}"),
            _ => format!("should be a json path under either {}", roots.join(" or ")),
        };
        errors.invalid(path, value, rule);
    }
}

fn check_subresources(errors: &mut FieldErrors, path: &Path<'_>, subresources: &CustomResourceSubresources) {
    let Some(scale) = &subresources.scale else { return };
    for (field, value, root) in [
        ("scale.specReplicasPath", &scale.spec_replicas_path, ".spec"),
        ("scale.statusReplicasPath", &scale.status_replicas_path, ".status"),
    ] {
        if value.is_empty() {
            errors.required(path.child(field), "");
        } else {
            check_json_path(errors, &path.child(field), value, &[root]);
        }
    }
    if let Some(selector) = text(&scale.label_selector_path) {
        check_json_path(errors, &path.child("scale.labelSelectorPath"), selector, &[".spec", ".status"]);
    }
}

fn check_conversion(errors: &mut FieldErrors, path: &Path<'_>, conversion: &CustomResourceConversion) {
    choice(errors, &path.child("strategy"), &conversion.strategy, &["None", "Webhook"]);
    let client = conversion.webhook.as_ref().and_then(|webhook| webhook.client_config.as_ref());
    let at = path.child("webhookClientConfig");
    if conversion.strategy != "Webhook" {
        if client.is_some() {
            errors.forbidden(at, "should not be set when strategy is not set to Webhook");
        }
        if conversion.webhook.as_ref().is_some_and(|webhook| !webhook.conversion_review_versions.is_empty()) {
            let at = path.child("conversionReviewVersions");
            errors.forbidden(at, "should not be set when strategy is not set to Webhook");
        }
        return;
    }
    match client.map(|client| (&client.url, &client.service)) {
        None => errors.required(at, "required when strategy is set to Webhook"),
        Some((Some(url), None)) => webhook::check_url(errors, &at.child("url"), url),
        Some((None, Some(service))) => {
            let (name, namespace) = (&service.name, &service.namespace);
            webhook::check_service(
                errors,
                &at.child("service"),
                name,
                namespace,
                service.path.as_deref(),
                service.port,
            );
        }
        Some(_) => errors.required(at, "exactly one of url or service is required"),
    }
    check_review_versions(errors, &path.child("conversionReviewVersions"), conversion.webhook.as_ref());
}

fn check_review_versions(errors: &mut FieldErrors, path: &Path<'_>, webhook: Option<&WebhookConversion>) {
    let versions = webhook.map(|webhook| webhook.conversion_review_versions.as_slice()).unwrap_or_default();
    if versions.is_empty() {
        return errors.required(path, "");
    }
    for (index, version) in versions.iter().enumerate() {
        if versions[..index].contains(version) {
            errors.invalid(path.index(index), version, "duplicate version");
            continue;
        }
        errors.invalid_each(path.index(index), version, validation::dns1035_label(version));
    }
    if !versions.iter().any(|version| REVIEW_VERSIONS.contains(&version.as_str())) {
        errors.invalid(path, versions, format!("must include at least one of {}", REVIEW_VERSIONS.join(", ")));
    }
}

fn check_accepted_names(errors: &mut FieldErrors, definition: &CustomResourceDefinition) {
    let status = definition.status.as_ref();
    if let Some(names) = status.and_then(|status| status.accepted_names.as_ref()) {
        check_names(errors, &Path::new("status.acceptedNames"), names);
    }
}

fn check_status(errors: &mut FieldErrors, definition: &CustomResourceDefinition) {
    check_accepted_names(errors, definition);
    let stored = definition.status.as_ref().map(|status| items(&status.stored_versions)).unwrap_or_default();
    let path = Path::new("status.storedVersions");
    if stored.is_empty() {
        return errors.invalid(path, stored, "must have at least one stored version");
    }
    for version in definition.spec.versions.iter().filter(|version| version.storage) {
        if !stored.contains(&version.name) {
            errors.invalid(path, stored, format!("must have the storage version {}", version.name));
        }
    }
    for (index, name) in stored.iter().enumerate() {
        if !definition.spec.versions.iter().any(|version| version.name == *name) {
            let rule = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until \
                 a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.invalid(path.index(index), name, rule);
        }
    }
}

#[derive(PartialEq)]
enum Approval {
    Missing,
    Invalid,
    Approved,
    Bypassed,
}

fn approval(annotation: &str) -> Approval {
    let is_url = annotation.parse::<http::Uri>().is_ok_and(|url| url.host().is_some() && url.scheme().is_some());
    match annotation {
        "" => Approval::Missing,
        text if text.starts_with("unapproved") => Approval::Bypassed,
        _ if is_url => Approval::Approved,
        _ => Approval::Invalid,
    }
}

/// Groups of the project itself are for kinds that it has agreed to.
fn check_approval(errors: &mut FieldErrors, new: &CustomResourceDefinition, old: Option<&CustomResourceDefinition>) {
    let is_protected = |domain: &str| {
        let group = new.spec.group.strip_suffix(domain);
        group.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    if !is_protected("k8s.io") && !is_protected("kubernetes.io") {
        return;
    }
    let of = |definition: &CustomResourceDefinition| {
        let annotations = definition.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(APPROVED)).cloned().unwrap_or_default()
    };
    let annotation = of(new);
    let state = approval(&annotation);
    if old.is_some_and(|old| approval(&of(old)) == state) {
        return;
    }
    let (path, see) = (Path::new("metadata.annotations"), "see https://github.com/kubernetes/enhancements/pull/1111");
    let rule = format!("protected groups must have approval annotation {APPROVED:?}");
    match state {
        Approval::Missing => errors.required(path.key(APPROVED), format!("{rule}, {see}")),
        Approval::Invalid => {
            let rule = format!("{rule} with either a URL or a reason starting with \"unapproved\", {see}");
            errors.invalid(path.key(APPROVED), &annotation, rule);
        }
        Approval::Approved | Approval::Bypassed => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn definition(change: impl FnOnce(&mut Value)) -> CustomResourceDefinition {
        let mut value = json!({"metadata": {"name": "crons.example.com"}, "spec": {"group": "example.com",
            "scope": "Namespaced", "names": {"plural": "crons", "kind": "Cron"}, "versions": [
                {"name": "v1", "served": true, "storage": true,
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}}]}});
        change(&mut value);
        let mut definition = serde_json::from_value(value).unwrap();
        let strategy = CustomResourceDefinitionStrategy;
        strategy.apply_defaults(&mut definition);
        note_storage(&mut definition);
        definition
    }

    #[test]
    fn defaults_and_stored_versions() {
        let definition = definition(|_| {});
        let names = &definition.spec.names;
        assert_eq!((names.singular.as_deref(), names.list_kind.as_deref()), (Some("cron"), Some("CronList")));
        assert_eq!(definition.spec.conversion.as_ref().unwrap().strategy, "None");
        assert_eq!(definition.status.as_ref().unwrap().stored_versions, Some(vec!["v1".to_owned()]));
        assert!(CustomResourceDefinitionStrategy.validate_create(&definition).is_empty());
    }

    #[test]
    fn formats_that_nobody_knows_are_warned_of_once() {
        let with = |format: &str| {
            definition(|object| {
                let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
                *object.pointer_mut(spec).unwrap() = json!({"type": "string", "format": format});
            })
        };
        let (known, unknown) = (with("date-time"), with("dat-time"));
        let warnings = |old| CustomResourceDefinitionStrategy.warnings(&unknown, old);
        assert_eq!(warnings(None), ["unrecognized format \"dat-time\""]);
        assert_eq!(warnings(Some(&known)).len(), 1);
        assert_eq!(warnings(Some(&unknown)), Vec::<String>::new());
        assert!(CustomResourceDefinitionStrategy.warnings(&known, None).is_empty());
    }

    #[test]
    fn mistakes_are_named() {
        let at = |pointer: &'static str, value: Value| {
            move |object: &mut Value| {
                let (parent, field) = pointer.rsplit_once('/').unwrap();
                object.pointer_mut(parent).unwrap()[field] = value;
            }
        };
        type Change = Box<dyn FnOnce(&mut Value)>;
        let rows: Vec<(Change, &str)> = vec![
            (
                Box::new(at("/metadata/name", json!("other"))),
                r#"metadata.name: Invalid value: "other": must be spec.names.plural+"."+spec.group"#,
            ),
            (
                Box::new(at("/spec/group", json!("example"))),
                r#"spec.group: Invalid value: "example": should be a domain with at least one dot"#,
            ),
            (Box::new(at("/spec/scope", json!(""))), "spec.scope: Required value"),
            (
                Box::new(at("/spec/scope", json!("World"))),
                r#"spec.scope: Unsupported value: "World": supported values: "Cluster", "Namespaced""#,
            ),
            (
                Box::new(at("/spec/names/kind", json!("Cron!"))),
                "spec.names.kind: Invalid value: \"Cron!\": may have mixed case",
            ),
            (Box::new(at("/spec/names/listKind", json!("Cron"))), "kind and listKind may not be the same"),
            (Box::new(at("/spec/names/shortNames", json!(["Bad"]))), "spec.names.shortNames[0]: Invalid value"),
            (
                Box::new(at("/spec/versions/0/storage", json!(false))),
                "must have exactly one version marked as storage version",
            ),
            (
                Box::new(at("/spec/versions/0/schema", Value::Null)),
                "spec.versions[0].schema.openAPIV3Schema: Required value",
            ),
            (
                Box::new(at("/spec/versions/0/deprecationWarning", json!("gone"))),
                "spec.versions[0].deprecationWarning: Invalid value: \"gone\": can only be set for deprecated versions",
            ),
            (
                Box::new(at(
                    "/spec/versions/0/additionalPrinterColumns",
                    json!([{"name": "a", "type": "x", "jsonPath": "a"}]),
                )),
                r#"spec.additionalPrinterColumns[0].type: Invalid value: "x": must be one of boolean,date,integer,number,string"#,
            ),
            (
                Box::new(at(
                    "/spec/versions/0/subresources",
                    json!({"scale": {"specReplicasPath": ".x", "statusReplicasPath": ""}}),
                )),
                r#"spec.subresources.scale.specReplicasPath: Invalid value: ".x": should be a json path under .spec"#,
            ),
            (
                Box::new(at("/spec/conversion", json!({"strategy": "Webhook"}))),
                "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            ),
            (
                Box::new(at("/spec/preserveUnknownFields", json!(true))),
                "spec.preserveUnknownFields: Invalid value: true: cannot set to true",
            ),
            (
                Box::new(at("/spec/group", json!("x.k8s.io"))),
                "metadata.annotations[api-approved.kubernetes.io]: Required value",
            ),
            (
                Box::new(at("/status", json!({"storedVersions": ["v0"]}))),
                "status.storedVersions[0]: Invalid value: \"v0\": missing from spec.versions",
            ),
        ];
        for (change, expected) in rows {
            let errors = CustomResourceDefinitionStrategy.validate_create(&definition(change));
            assert!(errors.iter().any(|error| error.to_string().contains(expected)), "{expected}: {errors}");
        }
    }

    #[test]
    fn what_stored_objects_depend_on_stays() {
        let old = definition(|value| {
            value["status"] =
                json!({"storedVersions": ["v1"], "conditions": [{"type": "Established", "status": "True"}]});
        });
        let mut new = old.clone();
        new.spec.scope = "Cluster".to_owned();
        new.spec.names.plural = "others".to_owned();
        let errors = CustomResourceDefinitionStrategy.validate_update(&new, &old).to_string();
        assert!(errors.contains("spec.scope") && errors.contains("spec.names.plural"), "{errors}");
    }
}
