//! Our spans as OTLP's. Pure.

use std::collections::BTreeMap;

use trace::{Exported, Outcome, Place, Stage};

use crate::messages::{
    AnyValue, Code, ExportTraceServiceRequest, InstrumentationScope, KeyValue, Kind, Link, Resource, ResourceSpans,
    ScopeSpans, Span, Status, Value,
};

const SCOPE: &str = "cox.trace";

/// A request with these spans, by who made them.
pub(crate) fn request(spans: &[Exported], instance: &str) -> ExportTraceServiceRequest {
    let mut actors: BTreeMap<&str, Vec<Span>> = BTreeMap::new();
    for exported in spans {
        let of = actors.entry(&exported.span.actor).or_default();
        of.push(span(exported));
        of.extend(steps(exported));
    }
    let resource_spans = actors.into_iter().map(|(actor, spans)| ResourceSpans {
        resource: Some(Resource {
            attributes: vec![
                text("service.name", service(actor)),
                text("service.namespace", "coxswain"),
                text("service.instance.id", instance),
            ],
        }),
        scope_spans: vec![ScopeSpans {
            scope: Some(InstrumentationScope { name: SCOPE.into(), version: env!("CARGO_PKG_VERSION").into() }),
            spans,
        }],
    });
    ExportTraceServiceRequest { resource_spans: resource_spans.collect() }
}

/// As upstream's components call themselves here.
fn service(actor: &str) -> &str {
    if actor == "kube-apiserver" { "apiserver" } else { actor }
}

fn span(exported: &Exported) -> Span {
    let (place, of) = (&exported.place, &exported.span);
    let mut attributes: Vec<KeyValue> = of.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    let number = of.stage.number();
    for (name, value) in [("k8s.object", of.object.as_str()), ("cox.stage", number), ("cox.detail", &of.detail)] {
        if !value.is_empty() {
            attributes.push(text(name, value));
        }
    }
    if let Some(cause) = of.causes.first().filter(|_| place.parent.is_none()) {
        attributes.push(text("cox.cause", &cause.to_string()));
    }
    let (code, message) = match of.outcome {
        Outcome::Failed => (Code::Error, of.detail.clone()),
        Outcome::Dropped => (Code::Error, "given up by whoever asked for it".to_owned()),
        Outcome::Ok | Outcome::Running => (Code::Unset, String::new()),
    };
    let link = place.link.iter().map(|to| Link { trace_id: trace_id(to.trace), span_id: span_id(to.span) });
    // Further causes, where they are of the same trace or nobody knows better.
    let also = of.causes.iter().skip(1);
    let also = also.map(|cause| Link { trace_id: trace_id(place.trace), span_id: span_id(cause.to_bits()) });
    Span {
        trace_id: trace_id(place.trace),
        span_id: span_id(of.id.to_bits()),
        parent_span_id: place.parent.map(span_id).unwrap_or_default(),
        name: if of.title.is_empty() { of.stage.title().to_owned() } else { of.title.clone() },
        kind: if of.stage == Stage::Request { Kind::Server } else { Kind::Internal }.into(),
        start_time_unix_nano: of.start,
        end_time_unix_nano: of.end(),
        attributes,
        links: link.chain(also).collect(),
        status: Some(Status { message, code: code.into() }),
    }
}

/// The steps inside a span, as its parts.
fn steps(exported: &Exported) -> impl Iterator<Item = Span> {
    let Place { trace, .. } = exported.place;
    let parent = exported.span.id.to_bits();
    exported.span.laps.iter().enumerate().map(move |(index, lap)| {
        let name = lap.name.text();
        Span {
            trace_id: trace_id(trace),
            span_id: span_id(part_of(parent, index as u64)),
            parent_span_id: span_id(parent),
            name: if name.is_empty() { lap.stage.title().to_owned() } else { format!("{} {name}", lap.stage.title()) },
            kind: Kind::Internal.into(),
            start_time_unix_nano: lap.start,
            end_time_unix_nano: lap.start.saturating_add(lap.duration),
            attributes: vec![text("cox.stage", lap.stage.number())],
            links: Vec::new(),
            status: lap.failed.then(|| Status { message: String::new(), code: Code::Error.into() }),
        }
    })
}

/// The name of a step: the same each time, and that of no other.
fn part_of(span: u64, index: u64) -> u64 {
    let mixed = (span ^ (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 31).max(1)
}

fn trace_id(trace: u128) -> Vec<u8> {
    trace.to_be_bytes().to_vec()
}

fn span_id(span: u64) -> Vec<u8> {
    span.to_be_bytes().to_vec()
}

fn text(name: &str, value: &str) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(Value::Text(value.to_owned())) }) }
}

fn attribute(name: &str, value: &str) -> KeyValue {
    match value.parse().ok().filter(|_| name.ends_with("status_code")) {
        None => text(name, value),
        Some(number) => KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(Value::Number(number)) }) },
    }
}

#[cfg(test)]
mod tests {
    use trace::{Causes, Recorder, Work, lap};

    use super::*;

    #[tokio::test]
    async fn spans_keep_their_places_times_and_outcomes() {
        let recorder = Recorder::new(10_000);
        let exporting = recorder.export(1_000_000);
        let mut work = Work::root(&recorder, &Causes::default(), Stage::Request, "kube-apiserver", "pods/d/a");
        work.title("POST /api/v1/namespaces/{:namespace}/pods");
        work.attribute("http.status_code", 422);
        work.run(async { lap(Stage::Decode) }).await;
        work.fail("no");
        let made = request(&exporting.take(10), "me");
        let of = &made.resource_spans[0];
        assert_eq!(of.resource.as_ref().unwrap().attributes[0], text("service.name", "apiserver"));
        let [server, step] = of.scope_spans[0].spans.as_slice() else { unreachable!("a request and its step") };
        assert_eq!((server.trace_id.len(), server.span_id.len(), server.parent_span_id.len()), (16, 8, 0));
        assert_eq!((step.parent_span_id.as_slice(), &step.trace_id), (server.span_id.as_slice(), &server.trace_id));
        assert_eq!((server.name.as_str(), server.kind()), ("POST /api/v1/namespaces/{:namespace}/pods", Kind::Server));
        assert_eq!(server.attributes[0].value, Some(AnyValue { value: Some(Value::Number(422)) }));
        let status = server.status.as_ref().unwrap();
        assert_eq!((status.code(), status.message.as_str()), (Code::Error, "no"));
        assert!(server.start_time_unix_nano <= step.start_time_unix_nano);
        assert!(step.end_time_unix_nano <= server.end_time_unix_nano);
    }
}
