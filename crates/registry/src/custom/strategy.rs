//! The one strategy of all custom kinds: what its schema says, and the rules that hold for every object.

use std::sync::Arc;

use api::field::FieldErrors;
use api::schema::{StructRef, TypeError};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::columns::Columns;
use super::object::{CustomObject, TypeMeta};
use super::schema::Schema;
use super::{expressions, merge, shape, validate};
use crate::scale_paths::ScalePaths;
use crate::strategy::Selectable;
use crate::{AnyObject, AnyStrategy, Call, Deletion, Grace, NameRule, Object};

/// One version of a custom kind.
pub(super) struct CustomStrategy {
    pub(super) reader: Arc<Reader>,
    /// What names must be beyond what names are.
    pub(super) metadata: Option<Schema>,
    pub(super) merge: StructRef,
    pub(super) columns: Columns,
    pub(super) selectable: Selectable,
    pub(super) has_status: bool,
    pub(super) scale: Option<ScalePaths>,
    /// Shown to whoever uses a version that will go.
    pub(super) deprecation: Option<String>,
}

/// Makes of what is stored an object of one version: by name, and by today's schema.
pub(super) struct Reader {
    pub(super) of: Arc<TypeMeta>,
    pub(super) schema: Schema,
    /// Everything stored was written by this schema, in this version: it needs no look.
    pub(super) is_as_stored: bool,
}

impl Reader {
    pub(super) fn read(&self, value: &mut Value) {
        let Some(object) = value.as_object_mut() else { return };
        object.insert("apiVersion".to_owned(), self.of.api_version.as_str().into());
        if !self.is_as_stored {
            // Metadata was checked when it was written.
            let _ = shape::prune(&self.schema, object);
            shape::fill(&self.schema, object);
        }
    }
}

/// Takes an object out of its box. A mismatch means that a row names the wrong strategy.
fn custom(object: &dyn Object) -> &CustomObject {
    object.as_any().downcast_ref().expect("the object was decoded by this strategy")
}

fn custom_mut(object: &mut dyn Object) -> &mut CustomObject {
    object.as_any_mut().downcast_mut().expect("the object was decoded by this strategy")
}

impl CustomStrategy {
    fn validate(&self, new: &CustomObject, old: Option<&CustomObject>) -> FieldErrors {
        let mut errors = validate::validate(&self.reader.schema, &new.rest, old.map(|old| &old.rest));
        if let Some(metadata) = &self.metadata {
            let named = [("name", &new.meta.name), ("generateName", &new.meta.generate_name)];
            let named =
                named.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value.as_deref()?.into())));
            let object = Map::from_iter([("metadata".to_owned(), Value::Object(named.collect()))]);
            errors.extend(validate::validate(metadata, &object, None));
        }
        if let Some(scale) = &self.scale {
            let replicas = scale.replicas(&new.rest);
            let path = scale.spec.join(".");
            if replicas < 0 {
                errors.invalid(path, replicas, "should be a non-negative integer");
            } else if replicas > i64::from(i32::MAX) {
                errors.invalid(path, replicas, format!("should be less than or equal to {}", i32::MAX));
            }
        }
        if self.reader.schema.has_expressions {
            self.validate_expressions(&mut errors, new, old);
        }
        errors
    }

    /// Rules in CEL are only for objects that are otherwise as they should be.
    fn validate_expressions(&self, errors: &mut FieldErrors, new: &CustomObject, old: Option<&CustomObject>) {
        if !errors.is_empty() {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing \
                          errors to complete validation";
            return errors.invalid("<nil>", Value::Null, detail);
        }
        let whole = |object: &CustomObject| {
            let mut fields = object.rest.clone();
            fields.insert("apiVersion".to_owned(), self.reader.of.api_version.as_str().into());
            fields.insert("kind".to_owned(), self.reader.of.kind.as_str().into());
            let named = [("name", &object.meta.name), ("generateName", &object.meta.generate_name)];
            let named =
                named.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value.as_deref()?.into())));
            fields.insert("metadata".to_owned(), Value::Object(named.collect()));
            Value::Object(fields)
        };
        errors.extend(expressions::validate(&self.reader.schema, &whole(new), old.map(whole).as_ref()));
    }

    /// Whether anything but metadata, and a status of its own, differs.
    fn same_generation(&self, new: &CustomObject, old: &CustomObject) -> bool {
        if !self.has_status {
            return new.rest == old.rest;
        }
        let counted = |(name, _): &(&String, &Value)| *name != "status";
        new.rest.iter().filter(counted).eq(old.rest.iter().filter(counted))
    }
}

impl AnyStrategy for CustomStrategy {
    fn decode(&self, json: &[u8]) -> Result<AnyObject, serde_json::Error> {
        let mut value: Value = serde_json::from_slice(json)?;
        if !self.reader.is_as_stored {
            self.reader.read(&mut value);
        }
        self.decode_value(value)
    }

    fn decode_value(&self, value: Value) -> Result<AnyObject, serde_json::Error> {
        Ok(Box::new(CustomObject::new(&self.reader.of, value)?))
    }

    fn check(&self, value: &mut Value) -> Result<Vec<String>, TypeError> {
        api::schema::check(value, &self.merge)
    }

    /// Always the long way: repeated fields must be seen.
    fn decode_fitting(&self, _: &[u8]) -> Option<AnyObject> {
        None
    }

    fn normalize(&self, value: &mut Value) -> Result<Vec<String>, TypeError> {
        match value {
            Value::Object(object) => shape::prune(&self.reader.schema, object),
            _ => Ok(Vec::new()),
        }
    }

    fn schema(&self) -> StructRef {
        self.merge.clone()
    }

    fn typed_schema(&self) -> StructRef {
        merge::typed_root(&self.merge.name, &self.reader.schema)
    }

    fn apply_defaults(&self, object: &mut dyn Object) {
        shape::fill(&self.reader.schema, &mut custom_mut(object).rest);
    }

    fn prepare_for_create(&self, _: &Call<'_>, object: &mut dyn Object) {
        let object = custom_mut(object);
        if self.has_status {
            object.rest.remove("status");
        }
        object.meta.generation = Some(1);
    }

    fn validate_create(&self, object: &dyn Object) -> FieldErrors {
        self.validate(custom(object), None)
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut dyn Object, old: &dyn Object) {
        let (new, old) = (custom_mut(new), custom(old));
        if self.has_status {
            match old.rest.get("status") {
                Some(status) => drop(new.rest.insert("status".to_owned(), status.clone())),
                None => drop(new.rest.remove("status")),
            }
        }
        let generation = old.meta.generation;
        let is_same = self.same_generation(new, old);
        new.meta.generation = if is_same { generation } else { Some(generation.unwrap_or(0) + 1) };
    }

    fn validate_update(&self, new: &dyn Object, old: &dyn Object) -> FieldErrors {
        self.validate(custom(new), Some(custom(old)))
    }

    /// Only the status comes through here.
    fn prepare_for_status_update(&self, _: &Call<'_>, new: &mut dyn Object, old: &dyn Object) {
        let (new, old) = (custom_mut(new), custom(old));
        let status = new.rest.remove("status");
        new.rest.clone_from(&old.rest);
        new.meta.clone_from(&old.meta);
        match status {
            Some(status) => drop(new.rest.insert("status".to_owned(), status)),
            None => drop(new.rest.remove("status")),
        }
    }

    fn validate_status_update(&self, new: &dyn Object, old: &dyn Object, _: Timestamp) -> FieldErrors {
        self.validate(custom(new), Some(custom(old)))
    }

    fn deprecation(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }

    fn warnings(&self, _: &dyn Object, _: Option<&dyn Object>) -> Vec<String> {
        Vec::new()
    }

    fn grace(&self, _: &dyn Object, _: Option<i64>) -> Grace {
        Grace::Immediate
    }

    fn before_delete(&self, _: &mut dyn Object, _: Timestamp) -> Option<Deletion> {
        None
    }

    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    fn selectable(&self) -> Selectable {
        self.selectable.clone()
    }

    fn column_definitions(&self) -> Vec<Value> {
        self.columns.definitions()
    }

    fn cells_of(&self, json: &[u8], now: Timestamp) -> Result<Vec<Value>, serde_json::Error> {
        Ok(self.cells(&*self.decode(json)?, now))
    }

    fn cells(&self, object: &dyn Object, now: Timestamp) -> Vec<Value> {
        self.columns.cells(custom(object), now)
    }

    fn creates_on_update(&self) -> bool {
        false
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn orphans_by_default(&self) -> bool {
        false
    }
}
