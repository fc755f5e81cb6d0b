//! What the server is told about a command: when it began and what it did before it asked, for the trace.
//!
//! It travels in a header of every write, so that the walk of an object begins at the words that were typed, and no
//! request is sent for it. Servers that know nothing of it pass over it.

use std::cell::{Cell, RefCell};

use http::{HeaderMap, HeaderValue, Method};
use trace::{Lap, Name, Span, Stage};

/// A header must stay small; a command that reads much before it writes has many steps.
const MAX_LAPS: usize = 20;

pub(crate) struct CommandSpan {
    span: RefCell<Span>,
    /// When the last step ended.
    last: Cell<u64>,
}

impl CommandSpan {
    pub(crate) fn new(command: &str) -> CommandSpan {
        let mut span = Span::new(Stage::Command, "kubectl", "");
        span.detail = command.to_owned();
        CommandSpan { last: Cell::new(span.start), span: RefCell::new(span) }
    }

    /// A step ends here; it began where the last one ended.
    pub(crate) fn lap(&self, stage: Stage) {
        let end = trace::now();
        let start = self.last.replace(end);
        let laps = &mut self.span.borrow_mut().laps;
        if laps.len() < MAX_LAPS {
            laps.push(Lap { stage, name: Name::NONE, start, duration: end.saturating_sub(start), failed: false });
        }
    }

    /// The step that a request was.
    pub(crate) fn lap_for(&self, method: &Method, path: &str) {
        let is_discovery = path.starts_with("/openapi") || path == "/api" || path == "/apis" || is_group(path);
        match (method == Method::GET, is_discovery) {
            (true, true) => self.lap(Stage::Discovery),
            // Writes have spans of the server's own.
            _ => self.last.set(trace::now()),
        }
    }

    pub(crate) fn attach(&self, headers: &mut HeaderMap) {
        let span = self.span.borrow();
        let text = serde_json::to_string(&*span).ok();
        if let Some(value) = text.and_then(|text| HeaderValue::from_str(&text).ok())
            && let Ok(id) = HeaderValue::from_str(&span.id.to_string())
        {
            headers.insert(trace::CLIENT_HEADER, value);
            headers.insert(trace::CAUSE_HEADER, id);
        }
    }
}

/// `/api/v1`, `/apis/apps/v1`: a group's list of resources.
fn is_group(path: &str) -> bool {
    let words: Vec<&str> = path.trim_matches('/').split('/').collect();
    matches!(words.as_slice(), ["api", _] | ["apis", _, _])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_tells_its_steps_in_a_header() {
        let command_span = CommandSpan::new("kubectl run");
        command_span.lap(Stage::Check);
        for (method, path) in [(Method::GET, "/apis/apps/v1"), (Method::GET, "/api/v1/pods"), (Method::POST, "/api/v1")]
        {
            command_span.lap_for(&method, path);
        }
        let mut headers = HeaderMap::new();
        command_span.attach(&mut headers);
        let span: Span = serde_json::from_slice(headers[trace::CLIENT_HEADER].as_bytes()).unwrap();
        assert_eq!(span.detail, "kubectl run");
        assert_eq!(span.laps.iter().map(|lap| lap.stage).collect::<Vec<_>>(), [Stage::Check, Stage::Discovery]);
        assert_eq!(headers[trace::CAUSE_HEADER], span.id.to_string().as_str());
    }
}
