//! What anybody may send, given to what reads it first. The targets in `fuzz/` run these for hours, the tests here for a
//! moment with inputs that somebody damaged.

use http::{Method, Uri};

use crate::protobuf;
use crate::request_info::{Query, RequestInfo};
use crate::verbs::Token;

/// A body in protobuf: it is read or refused, and what was read can be written.
pub fn protobuf_body(data: &[u8]) {
    if let Ok(value) = protobuf::decode(data) {
        let _ = protobuf::encode(&value);
    }
}

/// A token of a client that wants the rest of a list: it names a place below the list, in some state of the store.
pub fn continue_token(text: &str) {
    if let Ok(token) = Token::decode(text) {
        assert!(token.rv != 0 && !token.start.is_empty() && !token.start.contains(".."), "{text}");
    }
}

const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];

/// A path and its query: what is decided on is what upstream would decide on, or the request is refused.
pub fn request_path(text: &str) {
    let Ok(uri) = text.parse::<Uri>() else { return };
    for method in &METHODS {
        let info = RequestInfo::new(method, &uri);
        if info.check().is_err() || info.goes_beyond() {
            continue;
        }
        if info.is_resource {
            for part in [&info.group, &info.version, &info.namespace, &info.name, &info.resource, &info.subresource] {
                assert!(!part.contains(['/', '\0']) && part != ".." && part != ".", "{method} {text}: {part}");
            }
        }
        if let Some(expected) = upstream(method, &uri) {
            assert_eq!(Decided::from(&info), expected, "{method} {text}");
        }
    }
}

/// What authorization sees.
#[derive(Debug, Default, PartialEq)]
struct Decided {
    verb: String,
    group: String,
    version: String,
    namespace: String,
    resource: String,
    name: String,
    subresource: String,
}

impl From<&RequestInfo> for Decided {
    fn from(info: &RequestInfo) -> Self {
        Self {
            verb: info.verb.to_string(),
            group: info.group.clone(),
            version: info.version.clone(),
            namespace: info.namespace.clone(),
            resource: info.resource.clone(),
            name: info.name.clone(),
            subresource: info.subresource.clone(),
        }
    }
}

/// Upstream's rules in the order in which it has them. None where it fails, and for what it reads in another way and we
/// refuse or serve to nobody: escaped slashes, empty parts, and `proxy` in the place of a resource.
fn upstream(method: &Method, uri: &Uri) -> Option<Decided> {
    let parts: Vec<String> =
        uri.path().trim_matches('/').split('/').map(|part| api::percent::decode(part, false).into_owned()).collect();
    let mut decided = Decided { verb: method.as_str().to_lowercase(), ..Decided::default() };
    let groupless = parts[0] == "api";
    let enough = if groupless { 3 } else { 4 };
    if !(groupless || parts[0] == "apis") || parts.len() < enough {
        return Some(decided);
    }
    if parts.iter().any(|part| part.is_empty() || part.contains('/')) {
        return None;
    }
    if !groupless {
        decided.group.clone_from(&parts[1]);
    }
    decided.version.clone_from(&parts[enough - 2]);
    let mut rest = &parts[enough - 1..];
    decided.verb = match method.as_str() {
        "POST" => "create",
        "GET" | "HEAD" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
    .to_owned();
    if rest[0] == "proxy" {
        return None;
    }
    if rest[0] == "watch" {
        rest = &rest[1..];
        decided.verb = "watch".to_owned();
        if rest.is_empty() {
            return None;
        }
    }
    if rest[0] == "namespaces" && rest.len() > 1 {
        decided.namespace.clone_from(&rest[1]);
        if rest.len() > 2 && rest[2] != "status" && rest[2] != "finalize" {
            rest = &rest[2..];
        }
    }
    decided.resource.clone_from(&rest[0]);
    decided.name = rest.get(1).cloned().unwrap_or_default();
    decided.subresource = rest.get(2).cloned().unwrap_or_default();
    if decided.name.is_empty() && decided.verb == "get" {
        let query = Query::parse(uri.query().unwrap_or_default());
        let watches = query.all("watch").next().is_some_and(|value| !["0", "false"].contains(&&*value.to_lowercase()));
        decided.verb = if watches { "watch" } else { "list" }.to_owned();
        let selector = api::selector::FieldSelector::parse(query.get("fieldSelector").unwrap_or_default()).ok();
        let name = selector.as_ref().and_then(|selector| selector.requires("metadata.name")).unwrap_or_default();
        if !name.contains(['/', '%']) && name != "." && name != ".." {
            decided.name = name.to_owned();
        }
    }
    if decided.name.is_empty() && decided.verb == "delete" {
        decided.verb = "deletecollection".to_owned();
    }
    Some(decided)
}

#[cfg(test)]
mod tests {
    use testkit::mutate;

    use super::*;

    /// A field of a protobuf message that is shorter than 128 bytes, or 16 KiB.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        match u8::try_from(bytes.len()).ok().filter(|length| *length < 0x80) {
            Some(length) => out.push(length),
            None => out.extend([bytes.len() as u8 | 0x80, (bytes.len() >> 7) as u8]),
        }
        out.extend_from_slice(bytes);
        out
    }

    fn envelope(kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [protobuf::MAGIC.to_vec(), field(1, &meta), field(2, raw)].concat()
    }

    #[test]
    fn security_damaged_protobuf_does_no_harm() {
        let container = [field(1, b"c"), field(2, b"i"), field(7, &[field(1, b"A"), field(2, b"")].concat())].concat();
        let pod = [field(1, &field(1, b"p")), field(2, &field(2, &container))].concat();
        let deep = (0..200).fold(Vec::new(), |inner, _| field(2, &field(4, &inner)));
        let bodies = [envelope("Pod", &pod), envelope("Pod", &deep), envelope("ConfigMap", &pod)];
        let bodies: Vec<&[u8]> = bodies.iter().map(|body| &body[..]).collect();
        mutate::inputs(&bodies, 10_000).iter().for_each(|input| protobuf_body(input));
    }

    #[test]
    fn security_damaged_tokens_lead_nowhere() {
        let good = [Token::encode(7, "default/a"), Token::encode(-1, "b")];
        mutate::texts(&[&good[0], &good[1]], 20_000).iter().for_each(|text| continue_token(text));
    }

    #[test]
    fn security_damaged_paths_mean_what_upstream_reads() {
        let corpus = [
            "/api/v1/namespaces/a/pods/p/log?follow=true",
            "/apis/apps/v1/watch/namespaces/a/deployments",
            "/api/v1/namespaces/%2e%2e/secrets/x%2Fy",
            "/apis/a.b/v1/things?fieldSelector=metadata.name%3Dx&watch=0",
            "/api/v1/namespaces/a/finalize",
            "/api/v1/namespaces/a/services/https:s:443/proxy/x/y%2F",
        ];
        mutate::texts(&corpus, 20_000).iter().for_each(|text| request_path(text));
    }
}
