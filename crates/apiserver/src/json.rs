//! Encoded objects, changed without decoding them.
//!
//! Stored objects are compact JSON written by this server. What is in them is found by [`api::scan`]; giving an object its
//! `resourceVersion` is a splice. Malformed input gives `None`, never a panic.

pub(crate) use api::scan::{find, find_all, find_start, members, text};

/// Reorders an encoded object to `kind`, `apiVersion`, `metadata`, the rest: the form in which objects are stored. Managed
/// fields come last in the metadata: whoever looks for something else there finds it before.
pub(crate) fn canonical(json: Vec<u8>, kind: &str, api_version: &str, managed_fields: Option<&str>) -> Option<Vec<u8>> {
    const MANAGED_FIELDS: &[u8] = b"\"managedFields\":";
    let metadata = find(&json, &["metadata"])?;
    let head = ["{\"kind\":\"", kind, "\",\"apiVersion\":\"", api_version, "\",\"metadata\":"];
    let length = json.len() + managed_fields.map_or(0, |text| text.len() + MANAGED_FIELDS.len() + 1);
    let mut out = Vec::with_capacity(length + kind.len() + api_version.len() + 40);
    head.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
    out.extend_from_slice(json.get(metadata.start..metadata.end - 1)?);
    if let Some(text) = managed_fields {
        if json.get(metadata.end - 2) != Some(&b'{') {
            out.push(b',');
        }
        out.extend_from_slice(MANAGED_FIELDS);
        out.extend_from_slice(text.as_bytes());
    }
    out.push(b'}');
    let written = ["{\"apiVersion\":\"", api_version, "\",\"kind\":\"", kind, "\",\"metadata\":"];
    if is_written(&json, &written) {
        // As our types are written: what follows is in order.
        out.extend_from_slice(&json[metadata.end..]);
    } else {
        for (key, value) in members(&json, 0) {
            if matches!(key, b"kind" | b"apiVersion" | b"metadata") {
                continue;
            }
            out.extend_from_slice(b",\"");
            out.extend_from_slice(key);
            out.extend_from_slice(b"\":");
            out.extend_from_slice(json.get(value)?);
        }
        out.push(b'}');
    }
    out.shrink_to_fit();
    Some(out)
}

/// Whether a text begins with these parts.
fn is_written(mut json: &[u8], parts: &[&str]) -> bool {
    parts.iter().all(|part| json.strip_prefix(part.as_bytes()).map(|rest| json = rest).is_some())
}

/// Puts `"resourceVersion":"<revision>"` first into the metadata.
pub(crate) fn with_revision(json: &[u8], revision: u64) -> Option<Vec<u8>> {
    let open = find_start(json, &["metadata"])? + 1;
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(revision);
    let mut out = Vec::with_capacity(json.len() + digits.len() + 22);
    out.extend_from_slice(json.get(..open)?);
    out.extend_from_slice(b"\"resourceVersion\":\"");
    out.extend_from_slice(digits.as_bytes());
    out.push(b'"');
    if json.get(open) != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(&json[open..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &[u8] = br#"{"apiVersion":"v1","kind":"Pod","spec":{"nodeName":"a\"b","list":[{"x":"]}"}],"n":5},"metadata":{"name":"p"}}"#;

    #[test]
    fn canonical_form_puts_metadata_third() {
        let canonical = canonical(POD.to_vec(), "Pod", "v1", None).unwrap();
        assert!(canonical.starts_with(br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"spec":"#));
        let typed = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{}}"#;
        let expected = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"spec":{}}"#;
        assert_eq!(super::canonical(typed.to_vec(), "Pod", "v1", None).unwrap(), expected);
        let managed = super::canonical(typed.to_vec(), "Pod", "v1", Some("[1]")).unwrap();
        let place = find(&managed, &["metadata", "managedFields"]).unwrap();
        assert_eq!(&managed[place], b"[1]");
        assert_eq!(&*api::trim::without_managed_fields(&managed), expected);
        let versioned = with_revision(&canonical, 42).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&versioned).unwrap();
        assert_eq!(value["metadata"]["resourceVersion"], "42");
    }

    #[test]
    fn damage_is_not_a_panic() {
        for end in 0..POD.len() {
            let cut = &POD[..end];
            let _ = canonical(cut.to_vec(), "Pod", "v1", Some("[]"));
            let _ = with_revision(cut, 1);
        }
    }
}
