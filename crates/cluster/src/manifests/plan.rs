//! What is to be done with the files that were found. Pure.

use std::collections::BTreeMap;

use super::directory::Found;
use super::objects::{self, BadManifest, Identity, Object};
use super::record::{File, Record};

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// What each file is to have applied, in order.
    pub(super) apply: BTreeMap<String, Vec<Object>>,
    /// What left: the file it was in, last first.
    pub(super) prune: Vec<(String, Identity)>,
    /// The files as they are to be written down before anything is done: what was there and what comes.
    pub(super) files: BTreeMap<String, File>,
    /// Somebody writes a file: look again soon.
    pub(super) is_busy: bool,
}

pub(super) fn plan(found: BTreeMap<String, Found>, record: &Record) -> Plan {
    let mut plan = Plan::default();
    let mut is_known = true;
    for (name, found) in found {
        let mut file = record.files.get(&name).cloned().unwrap_or_default();
        let parsed = match found {
            Found::Text(text) => objects::parse(&text).and_then(|objects| elsewhere(&plan.apply, objects)),
            Found::Bad(why) => Err(BadManifest::Unreadable(why)),
            Found::Busy => {
                (plan.is_busy, is_known) = (true, false);
                plan.files.insert(name, file);
                continue;
            }
        };
        match parsed {
            Err(why) => (file.error, is_known) = (Some(why.to_string()), false),
            Ok(objects) => {
                let new = objects.iter().map(|object| &object.identity);
                let new: Vec<Identity> =
                    new.filter(|one| !file.objects.iter().any(|old| old.is(one))).cloned().collect();
                file.objects.extend(new);
                plan.apply.insert(name.clone(), objects);
            }
        }
        plan.files.insert(name, file);
    }
    // A file that is gone is kept in mind until what it had is gone.
    for (name, file) in &record.files {
        plan.files.entry(name.clone()).or_insert_with(|| File { error: None, ..file.clone() });
    }
    if is_known {
        let wanted: Vec<&Object> = plan.apply.values().flatten().collect();
        for (name, file) in &plan.files {
            let left = file.objects.iter().rev().filter(|old| !wanted.iter().any(|object| object.identity.is(old)));
            plan.prune.extend(left.map(|identity| (name.clone(), identity.clone())));
        }
    }
    plan
}

/// An object is kept by one file.
fn elsewhere(others: &BTreeMap<String, Vec<Object>>, objects: Vec<Object>) -> Result<Vec<Object>, BadManifest> {
    for object in &objects {
        let other = others.iter().find(|(_, theirs)| theirs.iter().any(|their| their.identity.is(&object.identity)));
        if let Some((name, _)) = other {
            return Err(BadManifest::Elsewhere { identity: object.identity.clone(), file: name.clone() });
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(names: &[&str]) -> Found {
        let one = |name: &&str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: '{name}'}}\n---\n");
        Found::Text(names.iter().map(one).collect())
    }

    fn identity(name: &str) -> Identity {
        let (api_version, kind) = ("v1".to_owned(), "ConfigMap".to_owned());
        Identity { api_version, kind, namespace: String::new(), name: name.to_owned() }
    }

    fn found(files: Vec<(&str, Found)>) -> BTreeMap<String, Found> {
        files.into_iter().map(|(name, found)| (name.to_owned(), found)).collect()
    }

    #[test]
    fn what_left_goes_only_when_all_files_are_known() {
        let file = |names: &[&str]| File { error: None, objects: names.iter().map(|name| identity(name)).collect() };
        let files = [("a.yaml", file(&["x", "y"])), ("b.yaml", file(&["z"]))];
        let record =
            Record { error: None, files: files.into_iter().map(|(name, file)| (name.to_owned(), file)).collect() };
        let pruned = |files: Vec<(&str, Found)>| {
            let names = plan(found(files), &record).prune.into_iter().map(|(_, identity)| identity.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(pruned(vec![("a.yaml", text(&["x", "y"])), ("b.yaml", text(&["z"]))]), [""; 0]);
        assert_eq!(pruned(vec![("a.yaml", text(&["x"])), ("b.yaml", text(&["z"]))]), ["y"]);
        assert_eq!(pruned(vec![("a.yaml", text(&["x", "y"]))]), ["z"], "a file is gone");
        assert_eq!(pruned(vec![]), ["y", "x", "z"]);
        assert_eq!(pruned(vec![("a.yaml", text(&["x"])), ("b.yaml", text(&["z", "y"]))]), [""; 0], "moved");
        for unknown in [Found::Busy, Found::Bad("is a link".into()), Found::Text("a: [".into())] {
            assert_eq!(pruned(vec![("a.yaml", text(&["x"])), ("b.yaml", unknown)]), [""; 0]);
        }
    }

    #[test]
    fn what_comes_is_written_down_before() {
        let record = Record {
            error: None,
            files: [("a.yaml".to_owned(), File { error: Some("old".into()), objects: vec![identity("x")] })].into(),
        };
        let planned =
            plan(found(vec![("a.yaml", text(&["n"])), ("b.yaml", text(&["n"])), ("c.yaml", Found::Busy)]), &record);
        assert_eq!(planned.files["a.yaml"].objects, [identity("x"), identity("n")]);
        assert_eq!(planned.files["b.yaml"].error.as_deref(), Some("configmap/n is in a.yaml too"));
        assert!(planned.is_busy && planned.files["c.yaml"].objects.is_empty());
        assert_eq!(planned.apply.keys().collect::<Vec<_>>(), ["a.yaml"]);
    }
}
