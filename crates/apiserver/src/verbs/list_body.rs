//! The body of a list: streamed from encoded objects where it can be, built whole where it must.

use std::sync::Arc;

use api::Status;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::accept::{
    Accept, Encoding, GZIP_FROM, Shape, encode, partial_object, respond_encoded, response, served_value,
};
use super::list::Page;
use crate::body::{Body, stream as stream_body};
use crate::state::Operation;
use crate::watch_cache::{Entry, Gzip};

/// Lists are sent in pieces of about this size: few writes, little memory, and the allocator has it at hand.
const CHUNK: usize = 96 * 1024;
/// The same for compressed lists, which take longer to make.
const GZIP_CHUNK: usize = 64 * 1024;

pub(crate) fn render(operation: &Operation, page: Page) -> Result<Response<Body>, Status> {
    let accept = &operation.accept;
    let metadata = metadata(&page);
    let resource = &operation.resource;
    let value = match accept.shape {
        Shape::Object if accept.is_plain(resource) => {
            let head = head(&resource.list_kind(), &resource.api_version(), &metadata);
            return Ok(streamed(accept, head, page.entries, Item::Object));
        }
        Shape::Partial if accept.encoding == Encoding::Json && !accept.pretty => {
            let api_version = format!("meta.k8s.io/{}", accept.meta_version);
            let head = head("PartialObjectMetadataList", &api_version, &metadata);
            return Ok(streamed(accept, head, page.entries, Item::Partial(accept.clone())));
        }
        Shape::Table => super::table::table(operation, page.entries.iter().map(|entry| entry.json()), metadata, true)?,
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

fn streamed(accept: &Accept, head: Vec<u8>, entries: Vec<Arc<Entry>>, item: Item) -> Response<Body> {
    let size: usize = entries.iter().map(|entry| entry.size()).sum();
    let compress = accept.gzip && size > GZIP_FROM;
    let mut pieces = Pieces { entries, at: 0, item, out: Vec::new(), gzip: None };
    if compress {
        let mut gzip = Gzip::start(&mut pieces.out);
        gzip.add(&head, &mut pieces.out);
        pieces.gzip = Some(gzip);
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

/// A list, written piece by piece as the client reads it: a long list never exists twice.
struct Pieces {
    entries: Vec<Arc<Entry>>,
    at: usize,
    item: Item,
    /// Not yet sent.
    out: Vec<u8>,
    gzip: Option<Gzip>,
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
        while let Some(entry) = self.entries.get(self.at) {
            match &mut self.gzip {
                None => {
                    if self.at > 0 {
                        out.push(b',');
                    }
                    match &self.item {
                        Item::Object => entry.write_list_item(&mut out),
                        Item::Partial(accept) => {
                            out.extend_from_slice(&partial_object(accept, &entry.json(), "PartialObjectMetadata"));
                        }
                    }
                }
                Some(gzip) => {
                    if self.at > 0 {
                        gzip.add_comma(&mut out);
                    }
                    match &self.item {
                        Item::Object => entry.write_compressed_item(gzip, &mut out),
                        Item::Partial(accept) => {
                            gzip.add(&partial_object(accept, &entry.json(), "PartialObjectMetadata"), &mut out);
                        }
                    }
                }
            }
            self.at += 1;
            if out.len() >= full {
                return Some(out.into());
            }
        }
        self.at += 1;
        match self.gzip.take() {
            None => out.extend_from_slice(TAIL),
            Some(mut gzip) => {
                gzip.add(TAIL, &mut out);
                gzip.finish(&mut out);
            }
        }
        Some(out.into())
    }
}
