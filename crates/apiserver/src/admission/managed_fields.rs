//! The managed fields of an object on its way through a write, beside it.

use api::Status;
use registry::Object;

use crate::watch_cache::Entry;

/// The managed fields of one object, as JSON.
#[derive(Clone, Default)]
pub(crate) struct RecordedFields(Option<String>);

impl RecordedFields {
    pub(crate) fn new(text: Option<String>) -> Self {
        Self(text)
    }

    /// Those of a stored object.
    pub(crate) fn of(entry: &Entry) -> Self {
        Self(recorded(&entry.stored).map(str::to_owned))
    }

    /// What a plug-in put into the object replaces what was recorded.
    pub(crate) fn take_over(&mut self, object: &mut dyn Object) -> Result<(), Status> {
        if let Some(text) = given(object)? {
            self.0 = Some(text);
        }
        Ok(())
    }

    pub(crate) fn as_json(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// The managed fields of an encoded object.
pub(crate) fn recorded(stored: &[u8]) -> Option<&str> {
    std::str::from_utf8(&stored[crate::json::find(stored, PLACE)?]).ok()
}

const PLACE: &[&str] = &["metadata", "managedFields"];

/// Takes the managed fields that came with an object off it.
pub(crate) fn given(object: &mut dyn Object) -> Result<Option<String>, Status> {
    let entries = object.meta_mut().managed_fields.take();
    entries.map(|entries| serde_json::to_string(&entries)).transpose().map_err(Status::internal)
}
