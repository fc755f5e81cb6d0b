//! The walk for other people's tools: an OpenTelemetry export request in OTLP's JSON form, which any collector takes at
//! `/v1/traces`. Pure; sending it is one `curl`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::walk::{Step, Walk};

/// Spans of work inside a process; who calls whom is in the causes.
const INTERNAL: u8 = 1;
const UNSET: u8 = 0;
const OK: u8 = 1;
const ERROR: u8 = 2;

/// The export of one walk, which may come in pieces.
#[derive(Debug, Default)]
pub struct Export {
    /// Named after the walk's object and its first span.
    trace: Option<String>,
}

impl Export {
    pub fn request(&mut self, piece: &Walk) -> Value {
        let first = piece.spans.first().map_or("", |step| step.id.as_str());
        let name = || format!("{:016x}{:016x}", hash(&piece.object), hash(first));
        request(piece, self.trace.get_or_insert_with(name))
    }
}

/// One resource per actor, each with its spans. The first cause is a span's parent, the others are links.
fn request(walk: &Walk, trace: &str) -> Value {
    let mut actors: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for step in &walk.spans {
        actors.entry(&step.actor).or_default().push(span(step, trace));
    }
    let resources = actors.into_iter().map(|(actor, spans)| {
        json!({
            "resource": {"attributes": [attribute("service.name", actor), attribute("service.namespace", "coxswain")]},
            "scopeSpans": [{"scope": {"name": "cox.trace"}, "spans": spans}],
        })
    });
    json!({"resourceSpans": resources.collect::<Vec<_>>()})
}

fn span(step: &Step, trace: &str) -> Value {
    let start = step.start.parse::<jiff::Timestamp>().map_or(0, |start| start.as_nanosecond());
    let end = start + (step.duration * 1e9) as i128;
    let texts = [("k8s.object", &step.object), ("cox.stage", &step.stage), ("cox.detail", &step.detail)];
    let mut attributes: Vec<Value> =
        texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| attribute(name, text)).collect();
    attributes.push(json!({"key": "cox.critical", "value": {"boolValue": step.critical}}));
    let status = match step.outcome.as_str() {
        "ok" => OK,
        "failed" => ERROR,
        _ => UNSET,
    };
    let links: Vec<Value> = step.also.iter().map(|id| json!({"traceId": trace, "spanId": span_id(id)})).collect();
    json!({
        "traceId": trace,
        "spanId": span_id(&step.id),
        "parentSpanId": step.cause.as_deref().map(span_id).unwrap_or_default(),
        "name": step.name,
        "kind": INTERNAL,
        // Numbers of 64 bits are texts in JSON.
        "startTimeUnixNano": start.to_string(),
        "endTimeUnixNano": end.to_string(),
        "attributes": attributes,
        "links": links,
        "status": {"code": status},
    })
}

fn attribute(name: &str, text: &str) -> Value {
    json!({"key": name, "value": {"stringValue": text}})
}

/// Eight bytes in hexadecimal, never all zero. Ids of spans are such already; those of commits and of steps inside are not.
fn span_id(id: &str) -> String {
    let is_hex = id.len() == 16 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex { id.to_owned() } else { format!("{:016x}", hash(id).max(1)) }
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_keep_their_causes_times_and_outcomes() {
        let step = |id: &str, cause: Option<&str>, actor: &str| Step {
            id: id.into(),
            cause: cause.map(str::to_owned),
            actor: actor.into(),
            stage: "3.1".into(),
            name: "commit".into(),
            object: "pods/default/web".into(),
            start: "2026-01-02T03:04:05.000000006Z".into(),
            duration: 0.5,
            outcome: "ok".into(),
            ..Step::default()
        };
        let mut last = step("rv8", Some("00000000000000ab"), "kube-apiserver");
        (last.outcome, last.also) = ("failed".into(), vec!["rv7".into()]);
        let walk =
            Walk { object: "pods/default/web".into(), spans: vec![step("00000000000000ab", None, "kubectl"), last] };
        let request = Export::default().request(&walk);
        let resources = request["resourceSpans"].as_array().unwrap();
        assert_eq!(resources.len(), 2);
        assert_eq!(resources[1]["resource"]["attributes"][0]["value"]["stringValue"], "kubectl");
        let (server, client) = (&resources[0]["scopeSpans"][0]["spans"][0], &resources[1]["scopeSpans"][0]["spans"][0]);
        assert_eq!(client["spanId"], "00000000000000ab");
        assert_eq!((&server["parentSpanId"], &server["traceId"]), (&client["spanId"], &client["traceId"]));
        assert_eq!(client["traceId"].as_str().unwrap().len(), 32);
        assert_eq!(server["spanId"].as_str().unwrap().len(), 16);
        assert_eq!(server["links"][0]["spanId"], span_id("rv7"));
        assert_eq!(client["startTimeUnixNano"], "1767323045000000006");
        assert_eq!(client["endTimeUnixNano"], "1767323045500000006");
        assert_eq!((&client["status"]["code"], &server["status"]["code"]), (&json!(OK), &json!(ERROR)));
    }
}
