//! Schemas: which fields a kind has, of which type, and how they merge.
//!
//! Written down by the build from the schemas that `k8s-openapi` has, reduced to what decoding and merging need, and read
//! kind by kind when first asked for; definitions shared by several kinds (a pod template) exist once. A custom resource
//! builds the same [`Type`] from its own schema. The whole schemas are for OpenAPI documents ([`Document`]).
//! Flow: `fit` (nothing to say: straight to the typed object), else `codec` -> `check` (unknown fields, wrong types,
//! canonical quantities) -> typed object -> `encode` (what Go leaves out, and what it writes all the same).

mod build;
mod check;
mod document;
mod encode;
mod fit;
mod intern;
pub mod table;
mod zero;

pub use build::{name, of};
pub use check::{TypeError, check, normalize};
pub use document::Document;
pub use encode::{Encode, encode, encode_plain, tidy_fields};
pub use fit::fit;
pub use intern::{interned, interned_keys};
pub use zero::{MESSAGES, Zero};

use std::sync::{Arc, OnceLock};

use crate::sort::CompactSort as _;

pub use table::{ListType, Merge};

/// The type of a value.
#[derive(Clone, Debug)]
pub enum Type {
    /// Anything at all: raw extensions, JSON in JSON, field sets.
    Any,
    /// Anything, and its shape says how it merges: objects field by field, all else as a whole.
    Deduced,
    Bool,
    Int32,
    Int64,
    Number,
    String,
    /// Base64 in JSON.
    Bytes,
    /// RFC 3339.
    Time,
    IntOrString,
    Quantity,
    List(Box<Type>),
    Map(Box<Type>),
    Struct(StructRef),
}

/// A structure that may mention itself, so it is linked once it is known.
#[derive(Clone, Debug)]
pub struct StructRef(Arc<OnceLock<Struct>>);

/// A structure with named fields.
#[derive(Debug)]
pub struct Struct {
    /// The name of the definition, such as `io.k8s.api.core.v1.PodSpec`.
    pub name: Box<str>,
    /// Owned and replaced as a whole.
    pub atomic: bool,
    /// Fields that are not named are let through.
    pub open: bool,
    /// Sorted by name.
    fields: Box<[Field]>,
    /// Where the fields are, one up, by the hash of their name (see [`hash`]); at least half of the slots are free, as 0.
    slots: Box<[u32]>,
    /// A bit for each field that is a time and cannot be absent: Go reads nothing as its zero time there.
    times: u128,
    /// Where fields are that may be absent and are written all the same.
    written: Box<[usize]>,
}

#[derive(Debug)]
pub struct Field {
    pub name: Box<str>,
    pub ty: Type,
    pub merge: Option<Merge>,
    /// For a key of an associative list: its value when absent.
    pub key_default: Option<&'static str>,
    /// Merges although its type is atomic elsewhere.
    pub granular: bool,
    /// Must be given: our types have a value for it, always.
    pub required: bool,
    /// What is written when there is nothing to write.
    pub zero: Zero,
}

impl Struct {
    pub fn new(name: &str, mut fields: Vec<Field>) -> Self {
        fields.compact_sort_by(|a, b| a.name.cmp(&b.name));
        let is_needed = |field: &Field| field.required && matches!(field.ty, Type::Time);
        let times = fields.iter().enumerate().filter(|(_, field)| is_needed(field));
        let times = times.filter_map(|(at, _)| 1u128.checked_shl(at as u32)).fold(0, |all, bit| all | bit);
        let is_written = |field: &Field| !field.required && matches!(field.zero, Zero::Written | Zero::Null);
        let written = fields.iter().enumerate().filter(|(_, field)| is_written(field)).map(|(at, _)| at).collect();
        let slots = slots(&fields);
        let atomic = table::is_atomic(name);
        Self { name: name.into(), atomic, open: false, fields: fields.into(), slots, times, written }
    }

    /// Whether fields that are not named are let through.
    pub fn open(mut self, is_open: bool) -> Self {
        self.open = is_open;
        self
    }

    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    pub fn field(&self, name: impl AsRef<[u8]>) -> Option<&Field> {
        self.position(name.as_ref()).map(|at| &self.fields[at])
    }

    /// Times that cannot be absent.
    fn times(&self) -> impl Iterator<Item = &Field> {
        let times = self.times;
        self.fields
            .iter()
            .enumerate()
            .filter(move |(at, _)| times.checked_shr(*at as u32).unwrap_or(0) & 1 == 1)
            .map(|(_, f)| f)
    }

    /// Fields that may be absent and are written all the same, sorted by name.
    fn written(&self) -> impl Iterator<Item = &Field> {
        self.written.iter().map(|at| &self.fields[*at])
    }

    /// Where a field stands among [`Self::fields`].
    fn position(&self, name: &[u8]) -> Option<usize> {
        let hash = hash(name);
        let mask = self.slots.len() - 1;
        // There is always a free slot, at which this ends.
        (0..).map(|step| self.slots[(hash + step) & mask].checked_sub(1)).find_map(|found| {
            let Some(at) = found.map(|at| at as usize) else { return Some(None) };
            (self.fields[at].name.as_bytes() == name).then_some(Some(at))
        })?
    }

    /// `PodSpec` of `io.k8s.api.core.v1.PodSpec`.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

fn slots(fields: &[Field]) -> Box<[u32]> {
    let mut slots = vec![0; (2 * fields.len()).max(1).next_power_of_two()];
    let mask = slots.len() - 1;
    for (at, field) in (1..).zip(fields) {
        let mut slot = hash(field.name.as_bytes()) & mask;
        while slots[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        slots[slot] = at;
    }
    slots.into()
}

/// From the first and the last eight bytes of a name and its length. Who writes an object chooses names to look for, and none to find.
fn hash(name: &[u8]) -> usize {
    let (first, last) = match (name.first_chunk(), name.last_chunk()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => (name.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)), 0),
    };
    let mixed = (first ^ last.rotate_left(29) ^ name.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize
}

impl std::ops::Deref for StructRef {
    type Target = Struct;

    fn deref(&self) -> &Struct {
        self.0.get().expect("linked before the schema is handed out")
    }
}

impl From<Struct> for StructRef {
    fn from(definition: Struct) -> Self {
        Self(Arc::new(OnceLock::from(definition)))
    }
}

impl Type {
    pub fn as_struct(&self) -> Option<&Struct> {
        match self {
            Self::Struct(definition) => Some(definition),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A definition of a custom resource may have as many as fit into a request.
    #[test]
    fn a_structure_may_have_very_many_fields() {
        const COUNT: usize = 70_000;
        let field = |number: usize| Field {
            name: format!("f{number}").into(),
            ty: Type::Any,
            merge: None,
            key_default: None,
            granular: false,
            required: false,
            zero: Zero::Kept,
        };
        let all = Struct::new("", (0..COUNT).map(field).collect());
        for number in 0..COUNT {
            let name = format!("f{number}");
            assert!(all.field(&name).is_some_and(|field| *field.name == *name), "{name}");
        }
        assert!(all.field(format!("f{COUNT}")).is_none());
    }
}
