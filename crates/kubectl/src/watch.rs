//! A watch as kubectl uses it: events one by one, reopened from the last version when the server ends it.

use std::collections::VecDeque;

use client::Body;
use http_body_util::BodyExt;
use serde_json::Value;

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::request::Request;

pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) object: Value,
}

type Open<'a> = Box<dyn Fn(String) -> Request + 'a>;

pub(crate) struct Watch<'a> {
    cx: &'a Context,
    open: Open<'a>,
    version: String,
    body: Option<Body>,
    buffer: Vec<u8>,
    ready: VecDeque<Event>,
}

impl<'a> Watch<'a> {
    /// `open` makes the request for a version; nothing is sent before the first `next`.
    pub(crate) fn open(cx: &'a Context, open: impl Fn(String) -> Request + 'a, version: String) -> Watch<'a> {
        Watch { cx, open: Box::new(open), version, body: None, buffer: Vec::new(), ready: VecDeque::new() }
    }

    /// Events of one object.
    pub(crate) fn object(cx: &'a Context, collection: String, name: &str, version: &str) -> Watch<'a> {
        let selector = format!("metadata.name={name}");
        let open = move |version: String| {
            Request::get(collection.clone())
                .query("watch", "true")
                .query("fieldSelector", selector.clone())
                .query("resourceVersion", version)
        };
        Watch::open(cx, open, version.to_owned())
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                match event.kind.as_str() {
                    "BOOKMARK" => {
                        self.remember(&event.object);
                        continue;
                    }
                    "ERROR" => return Err(Failure::Status(Box::new(event.object))),
                    _ => {
                        self.remember(&event.object);
                        return Ok(Some(event));
                    }
                }
            }
            let body = match &mut self.body {
                Some(body) => body,
                None => {
                    let body = (self.open)(self.version.clone()).stream(self.cx).await?;
                    self.buffer.clear();
                    self.body.insert(body)
                }
            };
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                        self.take_lines();
                    }
                }
                // Ended, or broke: go on from where we were.
                Some(Err(_)) | None => self.body = None,
            }
        }
    }

    fn take_lines(&mut self) {
        while let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            if let Ok(mut value) = serde_json::from_slice::<Value>(&line) {
                let kind = value["type"].as_str().unwrap_or("").to_owned();
                self.ready.push_back(Event { kind, object: value["object"].take() });
            }
        }
    }

    fn remember(&mut self, object: &Value) {
        for pointer in ["/metadata/resourceVersion", "/rows/0/object/metadata/resourceVersion"] {
            if let Some(v) = object.pointer(pointer).and_then(Value::as_str)
                && !v.is_empty()
            {
                self.version = v.to_owned();
            }
        }
    }
}
