//! Content negotiation: which form of an object the client asked for, and how to make it.

use api::Status;
use api::sort::CompactSort as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use registry::{Resource, Verb};
use serde::Serialize;
use serde_json::Value;

use crate::body::{Body, response};
use crate::json;
use crate::protobuf;
use crate::request_info::RequestInfo;
use crate::watch_cache::{Gzip, Piece};

/// Server-side apply.
const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
const PATCHES: &[&str] = &["application/json-patch+json", "application/merge-patch+json", STRATEGIC, APPLY];
const PATCHES_OF_CUSTOM: &[&str] = &["application/json-patch+json", "application/merge-patch+json", APPLY];

/// Whether a request is a server-side apply.
pub(crate) fn is_apply(verb: &Verb, headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    *verb == Verb::Patch
        && content_type.is_some_and(|value| value.split(';').next().unwrap_or_default().trim() == APPLY)
}

/// Forms of patches. What a strategic one does is written into the types of built-in kinds only.
pub(crate) fn patch_types(resource: &Resource) -> &'static [&'static str] {
    if resource.is_custom { PATCHES_OF_CUSTOM } else { PATCHES }
}

/// What the response looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Accept {
    pub(crate) encoding: Encoding,
    pub(crate) shape: Shape,
    /// Version of `meta.k8s.io` for tables and partial objects.
    pub(crate) meta_version: &'static str,
    pub(crate) pretty: bool,
    pub(crate) gzip: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
    /// For those who accept nothing else, and metadata for those who like it best.
    Protobuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Object,
    Table,
    /// Objects as `PartialObjectMetadata`, lists as `PartialObjectMetadataList`.
    Partial,
}

impl Default for Accept {
    fn default() -> Self {
        Self { encoding: Encoding::Json, shape: Shape::Object, meta_version: "v1", pretty: false, gzip: false }
    }
}

/// Smaller responses are not worth compressing (upstream's threshold).
pub(crate) const GZIP_FROM: usize = 128 * 1024;

pub(crate) const OFFERED: &[&str] = &["application/json", "application/yaml", protobuf::CONTENT_TYPE];
/// Custom kinds and tables have no protobuf form.
const OFFERED_AS_TEXT: &[&str] = &["application/json", "application/yaml"];

impl Accept {
    /// Picks the first acceptable form, best quality first, as upstream does.
    pub(crate) fn parse(headers: &HeaderMap, info: &RequestInfo) -> Result<Self, Status> {
        let gzip = headers
            .get(header::ACCEPT_ENCODING)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.split(',').any(|coding| coding.trim().starts_with("gzip")));
        let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let browser = ["curl", "Wget", "Mozilla/5.0"].iter().any(|name| agent.starts_with(name));
        let pretty = if info.query.get("pretty").is_some() { info.query.flag("pretty") } else { browser };
        let base = Self { encoding: Encoding::Json, shape: Shape::Object, meta_version: "v1", pretty, gzip };
        if is_only_json(headers) {
            return Ok(base);
        }
        let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let text = accept.collect::<Vec<_>>().join(",");
        if text.trim().is_empty() {
            return Ok(base);
        }
        let mut clauses: Vec<(f32, &str)> = text.split(',').map(|clause| (quality(clause), clause)).collect();
        clauses.compact_sort_by(|a, b| b.0.total_cmp(&a.0));
        let forms = || clauses.iter().filter_map(|(_, clause)| base.clone().clause(clause));
        // Stored objects are text: who accepts that as well gets it, whatever it likes better. Metadata alone is made for
        // each answer, and clients see a difference: in text it says its kind.
        let as_liked = |form: &Self| form.encoding != Encoding::Protobuf || form.shape == Shape::Partial;
        let found = forms().find(as_liked).or_else(|| forms().next());
        found.ok_or_else(|| Status::not_acceptable(OFFERED))
    }

    fn encoding_of(media: &str) -> Option<Encoding> {
        match media {
            "application/json" | "*/*" | "application/*" => Some(Encoding::Json),
            "application/yaml" => Some(Encoding::Yaml),
            protobuf::CONTENT_TYPE => Some(Encoding::Protobuf),
            _ => None,
        }
    }

    /// Whether errors are to be told in protobuf.
    pub(crate) fn is_protobuf(headers: &HeaderMap) -> bool {
        if is_only_json(headers) {
            return false;
        }
        let names = |media: &str| {
            headers.get_all(header::ACCEPT).iter().any(|value| value.to_str().is_ok_and(|value| value.contains(media)))
        };
        // Nearly every client names JSON as well: that is seen without reading further.
        names(protobuf::CONTENT_TYPE)
            && !names("application/json")
            && Self::parse(headers, &RequestInfo::default()).is_ok_and(|accept| accept.encoding == Encoding::Protobuf)
    }

    fn clause(mut self, clause: &str) -> Option<Self> {
        let mut parts = clause.split(';').map(str::trim);
        self.encoding = Self::encoding_of(parts.next()?)?;
        let (mut shape, mut group) = (None, "meta.k8s.io");
        for part in parts {
            match part.split_once('=')? {
                ("as", value) => shape = Some(value),
                ("g", value) => group = value,
                ("v", "v1") => self.meta_version = "v1",
                ("v", "v1beta1") => self.meta_version = "v1beta1",
                ("v", _) => return None,
                _ => {}
            }
        }
        self.shape = match shape {
            None => Shape::Object,
            Some(_) if group != "meta.k8s.io" => return None,
            Some("Table") if self.encoding == Encoding::Protobuf => return None,
            Some("Table") => Shape::Table,
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => Shape::Partial,
            Some(_) => return None,
        };
        Some(self)
    }

    pub(crate) fn content_type(&self) -> &'static str {
        match self.encoding {
            Encoding::Json => "application/json",
            Encoding::Yaml => "application/yaml",
            Encoding::Protobuf => protobuf::CONTENT_TYPE,
        }
    }

    /// Whether stored bytes can be sent as they are.
    pub(crate) fn is_plain(&self, resource: &Resource) -> bool {
        self.encoding == Encoding::Json && self.shape == Shape::Object && !self.pretty && resource.conversion.is_none()
    }
}

/// Whether JSON is all that the client asks for, which is the usual request.
fn is_only_json(headers: &HeaderMap) -> bool {
    let mut accept = headers.get_all(header::ACCEPT).iter();
    accept.next().is_none_or(|value| value == "application/json") && accept.next().is_none()
}

fn quality(clause: &str) -> f32 {
    clause
        .split(';')
        .filter_map(|part| part.trim().strip_prefix("q="))
        .find_map(|value| value.parse().ok())
        .unwrap_or(1.0)
}

pub(crate) fn is_table(accept: &Accept) -> bool {
    accept.shape == Shape::Table
}

pub(crate) fn encode(accept: &Accept, value: &Value) -> Result<Bytes, Status> {
    encode_as(accept, value, value)
}

/// As [`encode`], with a form of its own for JSON.
pub(crate) fn encode_as(accept: &Accept, value: &Value, json: &impl Serialize) -> Result<Bytes, Status> {
    match accept.encoding {
        Encoding::Yaml => api::codec::to_yaml(value).map(Bytes::from).map_err(Status::internal),
        Encoding::Json if accept.pretty => {
            let mut text = serde_json::to_vec_pretty(json).map_err(Status::internal)?;
            text.push(b'\n');
            Ok(text.into())
        }
        Encoding::Json => serde_json::to_vec(json).map(Bytes::from).map_err(Status::internal),
        Encoding::Protobuf => {
            protobuf::encode(value).map(Bytes::from).ok_or_else(|| Status::not_acceptable(OFFERED_AS_TEXT))
        }
    }
}

/// The metadata alone, cut out of the encoded object.
pub(crate) fn partial_object(accept: &Accept, stored: &[u8], kind: &str) -> Vec<u8> {
    let metadata = json::find(stored, &["metadata"]).map_or(&b"{}"[..], |range| &stored[range]);
    let mut out = Vec::with_capacity(metadata.len() + 96);
    out.extend_from_slice(b"{\"kind\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"apiVersion\":\"meta.k8s.io/");
    out.extend_from_slice(accept.meta_version.as_bytes());
    out.extend_from_slice(b"\",\"metadata\":");
    out.extend_from_slice(metadata);
    out.push(b'}');
    out
}

/// Responds with what is already in the form asked for, compressed if it is large and the client reads that.
pub(crate) fn respond_encoded(accept: &Accept, code: StatusCode, body: Bytes) -> Response<Body> {
    if !accept.gzip || body.len() <= GZIP_FROM {
        return response(code, accept.content_type(), body);
    }
    let mut compressed = Vec::with_capacity(body.len() / 4);
    let mut gzip = Gzip::start(&mut compressed);
    gzip.add(&Piece::new(&body), &mut compressed);
    gzip.finish(&mut compressed);
    let mut response = response(code, accept.content_type(), compressed.into());
    response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &'static str) -> Result<(Encoding, Shape, &'static str), u16> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(text));
        Accept::parse(&headers, &RequestInfo::default())
            .map(|accept| (accept.encoding, accept.shape, accept.meta_version))
            .map_err(|status| status.code())
    }

    #[test]
    fn accept_headers_choose_the_form() {
        for (header, expected) in [
            ("*/*", Ok((Encoding::Json, Shape::Object, "v1"))),
            ("application/yaml", Ok((Encoding::Yaml, Shape::Object, "v1"))),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", Ok((Encoding::Json, Shape::Table, "v1beta1"))),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Ok((Encoding::Json, Shape::Table, "v1"))),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Ok((Encoding::Protobuf, Shape::Partial, "v1")),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;q=0.5,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Ok((Encoding::Json, Shape::Partial, "v1")),
            ),
            (
                "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json;as=Table;g=meta.k8s.io;v=v1",
                Ok((Encoding::Json, Shape::Table, "v1")),
            ),
            ("application/vnd.kubernetes.protobuf,application/json", Ok((Encoding::Json, Shape::Object, "v1"))),
            ("application/vnd.kubernetes.protobuf", Ok((Encoding::Protobuf, Shape::Object, "v1"))),
            ("application/yaml;q=0.1,application/vnd.kubernetes.protobuf", Ok((Encoding::Yaml, Shape::Object, "v1"))),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Ok((Encoding::Protobuf, Shape::Partial, "v1")),
            ),
            ("application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1", Err(406)),
            ("application/xml", Err(406)),
            ("application/json;as=Nothing;g=meta.k8s.io", Err(406)),
        ] {
            assert_eq!(parse(header), expected, "{header}");
        }
    }
}
