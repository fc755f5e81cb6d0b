//! `vars`: `$(NAME)` in the usual places stands for a field of another object, as that field is in the end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::configurations::Place;
use super::error::VarError;
use super::{Resource, list, replacements, visit};
use crate::objects::{template_pointer, text};

/// A variable: what it is called, whose field it is, and which.
pub(super) struct Var {
    name: String,
    /// `ConfigMap.v1.[noGrp]`
    kind: String,
    field: String,
}

impl std::fmt::Display for Var {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{{{} {} {{{}}}}}'", self.name, self.kind, self.field)
    }
}

/// Takes over the variables of one kustomization; the object each is about is found by the names it has here.
pub(super) fn collect(entries: &Value, resources: &mut [Resource], vars: &mut Vec<Var>) -> Result<(), VarError> {
    for entry in list(entries) {
        let name = text(entry, "/name").to_owned();
        if vars.iter().any(|known| known.name == name) {
            return Err(VarError::Twice(name));
        }
        let target = &entry["objref"];
        let api_version = match text(target, "/apiVersion") {
            "" => [text(target, "/group"), text(target, "/version")]
                .into_iter()
                .filter(|p| !p.is_empty())
                .collect::<Vec<_>>()
                .join("/"),
            api_version => api_version.to_owned(),
        };
        let (group, version) = api_version.split_once('/').unwrap_or(("[noGrp]", &api_version));
        let field = match text(entry, "/fieldref/fieldpath") {
            "" => text(entry, "/fieldref/fieldPath"),
            path => path,
        };
        let var = Var {
            kind: format!("{}.{version}.{group}", text(target, "/kind")),
            field: if field.is_empty() { "metadata.name".to_owned() } else { field.to_owned() },
            name,
        };
        let namespace = text(target, "/namespace");
        let mut matching: Vec<&mut Resource> = resources
            .iter_mut()
            .filter(|r| {
                r.kind() == text(target, "/kind")
                    && text(&r.object, "/apiVersion") == api_version
                    && r.was_called(text(target, "/name"))
                    && (namespace.is_empty() || text(&r.object, "/metadata/namespace") == namespace)
            })
            .collect();
        match matching.as_mut_slice() {
            [] => {}
            [one] => one.vars.push(var.name.clone()),
            many => return Err(VarError::Ambiguous { count: many.len(), var: var.to_string() }),
        }
        vars.push(var);
    }
    Ok(())
}

const IN_CONTAINERS: &[&[&str]] = &[&["args"], &["command"], &["env", "value"], &["volumeMounts", "mountPath"]];

/// (kind, path)
const ELSEWHERE: &[(&str, &[&str])] = &[
    ("Deployment", &["spec", "template", "metadata", "annotations"]),
    ("Ingress", &["spec", "rules", "host"]),
    ("Ingress", &["spec", "tls", "hosts"]),
    ("Ingress", &["spec", "tls", "secretName"]),
    ("Service", &["spec", "ports", "port"]),
    ("Service", &["spec", "ports", "targetPort"]),
    ("StatefulSet", &["spec", "volumeClaimTemplates", "spec", "nfs", "server"]),
    ("PersistentVolume", &["spec", "nfs", "server"]),
    ("", &["metadata", "labels"]),
    ("", &["metadata", "annotations"]),
];

/// Puts values in the place of variables; `more` are places that a configuration adds.
pub(super) fn resolve(resources: &mut [Resource], vars: &[Var], more: &[Place]) -> Result<(), VarError> {
    let values = vars.iter().map(|var| Ok((var.name.clone(), value(var, resources)?)));
    let values = values.collect::<Result<BTreeMap<String, Value>, VarError>>()?;
    let mut used = BTreeSet::new();
    let mut fill = |field: &mut Value| match field {
        Value::Object(map) => map.values_mut().for_each(|v| expand(v, &values, &mut used)),
        field => expand(field, &values, &mut used),
    };
    for resource in resources {
        let kind = resource.kind().to_owned();
        let pods = template_pointer(&kind).filter(|_| kind != "ReplicationController");
        if let Some(spec) = pods.and_then(|p| resource.object.pointer_mut(&format!("{p}/spec"))) {
            for containers in ["containers", "initContainers"] {
                for path in IN_CONTAINERS {
                    visit(spec, &[&[containers], *path].concat(), &mut fill);
                }
            }
            visit(spec, &["volumes", "nfs", "server"], &mut fill);
        }
        for (_, path) in ELSEWHERE.iter().filter(|(of, _)| of.is_empty() || *of == kind) {
            visit(&mut resource.object, path, &mut fill);
        }
        let places: Vec<&Place> = more.iter().filter(|place| place.is_in(resource)).collect();
        for place in places {
            visit(&mut resource.object, &place.path(), &mut fill);
        }
    }
    let unused: Vec<&str> = values.keys().map(String::as_str).filter(|name| !used.contains(*name)).collect();
    if !unused.is_empty() {
        eprintln!("well-defined vars that were never replaced: {}", unused.join(","));
    }
    Ok(())
}

fn value(var: &Var, resources: &[Resource]) -> Result<Value, VarError> {
    let resource =
        resources.iter().find(|r| r.vars.contains(&var.name)).ok_or_else(|| VarError::NoResource(var.to_string()))?;
    // `spec.ports[0].port` is how vars write `spec.ports.0.port`.
    let path = var.field.replace('[', ".").replace(']', "");
    replacements::field(&resource.object, &path)
        .filter(|v| !v.is_object() && !v.is_array())
        .ok_or_else(|| VarError::NoField(var.to_string()))
}

/// `$(NAME)` in a text; `$$` is a dollar, and a text that is one variable takes the value's type too.
fn expand(field: &mut Value, values: &BTreeMap<String, Value>, used: &mut BTreeSet<String>) {
    let Some(source) = field.as_str() else { return };
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) else {
            out.push('$');
            continue;
        };
        rest = after;
        match values.get(name) {
            Some(value) => {
                used.insert(name.to_owned());
                if out.is_empty() && rest.is_empty() {
                    *field = value.clone();
                    return;
                }
                out.push_str(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            }
            None => out.push_str(&format!("$({name})")),
        }
    }
    out.push_str(rest);
    *field = Value::String(out);
}

#[cfg(test)]
mod tests {
    use super::super::tests::built;
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_expand() {
        let values = BTreeMap::from([("A".to_owned(), json!("x")), ("N".to_owned(), json!(80))]);
        for (text, expected) in [
            ("$(A)", json!("x")),
            ("$(N)", json!(80)),
            ("--port=$(N)", json!("--port=80")),
            ("$$(A) $(B) $ $(A", json!("$(A) $(B) $ $(A")),
        ] {
            let mut field = json!(text);
            expand(&mut field, &values, &mut BTreeSet::new());
            assert_eq!(field, expected, "{text}");
        }
    }

    const OBJECTS: &str = "apiVersion: v1\nkind: Service\nmetadata:\n  name: s\nspec:\n  ports:\n  - port: 80\n---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: c\n    args: [\"$(HOST):$(PORT)\"]\n";

    #[test]
    fn values_are_those_of_the_end() {
        let vars = "vars:\n- name: HOST\n  objref: {apiVersion: v1, kind: Service, name: s}\n- name: PORT\n  objref: {apiVersion: v1, kind: Service, name: s}\n  fieldref: {fieldpath: 'spec.ports[0].port'}\n";
        let base = format!("resources: [o.yaml]\n{vars}");
        let files = [
            ("base/o.yaml", OBJECTS),
            ("base/kustomization.yaml", &base),
            ("over/kustomization.yaml", "resources: [../base]\nnamePrefix: dev-\n"),
        ];
        let text = built(&files, "over").unwrap();
        assert!(text.contains("- dev-s:80\n"), "{text}");
    }

    #[test]
    fn mistakes_are_named() {
        for (var, expected) in [
            (
                "{name: A, objref: {apiVersion: v1, kind: Service, name: x}}",
                "var '{A Service.v1.[noGrp] {metadata.name}}' cannot be mapped to a field in the set of known resources",
            ),
            (
                "{name: A, objref: {apiVersion: v1, kind: Service, name: s}, fieldref: {fieldpath: spec.x}}",
                "field specified in var '{A Service.v1.[noGrp] {spec.x}}' not found in corresponding resource",
            ),
        ] {
            let kustomization = format!("resources: [o.yaml]\nvars:\n- {var}\n");
            let error = built(&[("o.yaml", OBJECTS), ("kustomization.yaml", &kustomization)], ".").unwrap_err();
            assert_eq!(error, expected);
        }
    }
}
