//! From client-side apply to server-side apply and back: what kubectl remembers in an annotation.
//!
//! Fields that kubectl set before it had a manager belong to whoever wrote for it then. When it applies as `kubectl`, those that are
//! still as it left them are no conflict, and the annotation is kept in step for a kubectl that goes back
//! (`lastAppliedManager`, `lastAppliedUpdater`, v1.36).

use serde_json::{Map, Value};

use super::set::FieldSet;
use super::{Writer, walk};
use crate::schema::Struct;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
const KUBECTL: &str = "kubectl";
/// All annotations of an object together.
const MAX_ANNOTATIONS: usize = 256 << 10;

fn annotations(object: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()
}

/// The fields that were last applied by the client and are still as they were.
pub(super) fn fields(live: &Map<String, Value>, schema: &Struct, writer: &Writer<'_>) -> Option<FieldSet> {
    let text = live.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str()?;
    let applied: Map<String, Value> = serde_json::from_str(text).ok()?;
    if writer.manager != KUBECTL || applied.get("apiVersion")?.as_str()? != writer.api_version {
        return None;
    }
    walk::check_keys(&applied, schema).ok()?;
    let (changed, removed) = walk::compare(&applied, live, schema).split();
    Some(walk::field_set(&applied, schema).difference(&changed).difference(&removed))
}

/// Writes what is applied into the annotation, if there is one.
pub(super) fn renew(object: &mut Map<String, Value>, mut config: Map<String, Value>, writer: &Writer<'_>) {
    if writer.manager != KUBECTL {
        return;
    }
    let Some(kept) = annotations(object) else { return };
    let Some(Value::String(last)) = kept.get_mut(ANNOTATION).filter(|last| last.as_str() != Some("")) else { return };
    if let Some(own) = annotations(&mut config) {
        own.remove(ANNOTATION);
    }
    *last = format!("{}\n", Value::Object(config));
    let size: usize = kept.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MAX_ANNOTATIONS {
        kept.remove(ANNOTATION);
    }
}
