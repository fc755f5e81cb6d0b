//! `configurations`: files that name further fields, in kinds that kustomize does not know, which hold variables or the
//! names of other objects.

use serde_json::Value;

use super::error::KustomizeError;
use super::{Resource, Root, list, strings};
use crate::objects::text;

/// A field of a kind; without a kind, of every object.
#[derive(Clone)]
pub(super) struct Place {
    group: String,
    version: String,
    kind: String,
    path: String,
}

impl Place {
    fn new(spec: &Value) -> Place {
        let word = |key: &str| text(spec, key).to_owned();
        Place { group: word("/group"), version: word("/version"), kind: word("/kind"), path: word("/path") }
    }

    pub(super) fn is_in(&self, resource: &Resource) -> bool {
        let version = text(&resource.object, "/apiVersion").rsplit('/').next().unwrap_or_default();
        [(&self.group, resource.group()), (&self.version, version), (&self.kind, resource.kind())]
            .iter()
            .all(|(wanted, is)| wanted.is_empty() || wanted == is)
    }

    /// Lists may be marked with brackets; all are gone through.
    pub(super) fn path(&self) -> Vec<&str> {
        self.path.split('/').map(|word| word.trim_end_matches("[]")).collect()
    }
}

/// What all configurations add.
#[derive(Default, Clone)]
pub(super) struct Places {
    pub(super) vars: Vec<Place>,
    /// (kind of the object named, where)
    pub(super) names: Vec<(String, Place)>,
}

pub(super) fn read(root: &Root, entries: &Value, places: &mut Places) -> Result<(), KustomizeError> {
    for file in strings(entries) {
        let settings = super::yaml(&root.read(file)?)?;
        for (field, value) in settings.as_object().into_iter().flatten() {
            match field.as_str() {
                "varReference" => places.vars.extend(list(value).iter().map(Place::new)),
                "nameReference" => {
                    for rule in list(value) {
                        let named = text(rule, "/kind");
                        let specs = list(&rule["fieldSpecs"]).iter();
                        places.names.extend(specs.map(|spec| (named.to_owned(), Place::new(spec))));
                    }
                }
                other => {
                    let (file, field) = (file.to_owned(), other.to_owned());
                    return Err(KustomizeError::Configuration { file, field });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::built;

    #[test]
    fn further_fields_hold_names_and_variables() {
        let objects = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n---\napiVersion: e/v1\nkind: Widget\nmetadata:\n  name: w\nspec:\n  refs:\n  - secret: s\n  text: is $(S)\n";
        let config = "varReference:\n- {kind: Widget, path: spec/text}\nnameReference:\n- kind: Secret\n  fieldSpecs:\n  - {kind: Widget, path: 'spec/refs[]/secret'}\n";
        let kustomization = "resources: [o.yaml]\nnamePrefix: x-\nconfigurations: [c.yaml]\nvars:\n- name: S\n  objref: {apiVersion: v1, kind: Secret, name: s}\n";
        let files = [("o.yaml", objects), ("c.yaml", config), ("kustomization.yaml", kustomization)];
        let text = built(&files, ".").unwrap();
        assert!(text.contains("- secret: x-s\n") && text.contains("text: is x-s\n"), "{text}");
        let refused = built(&[("c.yaml", "images: []"), ("kustomization.yaml", "configurations: [c.yaml]")], ".");
        assert!(refused.unwrap_err().contains("configurations of images are not supported"));
    }
}
