//! Whether a body is just what its schema says, found by reading over it once.
//!
//! Nearly all bodies are: programs wrote them. Such a body needs no tree, no repair and no report, and its typed form can
//! be read from its bytes. Whatever is in doubt does not fit and goes the long way, [`super::normalize`], which says why.
//!
//! The look is at shapes and names, as [`scan`] sees them: a text that is no JSON may seem to fit, until its typed form
//! is read.

use super::check::{base64, time};
use super::{Field, Struct, Type};
use crate::quantity::Quantity;
use crate::scan;

/// Maps with more entries than this take the long way: repeated keys are looked for one by one here.
const MAX_KEYS: usize = 64;
/// So deep may values lie in each other, as for those who read the typed form.
const MAX_DEPTH: usize = 127;
/// Numbers that are longer than this may be larger than any integer of the API.
const MAX_DIGITS: usize = 18;

/// Whether `json` is an object with known fields of the right types only, each given once, with nothing to make canonical.
/// Says nothing about what is no JSON.
pub fn fits(json: &[u8], definition: &Struct) -> bool {
    let end = Look(json).fields(scan::skip_space(json, 0), definition, MAX_DEPTH);
    end.is_some_and(|end| scan::skip_space(json, end) == json.len())
}

/// A look at a text. What fits is passed over: the answer is where it ends.
struct Look<'a>(&'a [u8]);

impl Look<'_> {
    fn fields(&self, at: usize, definition: &Struct, depth: usize) -> Option<usize> {
        let mut members = scan::members(self.0, at);
        // No structure of the API has as many fields as bits.
        let mut seen = 0u128;
        while let Some((name, start)) = members.enter() {
            let place = definition.position(name)?;
            let bit = 1u128.checked_shl(place as u32).filter(|bit| seen & bit == 0)?;
            seen |= bit;
            members.leave(self.field(start, &definition.fields()[place], depth)?);
        }
        members.end().filter(|_| definition.times & !seen == 0)
    }

    /// The value of a field. Null is as good as absent, but for a time that has to be filled; a list or map with nothing
    /// in it has to be taken out of most structures.
    fn field(&self, at: usize, field: &Field, depth: usize) -> Option<usize> {
        let has_nothing = || matches!(self.0.get(scan::skip_space(self.0, at + 1)), Some(b']' | b'}'));
        let is_fit = match self.0.get(at)? {
            b'n' if field.kept_empty && matches!(field.ty, Type::Time) => false,
            b'n' => return scan::skip_value(self.0, at),
            b'[' | b'{' if !field.kept_empty && matches!(field.ty, Type::List(_) | Type::Map(_)) => !has_nothing(),
            _ => true,
        };
        self.value(at, &field.ty, depth).filter(|_| is_fit)
    }

    /// A value that is there. In lists and maps, null would have to be filled.
    fn value(&self, at: usize, ty: &Type, depth: usize) -> Option<usize> {
        match (ty, self.0.get(at)?) {
            (Type::Struct(definition), b'{') => self.fields(at, definition, depth.checked_sub(1)?),
            (Type::Map(item), b'{') => self.entries(at, item, depth.checked_sub(1)?),
            (Type::List(item), b'[') => self.items(at, item, depth.checked_sub(1)?),
            (Type::Any, b'{') => self.entries(at, ty, depth.checked_sub(1)?),
            (Type::Any, b'[') => self.items(at, ty, depth.checked_sub(1)?),
            (_, b'{' | b'[') => None,
            _ => {
                let end = scan::skip_value(self.0, at)?;
                is_scalar(self.0.get(at..end)?, ty).then_some(end)
            }
        }
    }

    /// The entries of a map, each key once.
    fn entries(&self, at: usize, item: &Type, depth: usize) -> Option<usize> {
        let mut members = scan::members(self.0, at);
        let mut keys: Vec<&[u8]> = Vec::new();
        while let Some((key, start)) = members.enter() {
            // What is written in another way may still be the same.
            if keys.len() == MAX_KEYS || keys.contains(&key) || key.contains(&b'\\') {
                return None;
            }
            keys.push(key);
            members.leave(self.value(start, item, depth)?);
        }
        members.end()
    }

    fn items(&self, at: usize, item: &Type, depth: usize) -> Option<usize> {
        let mut items = scan::items(self.0, at);
        while let Some(start) = items.enter() {
            items.leave(self.value(start, item, depth)?);
        }
        items.end()
    }
}

fn is_scalar(raw: &[u8], ty: &Type) -> bool {
    let integer = || std::str::from_utf8(raw).ok().and_then(|text| text.parse::<i64>().ok());
    match (raw, ty) {
        ([b'"', ..], Type::Any | Type::String | Type::IntOrString) => true,
        ([b'"', text @ .., b'"'], Type::Bytes | Type::Time | Type::Quantity) => {
            std::str::from_utf8(text).is_ok_and(|text| !text.contains('\\') && is_canonical(text, ty))
        }
        (b"true" | b"false", Type::Any | Type::Bool) | (b"null", Type::Any) => true,
        ([b'-' | b'0'..=b'9', ..], Type::Any | Type::Number) => raw.len() <= MAX_DIGITS,
        ([b'-' | b'0'..=b'9', ..], Type::Int64) => integer().is_some(),
        ([b'-' | b'0'..=b'9', ..], Type::Int32 | Type::IntOrString) => {
            integer().is_some_and(|number| i32::try_from(number).is_ok())
        }
        _ => false,
    }
}

/// A text that stands for something else.
fn is_canonical(text: &str, ty: &Type) -> bool {
    match ty {
        Type::Bytes => base64(text).is_ok(),
        Type::Time => time(text).is_ok(),
        _ => Quantity::parse(text).is_ok_and(|quantity| quantity.to_string() == text),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};

    use serde_json::{Value, json};

    use super::*;
    use crate::schema::{normalize, of};

    #[test]
    fn only_bodies_that_need_nothing_fit() {
        let pod = of::<Pod>();
        for (body, expected) in [
            (
                r#"{"kind":"Pod","metadata":{"name":"a","labels":{"a":"b","c":"d"}},"spec":{"containers":[{"name":"c","image":"i"}]}}"#,
                true,
            ),
            (r#"{"metadata":null,"spec":{"terminationGracePeriodSeconds":30,"hostNetwork":true}}"#, true),
            (
                r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"500m"}},"livenessProbe":{"httpGet":{"port":"x"}}}]}}"#,
                true,
            ),
            (
                r#"{"metadata":{"creationTimestamp":"2026-01-02T03:04:05Z","managedFields":[{"fieldsV1":{"f:a":{}}}]}}"#,
                true,
            ),
            // Unknown, repeated, of another type.
            (r#"{"spec":{"x":1}}"#, false),
            (r#"{"metadata":{"name":"a","name":"a"}}"#, false),
            (r#"{"metadata":{"labels":{"a":"b","a":"b"}}}"#, false),
            (r#"{"metadata":{"managedFields":[{"fieldsV1":{"f:a":{},"f:a":{}}}]}}"#, false),
            (r#"{"metadata":{"name":1}}"#, false),
            (r#"{"spec":{"terminationGracePeriodSeconds":1.0}}"#, false),
            (r#"{"spec":{"terminationGracePeriodSeconds":18446744073709551615}}"#, false),
            (r#"{"spec":{"securityContext":{"fsGroup":"1"}}}"#, false),
            (r#"{"spec":[]}"#, false),
            (r#"{"spec":{"containers":{}}}"#, false),
            // To be filled or made canonical.
            (r#"{"spec":{"containers":[null]}}"#, false),
            (r#"{"metadata":{"labels":{"a":null}}}"#, false),
            (r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":0.5}}}]}}"#, false),
            (r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"0.5"}}}]}}"#, false),
            (r#"{"metadata":{"creationTimestamp":"yesterday"}}"#, false),
            // To be taken out, unless it must be given or is a structure.
            (r#"{"metadata":{"annotations":{}}}"#, false),
            (r#"{"metadata":{"finalizers":[]}}"#, false),
            (r#"{"spec":{"containers":[],"securityContext":{}}}"#, true),
            // Not JSON, or not alone.
            (r#"{"metadata":{"name":"a"}"#, false),
            (r#"{} {}"#, false),
            ("[]", false),
            ("", false),
        ] {
            assert_eq!(fits(body.as_bytes(), &pod), expected, "{body}");
        }
        assert!(fits(br#"{"spec":{"replicas":2147483647}}"#, &of::<Deployment>()));
        assert!(!fits(br#"{"spec":{"replicas":2147483648}}"#, &of::<Deployment>()));
        assert!(fits(br#"{"data":{"a":"YQ=="}}"#, &of::<Secret>()));
        assert!(!fits(br#"{"data":{"a":"Y"}}"#, &of::<Secret>()));
    }

    #[test]
    fn many_keys_take_the_long_way() {
        let map = |count: usize| {
            let data: serde_json::Map<_, _> = (0..count).map(|n| (format!("k{n}"), "v".into())).collect();
            json!({ "data": data }).to_string()
        };
        assert!(fits(map(MAX_KEYS).as_bytes(), &of::<ConfigMap>()));
        assert!(!fits(map(MAX_KEYS + 1).as_bytes(), &of::<ConfigMap>()));
    }

    /// A pod that fits, and one of its values replaced.
    fn pod(at: usize, with: Value) -> Value {
        let mut pod = json!({
            "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}, "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": {"hostNetwork": true, "terminationGracePeriodSeconds": 30, "containers": [
                {"name": "c", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "500m"}},
                 "livenessProbe": {"tcpSocket": {"port": 80}}}]}
        });
        let mut places = Vec::new();
        collect(&pod, "", &mut places);
        let place = &places[at % places.len()];
        *pod.pointer_mut(place).unwrap() = with;
        pod
    }

    fn collect(value: &Value, place: &str, places: &mut Vec<String>) {
        places.push(place.to_owned());
        match value {
            Value::Object(members) => members.iter().for_each(|(k, v)| collect(v, &format!("{place}/{k}"), places)),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(i, v)| collect(v, &format!("{place}/{i}"), places))
            }
            _ => {}
        }
    }

    proptest::proptest! {
        /// What fits is what the long way finds nothing in, and changes nothing of.
        #[test]
        fn agrees_with_the_long_way(at: usize, choice in 0..12usize) {
            let with = [json!(null), json!(true), json!(1), json!(-1), json!(1.5), json!(1u64 << 40), json!("a"),
                json!("500m"), json!("0.5"), json!("2026-01-02T03:04:05Z"), json!([]), json!({})][choice].clone();
            let pod = pod(at, with);
            let mut checked = pod.clone();
            let is_plain = normalize(&mut checked, &of::<Pod>()).is_ok_and(|unknown| unknown.is_empty()) && checked == pod;
            proptest::prop_assert_eq!(fits(pod.to_string().as_bytes(), &of::<Pod>()), is_plain, "{}", pod);
        }
    }
}
