//! Kinds that are served in several versions with other fields: what a manager owns are fields of the version it wrote in, so a
//! write is looked at in each of those (`Converter` of structured-merge-diff, v6).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::managed::Managed;
use super::set::FieldSet;
use super::walk::{self, Emptied};
use super::{Write, Writer};
use crate::schema::StructRef;

type Fields = Map<String, Value>;

/// The versions that a kind is served in.
pub trait Versions: std::fmt::Debug + Sync {
    /// An object, which says of which version it is, in another one, and the schema of that. None if the kind is not served in it:
    /// then fields that were written in it are taken for those of the writer's version.
    fn convert(&self, object: &Fields, version: &str) -> Option<(Fields, StructRef)>;
}

/// What a write sets or changes, and what it takes away, in the versions of others.
#[derive(Debug, Default)]
pub(super) struct Elsewhere(BTreeMap<String, (FieldSet, FieldSet)>);

impl Elsewhere {
    /// Of the old object and the new one, both in the writer's version.
    pub(super) fn new<'v>(
        (old, new): (&Fields, &Fields),
        others: impl Iterator<Item = &'v str>,
        writer: &Writer<'_>,
        ignored: &[&str],
    ) -> Self {
        let mut all: BTreeMap<String, (FieldSet, FieldSet)> = BTreeMap::new();
        let Some(versions) = writer.versions else { return Self(all) };
        for version in others.filter(|version| *version != writer.api_version) {
            if all.contains_key(version) {
                continue;
            }
            let (old, new) = (versions.convert(old, version), versions.convert(new, version));
            let (Some((old, schema)), Some((new, _))) = (old, new) else { continue };
            let mut changes = walk::compare(&old, &new, &schema);
            changes.forget_managed_fields();
            for field in ignored {
                changes.ignore(field);
            }
            all.insert(version.to_owned(), changes.split());
        }
        Self(all)
    }

    /// As [`Self::new`], of texts: they are read only if somebody wrote in another version.
    pub(super) fn of_texts<'v>(write: &Write<'_>, others: impl Iterator<Item = &'v str>, writer: &Writer<'_>) -> Self {
        let mut others = others.filter(|version| *version != writer.api_version).peekable();
        if writer.versions.is_none() || others.peek().is_none() {
            return Self::default();
        }
        let read = |text: &[u8]| serde_json::from_slice::<Fields>(text).ok();
        match (write.live.and_then(read), read(write.new)) {
            (Some(old), Some(new)) => Self::new((&old, &new), others, writer, write.ignored),
            _ => Self::default(),
        }
    }

    /// What is changed and what is removed, for those who wrote in a version that is not the writer's.
    pub(super) fn of(&self, version: &str) -> Option<(&FieldSet, &FieldSet)> {
        self.0.get(version).map(|(changed, removed)| (changed, removed))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(|(changed, removed)| changed.is_empty() && removed.is_empty())
    }
}

/// Removes what a manager used to set, no longer sets, and nobody else owns, where more than one version has a say; none where
/// it is all of one. `last` is what it set before, in the version it wrote in then.
pub(super) fn prune(
    merged: &Fields,
    managed: &Managed,
    (version, last): (&str, &FieldSet),
    writer: &Writer<'_>,
) -> Option<Fields> {
    let versions = writer.versions?;
    // Fields that were written in a version that is no longer served are taken for those of the writer's.
    let mut read_as: BTreeMap<&str, &str> = BTreeMap::new();
    for written in managed.entries.iter().map(|entry| entry.api_version.as_str()).chain([version]) {
        let served = || versions.convert(merged, written).map_or(writer.api_version, |_| written);
        read_as.entry(written).or_insert_with(served);
    }
    if read_as.values().all(|version| *version == writer.api_version) {
        return None;
    }
    let read_as = |written: &str| read_as.get(written).copied().unwrap_or(writer.api_version);
    let version = read_as(version);
    let (merged, schema) = versions.convert(merged, version)?;
    let last = last.with_named_fields(&schema);
    let mut pruned = walk::remove(&merged, &last, &schema, Emptied::Null);
    // That of the last configuration comes first: without what others own in it, it may not be possible to convert the rest.
    let mut owned: BTreeMap<(bool, &str), FieldSet> = BTreeMap::new();
    for entry in &managed.entries {
        let at = read_as(&entry.api_version);
        owned.entry((at != version, at)).or_default().merge(entry.set.clone());
    }
    for ((_, at), owned) in owned {
        let (all, left) = (versions.convert(&merged, at), versions.convert(&pruned, at));
        let (Some((all, schema)), Some((left, _))) = (all, left) else { continue };
        let mut kept = walk::field_set(&left, &schema).with_named_fields(&schema);
        kept.merge(owned.with_named_fields(&schema));
        let unwanted = walk::field_set(&all, &schema).with_named_fields(&schema).difference(&kept);
        pruned = walk::remove(&all, &unwanted, &schema, Emptied::Null);
    }
    let (pruned, _) = versions.convert(&pruned, version)?;
    let kept = walk::field_set(&pruned, &schema).with_named_fields(&schema);
    let dropped = walk::field_set(&merged, &schema).with_named_fields(&schema).difference(&kept).intersection(&last);
    let left = walk::remove(&merged, &dropped, &schema, Emptied::Gone);
    versions.convert(&left, writer.api_version).map(|(left, _)| left)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{apply, update};
    use super::*;
    use crate::schema::Struct;

    /// `v1` has a field `one` and carries all others as `rest`; `v2` has a list of all, `one` being the first.
    #[derive(Debug)]
    struct Numbers;

    impl Versions for Numbers {
        fn convert(&self, object: &Fields, version: &str) -> Option<(Fields, StructRef)> {
            let mut object = object.clone();
            let from = object.insert("apiVersion".to_owned(), version.into())?;
            let spec = object.get_mut("spec").and_then(Value::as_object_mut).filter(|_| from != version);
            let list = |value: Option<Value>| value.and_then(|value| value.as_array().cloned()).unwrap_or_default();
            match (version, spec) {
                ("v1", Some(spec)) => {
                    let all = list(spec.remove("all"));
                    if let Some((one, rest)) = all.split_first() {
                        spec.insert("one".to_owned(), one.clone());
                        spec.insert("rest".to_owned(), rest.into());
                    }
                }
                ("v2", Some(spec)) => {
                    let one = spec.remove("one").unwrap_or(json!(80));
                    let all = std::iter::once(one).chain(list(spec.remove("rest")));
                    spec.insert("all".to_owned(), all.collect());
                }
                ("v1" | "v2", None) => {}
                _ => return None,
            }
            Some((object, schema()))
        }
    }

    fn schema() -> StructRef {
        Struct::new("Numbers", Vec::new()).open(true).into()
    }

    fn writer<'a>(manager: &'a str, api_version: &'a str) -> Writer<'a> {
        let now = jiff::Timestamp::UNIX_EPOCH;
        Writer { manager, api_version, versions: Some(&Numbers), subresource: "", now }
    }

    fn numbers(api_version: &str, spec: Value) -> Value {
        json!({"apiVersion": api_version, "metadata": {"name": "n"}, "spec": spec})
    }

    /// The object as a client of `version` sees it.
    fn seen(object: &Value, version: &str) -> Value {
        Value::Object(Numbers.convert(object.as_object().unwrap(), version).unwrap().0)
    }

    fn applied(live: Option<&Value>, config: Value, manager: &str, force: bool) -> Result<Value, String> {
        let version = config["apiVersion"].as_str().unwrap();
        let live = live.map(|live| seen(live, version));
        let applied = apply(live.as_ref(), &config, &schema(), &writer(manager, version), force, &[]);
        applied.map_err(|error| error.to_string())
    }

    /// The version and the fields of the spec that a manager owns.
    fn owned(object: &Value, manager: &str) -> Option<(String, Vec<String>)> {
        let entries = object["metadata"]["managedFields"].as_array()?;
        let entry = entries.iter().find(|entry| entry["manager"] == manager)?;
        let fields = entry["fieldsV1"]["f:spec"].as_object()?.keys().filter(|key| *key != ".");
        Some((entry["apiVersion"].as_str()?.to_owned(), fields.cloned().collect()))
    }

    fn owns(version: &str, fields: &[&str]) -> Option<(String, Vec<String>)> {
        Some((version.to_owned(), fields.iter().map(|field| (*field).to_owned()).collect()))
    }

    #[test]
    fn an_apply_in_one_version_drops_nothing_that_only_another_says() {
        let first = applied(None, numbers("v2", json!({"all": [1, 2, 3]})), "a", false).unwrap();
        let both = applied(Some(&first), numbers("v1", json!({"one": 1})), "b", false).unwrap();
        assert_eq!(both["spec"], json!({"one": 1, "rest": [2, 3]}));
        assert_eq!((owned(&both, "a"), owned(&both, "b")), (owns("v2", &["f:all"]), owns("v1", &["f:one"])));

        let wanted = numbers("v1", json!({"one": 5}));
        let error = applied(Some(&both), wanted.clone(), "b", false).unwrap_err();
        assert_eq!(error, "Apply failed with 1 conflict: conflict with \"a\": .spec.all");
        let forced = applied(Some(&both), wanted, "b", true).unwrap();
        assert_eq!(forced["spec"], json!({"one": 5, "rest": [2, 3]}));
        assert_eq!((owned(&forced, "a"), owned(&forced, "b")), (owns("v2", &[]), owns("v1", &["f:one"])));

        // What it changes is not what the other one said.
        let longer = applied(Some(&forced), numbers("v2", json!({"all": [5, 2]})), "c", false).unwrap();
        assert_eq!((owned(&longer, "b"), owned(&longer, "c")), (owns("v1", &["f:one"]), owns("v2", &["f:all"])));
        let error = applied(Some(&longer), numbers("v2", json!({"all": [6, 2]})), "d", false).unwrap_err();
        assert!(error.contains("conflicts with \"b\":\n- .spec.one"), "{error}");
    }

    #[test]
    fn what_is_no_longer_applied_goes_from_the_version_it_was_said_in() {
        let first = applied(None, numbers("v1", json!({"one": 1, "rest": [2]})), "a", false).unwrap();
        let kept = applied(Some(&first), numbers("v1", json!({"rest": [2]})), "a", false).unwrap();
        assert_eq!(kept["spec"], json!({"rest": [2]}));
        // Said in another version the next time.
        let moved = applied(Some(&first), numbers("v2", json!({"all": [1, 2]})), "a", false).unwrap();
        assert_eq!((&moved["spec"], owned(&moved, "a")), (&json!({"all": [1, 2]}), owns("v2", &["f:all"])));
        // Somebody else says it in another version.
        let shared = applied(Some(&first), numbers("v2", json!({"all": [1, 2]})), "b", false).unwrap();
        let kept = applied(Some(&shared), numbers("v1", json!({"rest": [2]})), "a", false).unwrap();
        assert_eq!(kept["spec"], json!({"one": 1, "rest": [2]}));
        assert_eq!((owned(&kept, "a"), owned(&kept, "b")), (owns("v1", &["f:rest"]), owns("v2", &["f:all"])));
    }

    #[test]
    fn fields_of_a_version_that_is_no_longer_served_stay() {
        let mut first = applied(None, numbers("v1", json!({"one": 1, "rest": [2]})), "a", false).unwrap();
        let entries = first["metadata"]["managedFields"].as_array_mut().unwrap();
        let mut other = entries[0].clone();
        (other["manager"], other["apiVersion"]) = ("b".into(), "v0".into());
        entries.push(other);
        let kept = applied(Some(&first), numbers("v1", json!({"rest": [2]})), "a", false).unwrap();
        assert_eq!((&kept["spec"], owned(&kept, "a")), (&json!({"one": 1, "rest": [2]}), owns("v1", &["f:rest"])));
        assert_eq!(owned(&kept, "b"), owns("v0", &["f:one", "f:rest"]));
    }

    #[test]
    fn plain_writes_take_from_others_what_they_change_in_their_versions() {
        let first = applied(None, numbers("v2", json!({"all": [1, 2]})), "a", false).unwrap();
        let both = applied(Some(&first), numbers("v1", json!({"one": 1})), "b", false).unwrap();
        let recorded = both["metadata"]["managedFields"].to_string();
        for (version, spec, a, b, c) in [
            ("v2", json!({"all": [1, 3]}), owns("v2", &[]), owns("v1", &["f:one"]), owns("v2", &["f:all"])),
            ("v2", json!({"all": [4, 2]}), owns("v2", &[]), owns("v1", &[]), owns("v2", &["f:all"])),
            ("v1", json!({"one": 4, "rest": [2]}), owns("v2", &[]), owns("v1", &[]), owns("v1", &["f:one"])),
            ("v1", json!({"one": 1, "rest": [9]}), owns("v2", &[]), owns("v1", &["f:one"]), owns("v1", &["f:rest"])),
            ("v1", json!({"one": 1, "rest": [2]}), owns("v2", &["f:all"]), owns("v1", &["f:one"]), None),
        ] {
            let mut live = seen(&both, version);
            live["metadata"].as_object_mut().unwrap().remove("managedFields");
            let (live, new) = (live.to_string(), numbers(version, spec.clone()).to_string());
            let write = Write { live: Some(live.as_bytes()), new: new.as_bytes(), ignored: &[] };
            let kept = update(write, Some(&recorded), None, &schema(), &writer("c", version)).unwrap();
            let kept = json!({"metadata": {"managedFields": serde_json::from_str::<Value>(&kept).unwrap()}});
            assert_eq!((owned(&kept, "a"), owned(&kept, "b")), (a, b), "{version} {spec}");
            assert_eq!(owned(&kept, "c"), c, "{version} {spec}");
        }
    }
}
