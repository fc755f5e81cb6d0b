//! Event: something happened to an object. Kept for a while, then forgotten.

use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::{or_empty, text};
use crate::{SelectableField, Strategy, cells};

pub struct EventStrategy;

const COLUMNS: &[Column] = &[
    Column::string("Last Seen", "When it last happened."),
    Column::string("Type", "Normal or Warning."),
    Column::string("Reason", "Why, in one word."),
    Column::string("Object", "What it happened to."),
    Column::string("Subobject", "Which part of the object.").wide(),
    Column::string("Source", "Who saw it.").wide(),
    Column::string("Message", "What happened."),
    Column::string("First Seen", "When it first happened.").wide(),
    Column::string("Count", "How often it happened.").wide(),
    Column { format: "name", ..Column::string("Name", "The name of the event.").wide() },
];

impl Strategy for EventStrategy {
    type Object = Event;
    const CREATES_ON_UPDATE: bool = true;

    fn validate_create(&self, event: &Event) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let namespace = or_empty(&event.metadata.namespace);
        let involved = or_empty(&event.involved_object.namespace);
        // Events about cluster-wide objects live in the default namespace.
        if involved.is_empty() {
            if !matches!(namespace, "" | "default" | "kube-system") {
                errors.invalid("involvedObject.namespace", involved, "does not match event.namespace");
            }
        } else if involved != namespace {
            errors.invalid("involvedObject.namespace", involved, "does not match event.namespace");
        }
        errors
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const {
            &[
                SelectableField::new("involvedObject.kind", &["involvedObject", "kind"]),
                SelectableField::new("involvedObject.namespace", &["involvedObject", "namespace"]),
                SelectableField::new("involvedObject.name", &["involvedObject", "name"]),
                SelectableField::new("involvedObject.uid", &["involvedObject", "uid"]),
                SelectableField::new("involvedObject.apiVersion", &["involvedObject", "apiVersion"]),
                SelectableField::new("involvedObject.resourceVersion", &["involvedObject", "resourceVersion"]),
                SelectableField::new("involvedObject.fieldPath", &["involvedObject", "fieldPath"]),
                SelectableField::new("reason", &["reason"]),
                SelectableField::new("reportingComponent", &["reportingComponent"]),
                SelectableField::new("source", &["source", "component"]).or_at(&["reportingComponent"]),
                SelectableField::new("type", &["type"]),
                // The same under the names of `events.k8s.io`.
                SelectableField::new("regarding.kind", &["involvedObject", "kind"]),
                SelectableField::new("regarding.namespace", &["involvedObject", "namespace"]),
                SelectableField::new("regarding.name", &["involvedObject", "name"]),
                SelectableField::new("regarding.uid", &["involvedObject", "uid"]),
                SelectableField::new("regarding.apiVersion", &["involvedObject", "apiVersion"]),
                SelectableField::new("regarding.resourceVersion", &["involvedObject", "resourceVersion"]),
                SelectableField::new("regarding.fieldPath", &["involvedObject", "fieldPath"]),
                SelectableField::new("reportingController", &["reportingComponent"]),
            ]
        }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, event: &Event, now: Timestamp) -> Vec<Value> {
        let since = |at: Option<Timestamp>| {
            at.map_or("<unknown>".to_owned(), |at| api::duration::human(now.as_second() - at.as_second()))
        };
        let event_time = event.event_time.as_ref().map(|time| time.0);
        let first = event.first_timestamp.as_ref().map(|time| time.0).or(event_time);
        let mut last = event.last_timestamp.as_ref().map(|time| time.0).or(first);
        let mut count = event.count.filter(|&count| count != 0).unwrap_or(1);
        if let Some(series) = &event.series {
            last = series.last_observed_time.as_ref().map(|time| time.0).or(last);
            count = series.count.unwrap_or(count);
        }
        let kind = or_empty(&event.involved_object.kind).to_lowercase();
        let target = match text(&event.involved_object.name) {
            Some(name) => format!("{kind}/{name}"),
            None => kind,
        };
        let source = event.source.clone().unwrap_or_default();
        let component = text(&source.component).or(text(&event.reporting_component)).unwrap_or_default();
        let host = text(&source.host).or(text(&event.reporting_instance));
        let source = host.map_or(component.to_owned(), |host| format!("{component}, {host}"));
        vec![
            json!(since(last)),
            json!(or_empty(&event.type_)),
            json!(or_empty(&event.reason)),
            json!(target),
            json!(or_empty(&event.involved_object.field_path)),
            json!(source),
            json!(or_empty(&event.message).trim()),
            json!(since(first)),
            json!(count),
            cells::name(&event.metadata),
        ]
    }
}
