//! `metadata.managedFields`: who owns which field, recorded on every write.

use api::Status;

use crate::registry::Object;
use crate::state::Operation;

/// Keeps what is recorded. A client that sends an empty list clears it, as upstream allows.
pub(crate) fn track(_operation: &Operation, new: &mut dyn Object, old: Option<&dyn Object>) -> Result<(), Status> {
    let meta = new.meta_mut();
    match &meta.managed_fields {
        Some(fields) if fields.is_empty() => meta.managed_fields = None,
        Some(_) => {}
        None => meta.managed_fields = old.and_then(|old| old.meta().managed_fields.clone()),
    }
    Ok(())
}
