//! What makes one resource different from all others.
//!
//! [`Strategy`] is written per kind, on its own type; every hook has a do-nothing default. [`AnyStrategy`] is the same
//! with the type erased, which is what the generic verbs call. Hooks are pure: they see objects and a [`Call`],
//! never the store. The order of a write is decode -> `apply_defaults` -> managed fields -> mutating admission ->
//! `apply_defaults` again -> `prepare_for_*` -> `validate_*` -> validating admission -> allocation -> encode.

use api::UserInfo;
use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::Metadata;
use serde_json::Value;

use super::action::Action;
use super::column::{Column, NAME_AND_AGE};
use super::object::{AnyObject, Object, Typed};
use super::parts::Parts;

/// Who asks, and when: all that a strategy may know of a request beyond the objects.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub user: &'a UserInfo,
    pub now: Timestamp,
}

/// How names of a resource are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// Lower case letters, digits, `-` and `.`; up to 253 characters.
    Subdomain,
    /// As `Subdomain` without dots; up to 63 characters.
    Label,
    /// As `Label`, beginning with a letter.
    Dns1035Label,
    /// Anything that fits in one segment of a URL path (RBAC, APIService parts, …).
    PathSegment,
    /// An IP address in canonical form.
    IpAddress,
}

/// A field that `fieldSelector` may name, besides `metadata.name` and `metadata.namespace`.
#[derive(Clone, Copy, Debug)]
pub struct SelectableField {
    /// As written in the selector: `spec.nodeName`.
    pub label: &'static str,
    /// Object keys down to the value: `["spec", "nodeName"]`.
    pub path: &'static [&'static str],
    /// Where the value is when the field is absent or empty.
    pub instead: Option<&'static [&'static str]>,
    /// The value when the field is absent (`false` for an unset boolean).
    pub default: &'static str,
}

impl SelectableField {
    pub const fn new(label: &'static str, path: &'static [&'static str]) -> Self {
        Self { label, path, instead: None, default: "" }
    }

    pub const fn or_at(mut self, instead: &'static [&'static str]) -> Self {
        self.instead = Some(instead);
        self
    }

    pub const fn or(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }
}

/// The fields that objects of a row can be selected by.
#[derive(Clone, Debug)]
pub enum Selectable {
    Fixed(&'static [SelectableField]),
    /// Labels, and the keys down to their values.
    Custom(std::sync::Arc<[(String, Vec<String>)]>),
}

impl Default for Selectable {
    fn default() -> Self {
        Self::Fixed(&[])
    }
}

impl Selectable {
    pub fn contains(&self, label: &str) -> bool {
        match self {
            Self::Fixed(fields) => fields.iter().any(|field| field.label == label),
            Self::Custom(fields) => fields.iter().any(|(known, _)| known == label),
        }
    }
}

/// What the delete verb does with an object that is not yet marked for deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// Remove at once (finalizers permitting).
    Immediate,
    /// Mark with a deletion timestamp this many seconds ahead; whoever runs the object removes it.
    Seconds(i64),
}

/// What a kind decides about its own deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    Remove,
    /// Write it as it has been changed; it goes later.
    Mark,
    /// Nothing changes: it is on its way out already.
    Pending,
}

pub trait Strategy: Send + Sync + 'static {
    type Object: Typed;

    /// Fills unset fields, as `SetDefaults_*` does upstream. Must be idempotent.
    fn apply_defaults(&self, _object: &mut Self::Object) {}

    /// Normalises a new object: drops what a client may not set. The status is already cleared unless
    /// [`Strategy::KEEPS_STATUS_ON_CREATE`].
    fn prepare_for_create(&self, _call: &Call<'_>, _object: &mut Self::Object) {}
    fn validate_create(&self, _object: &Self::Object) -> FieldErrors {
        FieldErrors::default()
    }

    /// Normalises an update. The status has already been taken from `old`.
    fn prepare_for_update(&self, _call: &Call<'_>, _new: &mut Self::Object, _old: &Self::Object) {}
    fn validate_update(&self, _new: &Self::Object, _old: &Self::Object) -> FieldErrors {
        FieldErrors::default()
    }

    /// Normalises a write to `/status`. Everything except metadata and status has already been taken from `old`.
    fn prepare_for_status_update(&self, _call: &Call<'_>, _new: &mut Self::Object, _old: &Self::Object) {}
    fn validate_status_update(&self, _new: &Self::Object, _old: &Self::Object) -> FieldErrors {
        FieldErrors::default()
    }
    /// The same, for kinds whose status must fit the time.
    fn validate_status_update_at(&self, new: &Self::Object, old: &Self::Object, _now: Timestamp) -> FieldErrors {
        self.validate_status_update(new, old)
    }

    /// Shown to the client (`Warning:` header) with every answer: why this version should not be used any more.
    fn deprecation(&self) -> Option<&str> {
        None
    }
    /// What a write to the subresource of `action` makes of its parent: `old` with one part taken from `new`. None where
    /// the kind has no such part.
    fn with_part(
        &self,
        _action: Action,
        _new: &Self::Object,
        _old: &Self::Object,
        _now: Timestamp,
    ) -> Option<Self::Object> {
        None
    }
    /// Normalises such a write, once nobody else changes it.
    fn prepare_for_part_update(&self, _action: Action, _new: &mut Self::Object, _old: &Self::Object) {}
    fn validate_part_update(&self, _action: Action, _new: &Self::Object, _old: &Self::Object) -> FieldErrors {
        FieldErrors::default()
    }

    /// Warnings shown to the client (`Warning:` header) for a create or, with `old`, an update.
    fn warnings(&self, _object: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        Vec::new()
    }

    /// Grace for a delete that asks for `requested` seconds.
    fn grace(&self, _object: &Self::Object, _requested: Option<i64>) -> Grace {
        Grace::Immediate
    }

    /// Has a say before an object is deleted, and may take the decision into its own hands.
    fn before_delete(&self, _object: &mut Self::Object, _now: Timestamp) -> Option<Deletion> {
        None
    }

    /// Whether something besides finalizers and grace keeps an object that is being deleted.
    fn is_held(&self, _object: &Self::Object) -> bool {
        false
    }

    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        &[]
    }

    /// Columns of the table representation; `cells` gives one value for each.
    fn columns(&self) -> &'static [Column] {
        NAME_AND_AGE
    }
    fn cells(&self, object: &Self::Object, now: Timestamp) -> Vec<Value> {
        super::column::name_and_age(object.metadata(), now)
    }
    /// The same of an encoded object. Kinds of which there are many read no more of it than they show.
    fn cells_of(&self, json: &[u8], now: Timestamp) -> Result<Vec<Value>, serde_json::Error> {
        let object = api::read::from_slice::<Self::Object>(&api::trim::without_managed_fields(json))?;
        Ok(self.cells(&object, now))
    }

    /// Kinds that are written whole (Endpoints-like) or whose creator owns the status.
    const KEEPS_STATUS_ON_CREATE: bool = false;
    /// `metadata.generation` starts at 1 and counts changes of anything but metadata and status.
    const COUNTS_GENERATIONS: bool = false;
    /// PUT to a name that does not exist creates it (Lease, Endpoints, Event, RBAC, … upstream).
    const CREATES_ON_UPDATE: bool = false;
    /// An update without a resource version overwrites whatever is there.
    const UNCONDITIONAL_UPDATE: bool = true;
    /// A delete that does not say what becomes of dependents leaves them, as the first clients of these kinds expect.
    const ORPHANS_BY_DEFAULT: bool = false;
    /// Annotations count as a change of generation too.
    const ANNOTATIONS_COUNT: bool = false;
}

/// A kind without rules of its own: stored as given, listed by name and age.
pub struct Plain<K>(std::marker::PhantomData<fn() -> K>);

impl<K> Default for Plain<K> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<K: Typed> Strategy for Plain<K> {
    type Object = K;
}

/// [`Strategy`] with the object's type erased.
pub trait AnyStrategy: Send + Sync {
    fn decode(&self, json: &[u8]) -> Result<AnyObject, serde_json::Error>;
    fn decode_value(&self, value: Value) -> Result<AnyObject, serde_json::Error>;
    /// Checks types, takes unknown fields out and returns their paths.
    fn check(&self, value: &mut Value) -> Result<Vec<String>, api::schema::TypeError>;
    /// Reads a body that is just what the schema says; none if anything about it needs to be said or made right.
    fn decode_fitting(&self, json: &[u8]) -> Option<AnyObject>;
    /// As `check`; lists and maps that are not written when they are empty go too.
    fn normalize(&self, value: &mut Value) -> Result<Vec<String>, api::schema::TypeError>;
    fn schema(&self) -> api::schema::StructRef;
    /// As `schema`, with the types of all scalars, for expressions about the kind.
    fn typed_schema(&self) -> api::schema::StructRef {
        self.schema()
    }

    fn apply_defaults(&self, object: &mut dyn Object);
    fn prepare_for_create(&self, call: &Call<'_>, object: &mut dyn Object);
    fn validate_create(&self, object: &dyn Object) -> FieldErrors;
    fn prepare_for_update(&self, call: &Call<'_>, new: &mut dyn Object, old: &dyn Object);
    fn validate_update(&self, new: &dyn Object, old: &dyn Object) -> FieldErrors;
    fn prepare_for_status_update(&self, call: &Call<'_>, new: &mut dyn Object, old: &dyn Object);
    fn validate_status_update(&self, new: &dyn Object, old: &dyn Object, now: Timestamp) -> FieldErrors;
    fn deprecation(&self) -> Option<&str>;
    fn with_part(&self, _: Action, _new: &dyn Object, _old: &dyn Object, _now: Timestamp) -> Option<AnyObject> {
        None
    }
    fn prepare_for_part_update(&self, _: Action, _new: &mut dyn Object, _old: &dyn Object) {}
    fn validate_part_update(&self, _: Action, _new: &dyn Object, _old: &dyn Object) -> FieldErrors {
        FieldErrors::default()
    }
    fn is_held(&self, _: &dyn Object) -> bool {
        false
    }
    fn warnings(&self, object: &dyn Object, old: Option<&dyn Object>) -> Vec<String>;
    fn grace(&self, object: &dyn Object, requested: Option<i64>) -> Grace;
    fn before_delete(&self, object: &mut dyn Object, now: Timestamp) -> Option<Deletion>;
    fn name_rule(&self) -> NameRule;
    fn selectable(&self) -> Selectable;
    /// Columns of the table representation as they are sent.
    fn column_definitions(&self) -> Vec<Value>;
    fn cells(&self, object: &dyn Object, now: Timestamp) -> Vec<Value>;
    fn cells_of(&self, json: &[u8], now: Timestamp) -> Result<Vec<Value>, serde_json::Error>;
    fn creates_on_update(&self) -> bool;
    fn unconditional_update(&self) -> bool;
    fn orphans_by_default(&self) -> bool;
}

/// Takes an object out of its box. A mismatch means a row of the table names the wrong strategy.
fn typed<K: Typed>(object: &dyn Object) -> &K {
    object.downcast_ref().expect("the object was decoded by this strategy")
}

fn typed_mut<K: Typed>(object: &mut dyn Object) -> &mut K {
    object.downcast_mut().expect("the object was decoded by this strategy")
}

impl<S: Strategy> AnyStrategy for S {
    fn decode(&self, json: &[u8]) -> Result<AnyObject, serde_json::Error> {
        Ok(Box::new(api::read::from_slice::<S::Object>(json)?))
    }

    fn decode_value(&self, value: Value) -> Result<AnyObject, serde_json::Error> {
        Ok(Box::new(api::codec::from_value::<S::Object>(&value)?))
    }

    fn check(&self, value: &mut Value) -> Result<Vec<String>, api::schema::TypeError> {
        api::schema::check(value, &api::schema::of::<S::Object>())
    }

    fn decode_fitting(&self, json: &[u8]) -> Option<AnyObject> {
        AnyStrategy::decode(self, &api::schema::fit(json, &self.schema())?).ok()
    }

    fn normalize(&self, value: &mut Value) -> Result<Vec<String>, api::schema::TypeError> {
        api::schema::normalize(value, &api::schema::of::<S::Object>())
    }

    fn schema(&self) -> api::schema::StructRef {
        api::schema::of::<S::Object>()
    }

    fn apply_defaults(&self, object: &mut dyn Object) {
        Strategy::apply_defaults(self, typed_mut(object));
    }

    fn prepare_for_create(&self, call: &Call<'_>, object: &mut dyn Object) {
        let object: &mut S::Object = typed_mut(object);
        if !S::KEEPS_STATUS_ON_CREATE {
            Parts::clear_status(object);
        }
        if S::COUNTS_GENERATIONS {
            object.metadata_mut().generation = Some(1);
        }
        Strategy::prepare_for_create(self, call, object);
    }

    fn validate_create(&self, object: &dyn Object) -> FieldErrors {
        Strategy::validate_create(self, typed(object))
    }

    fn prepare_for_update(&self, call: &Call<'_>, new: &mut dyn Object, old: &dyn Object) {
        let (new, old): (&mut S::Object, &S::Object) = (typed_mut(new), typed(old));
        Parts::copy_status(new, old);
        Strategy::prepare_for_update(self, call, new, old);
        if S::COUNTS_GENERATIONS {
            let generation = old.metadata().generation;
            let annotations = |object: &S::Object| object.metadata().annotations.clone().unwrap_or_default();
            let is_annotated = S::ANNOTATIONS_COUNT && annotations(new) != annotations(old);
            let is_same = !is_annotated && same_but_metadata(new, old);
            new.metadata_mut().generation = if is_same { generation } else { Some(generation.unwrap_or(0) + 1) };
        }
    }

    fn validate_update(&self, new: &dyn Object, old: &dyn Object) -> FieldErrors {
        Strategy::validate_update(self, typed(new), typed(old))
    }

    fn prepare_for_status_update(&self, call: &Call<'_>, new: &mut dyn Object, old: &dyn Object) {
        let (new, old): (&mut S::Object, &S::Object) = (typed_mut(new), typed(old));
        let mut kept = old.clone();
        Parts::copy_status(&mut kept, new);
        *kept.metadata_mut() = std::mem::take(new.metadata_mut());
        *new = kept;
        Strategy::prepare_for_status_update(self, call, new, old);
    }

    fn validate_status_update(&self, new: &dyn Object, old: &dyn Object, now: Timestamp) -> FieldErrors {
        Strategy::validate_status_update_at(self, typed(new), typed(old), now)
    }

    fn deprecation(&self) -> Option<&str> {
        Strategy::deprecation(self)
    }

    fn with_part(&self, action: Action, new: &dyn Object, old: &dyn Object, now: Timestamp) -> Option<AnyObject> {
        Strategy::with_part(self, action, typed(new), typed(old), now).map(|object| Box::new(object) as AnyObject)
    }

    fn prepare_for_part_update(&self, action: Action, new: &mut dyn Object, old: &dyn Object) {
        Strategy::prepare_for_part_update(self, action, typed_mut(new), typed(old));
    }

    fn validate_part_update(&self, action: Action, new: &dyn Object, old: &dyn Object) -> FieldErrors {
        Strategy::validate_part_update(self, action, typed(new), typed(old))
    }

    fn is_held(&self, object: &dyn Object) -> bool {
        Strategy::is_held(self, typed(object))
    }

    fn warnings(&self, object: &dyn Object, old: Option<&dyn Object>) -> Vec<String> {
        Strategy::warnings(self, typed(object), old.map(typed))
    }

    fn grace(&self, object: &dyn Object, requested: Option<i64>) -> Grace {
        Strategy::grace(self, typed(object), requested)
    }

    fn before_delete(&self, object: &mut dyn Object, now: Timestamp) -> Option<Deletion> {
        Strategy::before_delete(self, typed_mut(object), now)
    }

    fn name_rule(&self) -> NameRule {
        Strategy::name_rule(self)
    }

    fn selectable(&self) -> Selectable {
        Selectable::Fixed(self.selectable_fields())
    }

    fn column_definitions(&self) -> Vec<Value> {
        self.columns().iter().map(Column::definition).collect()
    }

    fn cells(&self, object: &dyn Object, now: Timestamp) -> Vec<Value> {
        Strategy::cells(self, typed(object), now)
    }

    fn cells_of(&self, json: &[u8], now: Timestamp) -> Result<Vec<Value>, serde_json::Error> {
        Strategy::cells_of(self, json, now)
    }

    fn creates_on_update(&self) -> bool {
        S::CREATES_ON_UPDATE
    }

    fn unconditional_update(&self) -> bool {
        S::UNCONDITIONAL_UPDATE
    }

    fn orphans_by_default(&self) -> bool {
        S::ORPHANS_BY_DEFAULT
    }
}

/// Whether an update changes nothing that counts as a new generation. Both wear the old metadata for the comparison.
fn same_but_metadata<K: Typed>(new: &mut K, old: &K) -> bool {
    let metadata = std::mem::replace(new.metadata_mut(), old.metadata().clone());
    let is_same = new == old;
    *new.metadata_mut() = metadata;
    is_same
}
