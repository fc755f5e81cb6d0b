//! Secret: configuration data that is not for everyone's eyes.

use api::field::FieldErrors;
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::config_map::{IMMUTABLE_DATA, MAX_DATA_BYTES};
use crate::column::Column;
use crate::unset::{or_empty, set_text};
use crate::{Call, SelectableField, Strategy, cells};

pub struct SecretStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Type", "What the data is for."),
    Column::string("Data", "Number of keys."),
    Column::AGE,
];

impl Strategy for SecretStrategy {
    type Object = Secret;

    fn apply_defaults(&self, secret: &mut Secret) {
        set_text(&mut secret.type_, "Opaque");
        // Write-only convenience: plain text that wins over `data`.
        if let Some(plain) = secret.string_data.take() {
            let data = secret.data.get_or_insert_default();
            for (key, value) in plain {
                data.insert(key, k8s_openapi::ByteString(value.into_bytes()));
            }
        }
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut Secret, old: &Secret) {
        // A client that knows nothing of types does not mean to change it.
        if or_empty(&new.type_).is_empty() {
            new.type_.clone_from(&old.type_);
        }
    }

    fn validate_create(&self, secret: &Secret) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let none = Default::default();
        let data = secret.data.as_ref().unwrap_or(&none);
        for key in data.keys() {
            errors.invalid_each(format!("data[{key}]"), key, validation::config_map_key(key));
        }
        if data.values().map(|value| value.0.len()).sum::<usize>() > MAX_DATA_BYTES {
            errors.too_long("data", MAX_DATA_BYTES);
        }
        let needs = |errors: &mut FieldErrors, key: &str| {
            if !data.contains_key(key) {
                errors.required(format!("data[{key}]"), "");
            }
        };
        match or_empty(&secret.type_) {
            "kubernetes.io/service-account-token" => {
                const NAME: &str = "kubernetes.io/service-account.name";
                let named = secret.metadata.annotations.as_ref().and_then(|annotations| annotations.get(NAME));
                if named.is_none_or(|name| name.is_empty()) {
                    errors.required(format!("metadata.annotations[{NAME}]"), "");
                }
            }
            kind @ ("kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson") => {
                let key = if kind.ends_with("json") { ".dockerconfigjson" } else { ".dockercfg" };
                match data.get(key) {
                    None => errors.required(format!("data[{key}]"), ""),
                    Some(value) => {
                        if serde_json::from_slice::<serde_json::Map<String, Value>>(&value.0).is_err() {
                            let detail = "unexpected end of JSON input";
                            errors.invalid(format!("data[{key}]"), "<secret contents redacted>", detail);
                        }
                    }
                }
            }
            "kubernetes.io/basic-auth" if !data.contains_key("username") && !data.contains_key("password") => {
                needs(&mut errors, "username");
                needs(&mut errors, "password");
            }
            "kubernetes.io/ssh-auth" if data.get("ssh-privatekey").is_none_or(|key| key.0.is_empty()) => {
                errors.required("data[ssh-privatekey]", "");
            }
            "kubernetes.io/tls" => {
                needs(&mut errors, "tls.crt");
                needs(&mut errors, "tls.key");
            }
            _ => {}
        }
        errors
    }

    fn validate_update(&self, new: &Secret, old: &Secret) -> FieldErrors {
        let mut errors = FieldErrors::default();
        errors.immutable("type", &new.type_, &old.type_);
        if old.immutable == Some(true) {
            if new.immutable != Some(true) {
                errors.forbidden("immutable", IMMUTABLE_DATA);
            }
            if new.data != old.data {
                errors.forbidden("data", IMMUTABLE_DATA);
            }
        }
        errors.extend(self.validate_create(new));
        errors
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const { &[SelectableField::new("type", &["type"])] }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, secret: &Secret, now: Timestamp) -> Vec<Value> {
        vec![
            cells::name(&secret.metadata),
            json!(or_empty(&secret.type_)),
            json!(secret.data.as_ref().map_or(0, |data| data.len())),
            cells::age(&secret.metadata, now),
        ]
    }
}
