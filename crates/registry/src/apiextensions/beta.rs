//! Definitions in `apiextensions.k8s.io/v1beta1`, which is not served any more and in which upstream still stores them.

use serde_json::{Map, Value, json};

/// Makes it a definition in v1: what stood once for all versions stands in each of them.
pub fn to_v1(definition: &mut Value) {
    definition["apiVersion"] = json!("apiextensions.k8s.io/v1");
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let (version, schema) = (spec.remove("version"), spec.remove("validation"));
    let (subresources, columns) = (spec.remove("subresources"), spec.remove("additionalPrinterColumns"));
    let fields = spec.remove("selectableFields");
    let versions = spec.entry("versions").or_insert_with(|| json!([]));
    if versions.as_array().is_none_or(Vec::is_empty) {
        *versions = json!([{"name": version, "served": true, "storage": true}]);
    }
    for version in versions.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        let of_all = [
            ("schema", &schema),
            ("subresources", &subresources),
            ("additionalPrinterColumns", &columns),
            ("selectableFields", &fields),
        ];
        for (name, value) in of_all {
            if let Some(value) = value.as_ref().filter(|value| !value.is_null() && version.get(name).is_none()) {
                version.insert(name.to_owned(), value.clone());
            }
        }
        let columns = version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
        for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
            rename(column, "JSONPath", "jsonPath");
        }
    }
    if let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) {
        let (client, reviews) =
            (conversion.remove("webhookClientConfig"), conversion.remove("conversionReviewVersions"));
        if let Some(client) = client {
            conversion
                .insert("webhook".to_owned(), json!({"clientConfig": client, "conversionReviewVersions": reviews}));
        }
    }
    // It was true where nothing was said.
    match spec.get("preserveUnknownFields").and_then(Value::as_bool) {
        Some(false) => drop(spec.remove("preserveUnknownFields")),
        _ => drop(spec.insert("preserveUnknownFields".to_owned(), json!(true))),
    }
}

fn rename(object: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = object.remove(from) {
        object.insert(to.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_once_stands_in_every_version() {
        let mut old = json!({"apiVersion": "apiextensions.k8s.io/v1beta1", "spec": {
            "version": "v1", "validation": {"openAPIV3Schema": {"type": "object"}}, "subresources": {"status": {}},
            "additionalPrinterColumns": [{"name": "Oars", "type": "integer", "JSONPath": ".spec.oars"}],
            "versions": [{"name": "v1", "served": true, "storage": true},
                {"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "string"}}}],
            "conversion": {"strategy": "Webhook", "webhookClientConfig": {"url": "https://x"}, "conversionReviewVersions": ["v1"]},
            "preserveUnknownFields": false}});
        to_v1(&mut old);
        let column = json!([{"name": "Oars", "type": "integer", "jsonPath": ".spec.oars"}]);
        let status = json!({"status": {}});
        assert_eq!(
            old,
            json!({"apiVersion": "apiextensions.k8s.io/v1", "spec": {
                "versions": [
                    {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}},
                        "subresources": status, "additionalPrinterColumns": column},
                    {"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "string"}},
                        "subresources": status, "additionalPrinterColumns": column}],
                "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://x"}, "conversionReviewVersions": ["v1"]}}}})
        );
        let mut single = json!({"spec": {"version": "v1", "conversion": {"strategy": "None"}}});
        to_v1(&mut single);
        assert_eq!(
            single["spec"],
            json!({"versions": [{"name": "v1", "served": true, "storage": true}], "conversion": {"strategy": "None"},
                "preserveUnknownFields": true})
        );
    }
}
