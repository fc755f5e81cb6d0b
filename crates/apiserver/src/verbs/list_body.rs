//! The body of a list: streamed from encoded objects where it can be, built whole where it must.

use std::sync::Arc;

use api::Status;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::list::Page;
use crate::accept::{Accept, Encoding, GZIP_FROM, Shape, encode, partial_object, respond_encoded};
use crate::body::{Body, response, stream as stream_body};
use crate::state::Operation;
use crate::versions::served_value;
use crate::watch_cache::{Caches, Entry, Gzip, Piece, first_group};

/// Lists are sent in pieces of about this size: few writes, little memory, and the allocator has it at hand.
const CHUNK: usize = 96 * 1024;
/// The same for compressed lists.
const GZIP_CHUNK: usize = 64 * 1024;
/// Of text that is compressed while the client waits for a piece, about so much: others wait, too.
const COMPRESSED: usize = 256 * 1024;

pub(crate) fn render(operation: &Operation, page: Page) -> Result<Response<Body>, Status> {
    let accept = &operation.accept;
    let metadata = metadata(&page);
    let resource = &operation.resource;
    let value = match accept.shape {
        Shape::Object if accept.is_plain(resource) => {
            let head = head(&resource.list_kind(), &resource.api_version(), &metadata);
            return Ok(streamed(operation, head, page.entries, Item::Object));
        }
        Shape::Partial if accept.encoding == Encoding::Json && !accept.pretty => {
            let api_version = format!("meta.k8s.io/{}", accept.meta_version);
            let head = head("PartialObjectMetadataList", &api_version, &metadata);
            return Ok(streamed(operation, head, page.entries, Item::Partial(accept.clone())));
        }
        Shape::Table => {
            let objects = page.entries.iter().map(|entry| entry.json());
            let table = super::table::table(operation, objects, &metadata, true)?;
            return Ok(respond_encoded(accept, StatusCode::OK, super::table::encoded(accept, table)?));
        }
        Shape::Object | Shape::Partial => {
            let mut items = Vec::with_capacity(page.entries.len());
            for entry in &page.entries {
                let mut item = match accept.shape {
                    Shape::Partial => {
                        let partial = partial_object(accept, &entry.json(), "PartialObjectMetadata");
                        serde_json::from_slice(&partial).map_err(Status::internal)?
                    }
                    _ => served_value(resource, &entry.json())?,
                };
                if let (Shape::Object, Some(item)) = (accept.shape, item.as_object_mut()) {
                    item.remove("kind");
                    item.remove("apiVersion");
                }
                items.push(item);
            }
            let (kind, api_version) = match accept.shape {
                Shape::Partial => {
                    ("PartialObjectMetadataList".to_owned(), format!("meta.k8s.io/{}", accept.meta_version))
                }
                _ => (resource.list_kind(), resource.api_version()),
            };
            json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items})
        }
    };
    Ok(respond_encoded(accept, StatusCode::OK, encode(accept, &value)?))
}

fn metadata(page: &Page) -> Value {
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let Some(next) = &page.next {
        metadata["continue"] = next.as_str().into();
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    metadata
}

fn head(kind: &str, api_version: &str, metadata: &Value) -> Vec<u8> {
    format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"items\":[").into_bytes()
}

const TAIL: &[u8] = b"]}\n";

fn streamed(operation: &Operation, head: Vec<u8>, entries: Vec<Arc<Entry>>, item: Item) -> Response<Body> {
    let accept = &operation.accept;
    let size: usize = entries.iter().map(|entry| entry.size()).sum();
    let compress = accept.gzip && size > GZIP_FROM;
    let mut pieces = Pieces { entries, at: 0, item, out: Vec::new(), gzip: None };
    if compress {
        let mut gzip = Gzip::start(&mut pieces.out);
        gzip.add(&Piece::new(&head), &mut pieces.out);
        pieces.gzip = Some((gzip, operation.state.caches.clone()));
    } else {
        pieces.out = head;
        if size < CHUNK {
            pieces.out.reserve(size + TAIL.len());
            let body = pieces.next().unwrap_or_default();
            return response(StatusCode::OK, accept.content_type(), body);
        }
    }
    let chunks = stream::unfold(pieces, |mut pieces| async move { Some((Ok(pieces.next()?), pieces)) });
    let mut response = Response::new(stream_body(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(accept.content_type()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if compress {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// How an object stands in a list.
enum Item {
    Object,
    Partial(Accept),
}

impl Item {
    fn write(&self, entry: &Entry, out: &mut Vec<u8>) {
        match self {
            Item::Object => entry.write_list_item(out),
            Item::Partial(accept) => {
                out.extend_from_slice(&partial_object(accept, &entry.json(), "PartialObjectMetadata"));
            }
        }
    }

    fn write_all(&self, entries: &[Arc<Entry>], out: &mut Vec<u8>) {
        for (at, entry) in entries.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            self.write(entry, out);
        }
    }
}

/// A list, written piece by piece as the client reads it: a long list never exists twice.
struct Pieces {
    entries: Vec<Arc<Entry>>,
    at: usize,
    item: Item,
    /// Not yet sent.
    out: Vec<u8>,
    gzip: Option<(Gzip, Arc<Caches>)>,
}

impl Pieces {
    /// The next piece, or `None` after the last.
    fn next(&mut self) -> Option<Bytes> {
        if self.at > self.entries.len() {
            return None;
        }
        let mut out = std::mem::take(&mut self.out);
        let full = if self.gzip.is_some() { GZIP_CHUNK } else { CHUNK };
        if self.entries.len() > self.at + 1 {
            out.reserve(full + full / 4);
        }
        let mut compressed = 0;
        while self.at < self.entries.len() {
            if self.gzip.is_some() {
                compressed += self.write_group(&mut out);
            } else {
                self.write_next(&mut out);
            }
            if out.len() >= full || compressed >= COMPRESSED {
                return Some(out.into());
            }
        }
        self.at += 1;
        match self.gzip.take() {
            None => out.extend_from_slice(TAIL),
            Some((mut gzip, _)) => {
                gzip.add(&Piece::new(TAIL), &mut out);
                gzip.finish(&mut out);
            }
        }
        Some(out.into())
    }

    fn write_next(&mut self, out: &mut Vec<u8>) {
        if self.at > 0 {
            out.push(b',');
        }
        self.item.write(&self.entries[self.at], out);
        self.at += 1;
    }

    /// Adds the next few objects to a compressed list. Returns how much had to be compressed for that.
    fn write_group(&mut self, out: &mut Vec<u8>) -> usize {
        let Some((gzip, caches)) = &mut self.gzip else { return 0 };
        let rest = &self.entries[self.at..];
        let group = &rest[..first_group(rest)];
        if self.at > 0 {
            gzip.add_comma(out);
        }
        self.at += group.len();
        let is_kept = matches!(self.item, Item::Object);
        if let Some(piece) = is_kept.then(|| caches.groups.find(group)).flatten() {
            gzip.add(&piece, out);
            return 0;
        }
        let mut text = Vec::with_capacity(group.iter().map(|entry| entry.size() + 48).sum());
        self.item.write_all(group, &mut text);
        let piece = Arc::new(Piece::new(&text));
        gzip.add(&piece, out);
        if is_kept {
            caches.groups.keep(group, &piece);
        }
        text.len()
    }
}
