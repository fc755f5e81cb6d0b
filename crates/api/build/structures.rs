//! The fields of structures, as calls of macros that `src/read` has.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::{Kinds, is_structure};

/// A generic type, which nobody reads as such.
const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";

/// What `k8s-openapi` has no rule for.
const MEMBERS: [(&str, &str); 8] = [
    ("$ref", "ref_path"),
    ("$schema", "schema"),
    ("as", "as_"),
    ("continue", "continue_"),
    ("enum", "enum_"),
    ("ref", "ref_"),
    ("type", "type_"),
    ("stubPKCS10Request", "stub_pkc_s10_request"),
];

/// Abbreviations of which there may be several.
const PLURALS: [&str; 4] = ["IPs", "URLs", "CIDRs", "WWNs"];

pub(crate) fn write(definitions: &Map<String, Value>, kinds: &Kinds) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for (name, schema) in definitions.iter().filter(|(name, schema)| is_structure(name, schema) && *name != WATCH_EVENT)
    {
        let (path, short) = (path(name), name.rsplit('.').next().unwrap_or(name));
        let Some(properties) = schema["properties"].as_object() else {
            writeln!(text, "value!({path});")?;
            continue;
        };
        // A time that must be given has no default, so there is no structure to begin with.
        if requires_a_time(schema) {
            writeln!(text, "by_serde!({path});")?;
            continue;
        }
        let is_kind = kinds.values().any(|kind| kind == name);
        write!(text, "structure!({path}, {short:?}, {},", if is_kind { "kind" } else { "plain" })?;
        let of_kind = |field: &str| is_kind && matches!(field, "apiVersion" | "kind");
        for field in properties.keys().filter(|field| !of_kind(field)) {
            write!(text, " {field:?} {}", member(field))?;
        }
        writeln!(text, ");")?;
    }
    Ok(text)
}

/// One call of a macro with the types of all kinds.
pub(crate) fn all_kinds(kinds: &Kinds, definitions: &Map<String, Value>) -> String {
    let names: BTreeSet<_> = kinds.values().filter(|name| definitions.contains_key(*name)).collect();
    let types: Vec<_> = names.into_iter().map(|name| path(name)).collect();
    format!("all_kinds!({})\n", types.join(", "))
}

/// `k8s_openapi::api::core::v1::Pod` for `io.k8s.api.core.v1.Pod`.
fn path(name: &str) -> String {
    let inside = name.strip_prefix("io.k8s.").unwrap_or(name).replace('-', "_");
    format!("k8s_openapi::{}", inside.replace('.', "::"))
}

fn requires_a_time(schema: &Value) -> bool {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut types = required.map(|field| schema["properties"][field].to_string());
    types.any(|of| of.contains("meta.v1.Time\"") || of.contains("meta.v1.MicroTime\""))
}

/// What the member of a structure is called for a field of JSON.
fn member(field: &str) -> String {
    if let Some((_, member)) = MEMBERS.iter().find(|(known, _)| *known == field) {
        return (*member).to_owned();
    }
    let mut field = field.replace('-', "_");
    if let Some(plural) = PLURALS.iter().find(|plural| field.ends_with(**plural)) {
        let start = field.len() - plural.len();
        let lower = plural[1..].to_ascii_lowercase();
        field.replace_range(start + 1.., &lower);
    }
    let letters: Vec<char> = field.chars().collect();
    let mut member = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let is_upper = |letter: Option<&char>| letter.is_some_and(char::is_ascii_uppercase);
        let begins_word = at > 0
            && is_upper(Some(letter))
            && letters[at - 1] != '_'
            && (!is_upper(letters.get(at - 1)) || letters.get(at + 1).is_some_and(|next| !next.is_ascii_uppercase()));
        if begins_word {
            member.push('_');
        }
        member.push(letter.to_ascii_lowercase());
    }
    member
}
