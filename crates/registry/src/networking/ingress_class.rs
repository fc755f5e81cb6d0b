//! IngressClass: which controller serves which ingresses.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::IngressClass;
use serde_json::{Value, json};

use crate::column::Column;
use crate::metadata::domain_prefixed_path;
use crate::unset::{or_empty, set_text, text};
use crate::{Strategy, cells};

pub struct IngressClassStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Controller", "Who serves the class."),
    Column::string("Parameters", "More configuration for the controller."),
    Column::AGE,
];

const MAX_CONTROLLER: usize = 250;

impl Strategy for IngressClassStrategy {
    type Object = IngressClass;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, class: &mut IngressClass) {
        if let Some(parameters) = class.spec.as_mut().and_then(|spec| spec.parameters.as_mut()) {
            set_text(&mut parameters.scope, "Cluster");
        }
    }

    fn validate_create(&self, class: &IngressClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = class.spec.clone().unwrap_or_default();
        let controller = or_empty(&spec.controller);
        if controller.len() > MAX_CONTROLLER {
            errors.too_long("spec.controller", MAX_CONTROLLER);
        }
        domain_prefixed_path(&mut errors, &Path::new("spec.controller"), controller);
        if let Some(parameters) = &spec.parameters {
            for (name, value) in [("kind", &parameters.kind), ("name", &parameters.name)] {
                if value.is_empty() {
                    errors.required(format!("spec.parameters.{name}"), "");
                }
            }
            match (or_empty(&parameters.scope), text(&parameters.namespace)) {
                ("Namespace", None) => {
                    errors.required("spec.parameters.namespace", "`parameters.scope` is set to 'Namespace'")
                }
                ("Cluster", Some(_)) => {
                    errors.forbidden("spec.parameters.namespace", "`parameters.scope` is set to 'Cluster'")
                }
                ("Namespace" | "Cluster", _) => {}
                (other, _) => errors.not_supported("spec.parameters.scope", other, &["Cluster", "Namespace"]),
            }
        }
        errors
    }

    fn validate_update(&self, new: &IngressClass, old: &IngressClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let controller = |class: &IngressClass| class.spec.clone().unwrap_or_default().controller.unwrap_or_default();
        errors.immutable("spec.controller", &controller(new), &controller(old));
        errors.extend(self.validate_create(new));
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, class: &IngressClass, now: Timestamp) -> Vec<Value> {
        let spec = class.spec.clone().unwrap_or_default();
        let parameters = spec.parameters.as_ref().map_or("<none>".to_owned(), |reference| {
            let kind = &reference.kind;
            match text(&reference.api_group) {
                Some(group) => format!("{kind}.{group}/{}", reference.name),
                None => format!("{kind}/{}", reference.name),
            }
        });
        vec![
            cells::name(&class.metadata),
            json!(or_empty(&spec.controller)),
            json!(parameters),
            cells::age(&class.metadata, now),
        ]
    }
}
