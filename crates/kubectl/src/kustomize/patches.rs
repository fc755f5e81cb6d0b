//! Patches: strategic merges and JSON patches, and which objects they are for.

use serde_json::Value;

use super::error::{KustomizeError, PatchError};
use super::{Resource, Root, list, strings};
use crate::objects::text;
use crate::pattern::Pattern;

/// `patchesStrategicMerge`: files, or the patches themselves.
pub(super) fn strategic(root: &Root, settings: &Value, resources: &mut Vec<Resource>) -> Result<(), KustomizeError> {
    for entry in strings(&settings["patchesStrategicMerge"]) {
        let content = if root.dir.join(entry).is_file() { root.read(entry)? } else { entry.to_owned() };
        for patch in super::documents(&content)? {
            merge_by_identity(&patch, resources)?;
        }
    }
    Ok(())
}

/// `patches` and `patchesJson6902`.
pub(super) fn general(root: &Root, entries: &Value, resources: &mut Vec<Resource>) -> Result<(), KustomizeError> {
    for entry in list(entries) {
        let content = match (entry["patch"].as_str(), entry["path"].as_str()) {
            (Some(text), None) => text.to_owned(),
            (None, Some(path)) => root.read(path)?,
            _ => return Err(PatchError::PatchOrPath.into()),
        };
        for patch in super::documents(&content)? {
            if !entry["target"].is_object() {
                if patch.is_array() {
                    return Err(PatchError::NoTarget.into());
                }
                merge_by_identity(&patch, resources)?;
                continue;
            }
            let selector = Selector::new(&entry["target"])?;
            let targets: Vec<usize> = (0..resources.len()).filter(|i| selector.matches(&resources[*i])).collect();
            for at in targets.into_iter().rev() {
                apply(&patch, resources, at, &entry["options"])?;
            }
        }
    }
    Ok(())
}

/// A patch that says itself which object it is for.
fn merge_by_identity(patch: &Value, resources: &mut Vec<Resource>) -> Result<(), KustomizeError> {
    let wanted = Resource::new(patch.clone());
    let namespace = text(patch, "/metadata/namespace");
    let at = resources.iter().position(|r| {
        r.kind() == wanted.kind()
            && r.group() == wanted.group()
            && r.was_called(wanted.name())
            && (namespace.is_empty() || namespace == text(&r.object, "/metadata/namespace"))
    });
    let at = at.ok_or_else(|| PatchError::NoMatch(wanted.id()))?;
    apply(patch, resources, at, &Value::Null)
}

fn apply(patch: &Value, resources: &mut Vec<Resource>, at: usize, options: &Value) -> Result<(), KustomizeError> {
    if patch["$patch"] == "delete" {
        resources.remove(at);
        return Ok(());
    }
    let resource = &mut resources[at];
    let (kind, name) = (resource.kind().to_owned(), resource.name().to_owned());
    let schema = crate::three_way::schema(resource.group(), &kind);
    let object = &mut resource.object;
    let result = match (patch, schema) {
        (Value::Array(_), _) => api::patch::json::apply(object, patch),
        (_, Some(schema)) => api::patch::strategic::apply(object, patch, &schema),
        (_, None) => api::patch::merge::apply(object, patch),
    };
    result.map_err(|e| PatchError::Apply(e.to_string()))?;
    // A patch's own name and kind only say what it is for, unless they are to be taken over.
    if options["allowKindChange"] != true {
        resource.object["kind"] = Value::String(kind);
    }
    if options["allowNameChange"] == true {
        let renamed = resource.name().to_owned();
        resource.object["metadata"]["name"] = Value::String(name);
        resource.rename(renamed);
    } else {
        resource.object["metadata"]["name"] = Value::String(name);
    }
    Ok(())
}

/// Objects by group, version, kind, name, namespace (regular expressions for the whole word), labels and annotations.
pub(super) struct Selector {
    words: Vec<(&'static str, Pattern)>,
    labels: String,
    annotations: String,
}

impl Selector {
    pub(super) fn new(target: &Value) -> Result<Selector, PatchError> {
        let mut words = Vec::new();
        for key in ["group", "version", "kind", "name", "namespace"] {
            if let Some(expression) = target[key].as_str().filter(|e| !e.is_empty()) {
                let anchored = format!("^(?:{})$", expression.trim_start_matches('^').trim_end_matches('$'));
                let expression = expression.to_owned();
                let pattern = Pattern::new(&anchored).map_err(|why| PatchError::Expression { key, expression, why })?;
                words.push((key, pattern));
            }
        }
        Ok(Selector {
            words,
            labels: text(target, "/labelSelector").to_owned(),
            annotations: text(target, "/annotationSelector").to_owned(),
        })
    }

    pub(super) fn matches(&self, resource: &Resource) -> bool {
        let meta = &resource.object["metadata"];
        let words = self.words.iter().all(|(key, expression)| match *key {
            "group" => expression.is_match(resource.group()),
            "version" => {
                expression.is_match(text(&resource.object, "/apiVersion").rsplit('/').next().unwrap_or_default())
            }
            "kind" => expression.is_match(resource.kind()),
            "namespace" => expression.is_match(text(meta, "/namespace")),
            _ => expression.is_match(resource.name()) || resource.former_names.iter().any(|n| expression.is_match(n)),
        });
        let labelled = |selector: &str, of: &Value| {
            selector.is_empty() || crate::selector::matches_labels(selector, of).unwrap_or(false)
        };
        words && labelled(&self.labels, &meta["labels"]) && labelled(&self.annotations, &meta["annotations"])
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::built;

    const TWO: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  labels: {x: y}\ndata: {k: v}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: ab\ndata: {k: v}\n";

    #[test]
    fn targets_are_whole_words() {
        for (patch, a, ab) in [
            ("- target: {kind: ConfigMap, name: a}\n  patch: '[{op: replace, path: /data/k, value: new}]'", "new", "v"),
            ("- target: {name: a.*}\n  patch: '[{op: replace, path: /data/k, value: new}]'", "new", "new"),
            ("- target: {labelSelector: x=y}\n  patch: |-\n    data: {k: new}", "new", "v"),
            (
                "- patch: |-\n    apiVersion: v1\n    kind: ConfigMap\n    metadata: {name: ab}\n    data: {k: new}",
                "v",
                "new",
            ),
        ] {
            let kustomization = format!("resources: [two.yaml]\npatches:\n{patch}\n");
            let text = built(&[("two.yaml", TWO), ("kustomization.yaml", &kustomization)], ".").unwrap();
            let objects = crate::manifests::documents(&text).unwrap();
            assert_eq!(
                (objects[0]["data"]["k"].as_str(), objects[1]["data"]["k"].as_str()),
                (Some(a), Some(ab)),
                "{patch}"
            );
        }
        let gone = "resources: [two.yaml]\npatchesStrategicMerge:\n- |-\n  apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: a}\n  $patch: delete\n";
        let text = built(&[("two.yaml", TWO), ("kustomization.yaml", gone)], ".").unwrap();
        assert_eq!(crate::manifests::documents(&text).unwrap().len(), 1);
    }
}
