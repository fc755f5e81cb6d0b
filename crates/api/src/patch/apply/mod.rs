//! Server-side apply: every field has owners, and a write changes who they are.
//!
//! `metadata.managedFields` lists, per manager, the fields it last set. [`apply`] merges what a manager
//! wants into the live object, drops what it no longer wants and nobody else owns, and refuses to
//! change what others own unless forced. [`update`] records owners for every other kind of write.
//! The algorithm is structured-merge-diff's (v6): `walk` compares and merges values by their schema,
//! `set` holds field sets, `managed` reads and writes the entries. Plain writes, which are nearly all there are, compare
//! texts (`raw`), or read one if the object is new (`created`), and change those of the entries (`managed_text`). A write is held
//! against the fields of others in the version that they wrote in (`versions`).

mod created;
mod last_applied;
mod managed;
mod managed_text;
mod raw;
mod set;
mod versions;
mod walk;

pub use set::FieldSet;
pub use versions::Versions;

use std::borrow::Cow;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::Status;
use crate::field::quote;
use crate::first_paths::FirstPaths;
use crate::schema::Struct;
use crate::sort::CompactSort as _;
use crate::status::StatusCause;
use managed::{Entry, Managed, Operation};
use managed_text::ManagedText;
use versions::Elsewhere;
use walk::Emptied;

/// Who writes, as what, and when.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The field manager of the request; for old clients, the start of their user agent.
    pub manager: &'a str,
    /// Of the object as the client sent it.
    pub api_version: &'a str,
    /// Those that others may have written in; none if there is only one.
    pub versions: Option<&'a dyn Versions>,
    /// Empty for the main resource.
    pub subresource: &'a str,
    pub now: Timestamp,
}

/// Why an apply was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    #[error("{0}")]
    Malformed(String),
    /// The configuration does not fit its schema: elements of a list that cannot be told apart.
    #[error(transparent)]
    Untyped(#[from] ListError),
}

/// Elements of a list with keys that cannot be told apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error(
        "failed to create typed patch object: {path}: element {index}: associative list with keys has an element that omits key field {key} (and doesn't have default value)"
    )]
    NoKey { path: String, index: usize, key: String },
    #[error("failed to create typed patch object: {path}: duplicate entries for key {key}")]
    Duplicate { path: String, key: String },
}

/// A field that someone else owns and this apply would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// As messages name it: `"kubectl" using apps/v1`.
    pub manager: String,
    pub field: String,
}

impl From<ApplyError> for Status {
    fn from(error: ApplyError) -> Self {
        let message = error.to_string();
        match error {
            ApplyError::Conflicts(conflicts) => {
                let causes = conflicts
                    .into_iter()
                    .map(|conflict| StatusCause {
                        reason: "FieldManagerConflict".into(),
                        message: format!("conflict with {}", conflict.manager),
                        field: conflict.field,
                    })
                    .collect();
                Status::apply_conflict(message, causes)
            }
            ApplyError::Malformed(_) | ApplyError::Untyped(_) => Status::bad_request(message),
        }
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", only.manager, only.field);
    }
    let mut managers: Vec<&str> = conflicts.iter().map(|conflict| conflict.manager.as_str()).collect();
    managers.compact_sort();
    managers.dedup();
    let mut lines = Vec::new();
    for manager in managers {
        lines.push(format!("conflicts with {manager}:"));
        lines.extend(conflicts.iter().filter(|c| c.manager == manager).map(|c| format!("- {}", c.field)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Applies `config` to `live` (absent: creates) and returns the new object, managed fields included.
///
/// `ignored` are top-level fields that this endpoint resets anyway (`status` on the main resource);
/// nobody comes to own them here. The result still has to be defaulted, admitted and validated.
pub fn apply(
    live: Option<&Value>,
    config: &Value,
    schema: &Struct,
    writer: &Writer<'_>,
    force: bool,
    ignored: &[&str],
) -> Result<Value, ApplyError> {
    let Value::Object(config) = config else {
        return Err(ApplyError::Malformed("an apply patch must be an object".to_owned()));
    };
    let mut config = config.clone();
    if take_managed(&mut config).is_some() {
        return Err(ApplyError::Malformed("metadata.managedFields must be nil".to_owned()));
    }
    let mut live_fields = live.and_then(Value::as_object).cloned().unwrap_or_default();
    let mut managed = Managed::decode(take_managed(&mut live_fields));
    if managed.is_empty() && live.is_some() {
        // The object was never tracked: whatever is there belongs to those who came before.
        let before = Writer { manager: "before-first-apply", ..*writer };
        let created = walk::compare(&skeleton(&live_fields, Some(schema)), &live_fields, schema);
        managed.record(&before, created.split().0);
    }
    walk::check_keys(&config, schema)?;
    let merged = walk::merge(&live_fields, &config, schema);

    let mut set = walk::field_set(&config, schema);
    for field in ignored {
        set.remove_field(field);
    }
    let mine = managed.position(writer, Operation::Apply);
    let last = mine.map(|at| (managed.entries[at].api_version.clone(), std::mem::take(&mut managed.entries[at].set)));
    let mine = mine.unwrap_or_else(|| {
        managed.entries.push(Entry::new(writer, Operation::Apply));
        managed.entries.len() - 1
    });
    managed.entries[mine].set = set;
    managed.entries[mine].api_version = writer.api_version.to_owned();
    let new = match last.filter(|(_, last)| !last.is_empty()) {
        Some((version, last)) => match versions::prune(&merged, &managed, (&version, &last), writer) {
            Some(pruned) => pruned,
            None => prune(merged, &managed, &last, schema),
        },
        None => merged,
    };

    let mut changes = walk::compare(&live_fields, &new, schema);
    for field in ignored {
        changes.ignore(field);
    }
    let (changed, removed) = changes.split();
    let others = managed.entries.iter().map(|entry| entry.api_version.as_str());
    let elsewhere = Elsewhere::new((&live_fields, &new), others, writer, ignored);
    let mut disputes: Vec<(String, FieldSet)> = Vec::new();
    for (_, entry) in managed.entries.iter_mut().enumerate().filter(|&(i, _)| i != mine) {
        let (changed, removed) = elsewhere.of(&entry.api_version).unwrap_or((&changed, &removed));
        let disputed = entry.set.intersection(changed);
        if !disputed.is_empty() {
            if !force {
                disputes.push((entry.describe(), disputed));
                continue;
            }
            entry.set.subtract(&disputed);
        }
        entry.set.subtract(removed);
    }
    if !disputes.is_empty() {
        // What kubectl has applied without a manager is its own.
        let own = last_applied::fields(&live_fields, schema, writer).unwrap_or_default();
        disputes.iter_mut().for_each(|(_, disputed)| disputed.subtract(&own));
        let conflicts = conflicts(&disputes);
        return match conflicts.is_empty() {
            true => apply(live, &Value::Object(config), schema, writer, true, ignored),
            false => Err(ApplyError::Conflicts(conflicts)),
        };
    }
    managed.entries[mine].set.strip_metadata();
    // Zero values may be owned and are not stored: writing them again changes nothing.
    let is_same = || {
        let mut written = new.clone();
        crate::schema::tidy_fields(&mut written, schema);
        written == live_fields
    };
    if live.is_none() || (new != live_fields && !is_same()) {
        managed.entries[mine].time = Some(writer.now);
    }
    managed.drop_empty();
    let mut new = new;
    last_applied::renew(&mut new, config, writer);
    Ok(finish(new, managed))
}

/// What each manager owns of what would change, named within limits.
fn conflicts(disputes: &[(String, FieldSet)]) -> Vec<Conflict> {
    let mut paths = FirstPaths::default();
    let mut managers: Vec<&String> = Vec::new();
    for (manager, disputed) in disputes {
        disputed.add_paths(&mut paths);
        managers.resize(paths.len(), manager);
    }
    let conflict = |(field, manager): (String, &String)| Conflict { manager: manager.clone(), field };
    paths.named().into_iter().zip(managers).map(conflict).collect()
}

/// Merges `config` into `live` by the rules of an apply, for someone who owns nothing: what a mutating policy does.
///
/// What is replaced as a whole may not be set, as upstream: whoever means to change a part of it would drop the rest.
pub fn merge(live: &Value, config: &Value, schema: &Struct) -> Result<Value, ApplyError> {
    let (Value::Object(live), Value::Object(config)) = (live, config) else {
        return Err(ApplyError::Malformed("an apply configuration must be an object".to_owned()));
    };
    walk::check_keys(config, schema)?;
    let atomics = walk::atomics(config, schema);
    if !atomics.is_empty() {
        let message = format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
            atomics.join(", ")
        );
        return Err(ApplyError::Malformed(message));
    }
    Ok(Value::Object(walk::merge(live, config, schema)))
}

/// What plain writes compare: two objects as JSON, their managed fields apart or not.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Absent for a create.
    pub live: Option<&'a [u8]>,
    pub new: &'a [u8],
    /// Top-level fields that this endpoint resets anyway, as for [`apply`].
    pub ignored: &'a [&'a str],
}

/// Records owners for a create, update or patch: whoever writes owns what changed.
///
/// Managed fields come and go as JSON. `recorded` are those of the live object. The new one may carry some of its own
/// (`given`), which then replace the recorded ones; a single empty entry forgets them all, as upstream.
pub fn update<'a>(
    write: Write<'_>,
    recorded: Option<&'a str>,
    given: Option<&'a str>,
    schema: &Struct,
    writer: &Writer<'_>,
) -> Option<Cow<'a, str>> {
    let given = given.filter(|_| writer.subresource.is_empty());
    if given == Some("[{}]") {
        return None;
    }
    let mut text = given;
    let mut managed_text = ManagedText::read(text.unwrap_or("[]"));
    if managed_text.is_empty() {
        text = recorded;
        managed_text = ManagedText::read(text.unwrap_or("[]"));
    }
    if managed_text.is_empty() && write.live.is_some() {
        // Nobody asked for managed fields on this object when it was made.
        return None;
    }
    if managed_text.is_empty()
        && let Some(fields) = created::fields(write.new, schema, write.ignored)
    {
        managed_text.begin(writer, fields);
        return managed_text.close(text);
    }
    let mut changes = raw::compare(write.live, write.new, schema, write.ignored)?;
    changes.forget_managed_fields();
    let (changed, removed) = changes.split();
    let elsewhere = Elsewhere::of_texts(&write, managed_text.versions(), writer);
    if !changed.is_empty() || !removed.is_empty() || !elsewhere.is_empty() {
        managed_text.keep(writer, changed, &removed, &elsewhere);
    }
    managed_text.close(text)
}

/// Removes what this manager used to set, no longer sets, and nobody else owns.
fn prune(merged: Map<String, Value>, managed: &Managed, last: &FieldSet, schema: &Struct) -> Map<String, Value> {
    let last = last.with_named_fields(schema);
    let merged_set = walk::field_set(&merged, schema).with_named_fields(schema);
    let pruned = walk::remove(&merged, &last, schema, Emptied::Null);
    let mut kept = walk::field_set(&pruned, schema).with_named_fields(schema);
    for entry in &managed.entries {
        kept.merge(entry.set.with_named_fields(schema));
    }
    let pruned = walk::remove(&merged, &merged_set.clone().difference(&kept), schema, Emptied::Null);
    let pruned_set = walk::field_set(&pruned, schema).with_named_fields(schema);
    walk::remove(&merged, &merged_set.difference(&pruned_set).intersection(&last), schema, Emptied::Gone)
}

/// Structures that are there before anyone set a field of them, because Go has them by value: the field, and how the names
/// of the structures end that have it so. No ends: all of the API's own that get here.
const BY_VALUE: &[(&str, &[&str])] = &[
    ("acceptedNames", &[]),
    ("daemonEndpoints", &[]),
    ("deprecatedSource", &[]),
    ("devices", &[".ResourceClaimSpec"]),
    ("involvedObject", &[]),
    ("jobTemplate", &[]),
    ("kubeletEndpoint", &[]),
    ("loadBalancer", &[".ServiceStatus", ".IngressStatus"]),
    ("names", &[".CustomResourceDefinitionSpec"]),
    ("nodeInfo", &[]),
    ("podSelector", &[".NetworkPolicySpec"]),
    ("pool", &[".ResourceSliceSpec"]),
    ("priorityLevelConfiguration", &[]),
    ("regarding", &[]),
    ("resource", &[".StorageVersionMigrationSpec"]),
    ("resources", &[".PersistentVolumeClaimSpec"]),
    ("roleRef", &[]),
    ("scaleTargetRef", &[]),
    ("schedulingPolicy", &[".PodGroupSpec"]),
    ("source", &[".Event", ".VolumeAttachmentSpec"]),
    ("spec", &[]),
    ("status", &[]),
    ("strategy", &[]),
    ("taint", &[".DeviceTaintRuleSpec"]),
    ("target", &[".Binding"]),
    (
        "template",
        &[".DaemonSetSpec", ".DeploymentSpec", ".JobSpec", ".PodTemplate", ".ReplicaSetSpec", ".StatefulSetSpec"],
    ),
    ("updateStrategy", &[]),
];

/// Whether a structure has another one from the start. Of custom kinds nobody knows, but that they have metadata.
fn has_from_start(schema: &Struct, name: &[u8]) -> bool {
    if name == b"metadata" {
        return true;
    }
    let row = BY_VALUE.binary_search_by(|(known, _)| known.as_bytes().cmp(name));
    let Some((_, ends)) = row.ok().and_then(|at| BY_VALUE.get(at)) else { return false };
    schema.name.starts_with("io.k8s.") && (ends.is_empty() || ends.iter().any(|end| schema.name.ends_with(end)))
}

/// Whether a list is always written, empty or not, and was empty at the start.
fn has_list_from_start(schema: &Struct, name: &[u8]) -> bool {
    name == b"containers" && &*schema.name == "io.k8s.api.core.v1.PodSpec"
}

/// The parts of an object that are there before anyone set a field of it.
fn skeleton(object: &Map<String, Value>, schema: Option<&Struct>) -> Map<String, Value> {
    let mut bare = Map::new();
    for (name, value) in object {
        let field = schema.and_then(|schema| schema.field(name));
        match value {
            Value::Object(fields) if schema.is_some_and(|schema| has_from_start(schema, name.as_bytes())) => {
                let inside = field.and_then(|field| field.ty.as_struct());
                bare.insert(name.clone(), Value::Object(skeleton(fields, inside)));
            }
            value if field.is_some_and(|field| field.is_bare(value)) => {
                bare.insert(name.clone(), value.clone());
            }
            Value::Array(_) if schema.is_some_and(|schema| has_list_from_start(schema, name.as_bytes())) => {
                bare.insert(name.clone(), Value::Array(Vec::new()));
            }
            _ => {}
        }
    }
    bare
}

fn take_managed(object: &mut Map<String, Value>) -> Option<Value> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    metadata.remove("managedFields").filter(|fields| !fields.is_null())
}

fn put_managed(object: &mut Map<String, Value>, managed: Managed) {
    if let Some(encoded) = managed.encode() {
        let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(metadata) = metadata {
            metadata.insert("managedFields".to_owned(), encoded);
        }
    }
}

fn finish(mut object: Map<String, Value>, managed: Managed) -> Value {
    put_managed(&mut object, managed);
    Value::Object(object)
}

impl Entry {
    /// As conflicts name the owner.
    fn describe(&self) -> String {
        let mut text = quote(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", quote(&self.subresource)));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }
}

#[cfg(test)]
mod tests;
