//! Whether a body is just what its schema says, found by reading over it once.
//!
//! Nearly all bodies are: programs wrote them. Such a body needs no tree, no repair and no report, and its typed form can
//! be read from its bytes. Zero values that mean the same as nothing are cut out. Whatever is in doubt does not fit and goes the long way, [`super::normalize`], which says why.
//!
//! The look is at shapes and names, as [`scan`] sees them: a text that is no JSON may seem to fit, until its typed form
//! is read.

use std::borrow::Cow;
use std::ops::Range;

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

/// The text of an object with known fields of the right types only, each given once, with nothing to make canonical:
/// without the zero values that mean the same as nothing. `None` if it is not such a text; says nothing about what is no
/// JSON.
pub fn fit<'a>(json: &'a [u8], definition: &Struct) -> Option<Cow<'a, [u8]>> {
    let mut look = Look { json, cuts: Vec::new() };
    let end = look.fields(scan::skip_space(json, 0), definition, MAX_DEPTH)?;
    (scan::skip_space(json, end) == json.len()).then(|| cut(json, &look.cuts))
}

/// A text without some members of its objects, with the commas that go with them.
fn cut<'a>(json: &'a [u8], cuts: &[Range<usize>]) -> Cow<'a, [u8]> {
    if cuts.is_empty() {
        return Cow::Borrowed(json);
    }
    let mut out = Vec::with_capacity(json.len());
    let mut from = 0;
    for place in cuts {
        out.extend_from_slice(&json[from..place.start]);
        out.truncate(out.trim_ascii_end().len());
        from = place.end;
        if out.last() == Some(&b',') {
            out.pop();
        } else {
            let next = scan::skip_space(json, from);
            from = if json.get(next) == Some(&b',') { next + 1 } else { next };
        }
    }
    out.extend_from_slice(&json[from..]);
    Cow::Owned(out)
}

/// A look at a text. What fits is passed over: the answer is where it ends.
struct Look<'a> {
    json: &'a [u8],
    /// Members that are to be left out, in order.
    cuts: Vec<Range<usize>>,
}

impl Look<'_> {
    fn fields(&mut self, at: usize, definition: &Struct, depth: usize) -> Option<usize> {
        let json = self.json;
        let mut members = scan::members(json, at);
        // No structure of the API has as many fields as bits.
        let mut seen = 0u128;
        while let Some((name, start)) = members.enter_at() {
            let key = name.start - 1;
            let place = definition.position(json.get(name)?)?;
            let bit = 1u128.checked_shl(place as u32).filter(|bit| seen & bit == 0)?;
            seen |= bit;
            members.leave(self.field(key, start, &definition.fields()[place], depth)?);
        }
        members.end().filter(|_| definition.times & !seen == 0)
    }

    /// The value of a field. Null is as good as absent, but for a time that has to be filled, and so are a list, map or
    /// text of bytes with nothing in it and the zero of what is no pointer upstream.
    fn field(&mut self, key: usize, at: usize, field: &Field, depth: usize) -> Option<usize> {
        let json = self.json;
        let may_be_zero = match json.get(at)? {
            b'n' if field.required && matches!(field.ty, Type::Time) => return None,
            b'n' => return scan::skip_value(json, at),
            b'[' | b'{' => matches!(json.get(scan::skip_space(json, at + 1)), Some(b']' | b'}')),
            b'f' | b'0' | b'-' => true,
            b'"' => json.get(at + 1) == Some(&b'"'),
            _ => false,
        };
        let end = self.value(at, &field.ty, depth)?;
        let text = json.get(at..end)?;
        if may_be_zero && (field.omits_text(text) || field.is_empty_container_text(text)) {
            self.cuts.push(key..end);
        }
        Some(end)
    }

    /// A value that is there. In lists and maps, null would have to be filled.
    fn value(&mut self, at: usize, ty: &Type, depth: usize) -> Option<usize> {
        match (ty, self.json.get(at)?) {
            (Type::Struct(definition), b'{') => self.fields(at, definition, depth.checked_sub(1)?),
            (Type::Map(item), b'{') => self.entries(at, item, depth.checked_sub(1)?),
            (Type::List(item), b'[') => self.items(at, item, depth.checked_sub(1)?),
            (Type::Any, b'{') => self.entries(at, ty, depth.checked_sub(1)?),
            (Type::Any, b'[') => self.items(at, ty, depth.checked_sub(1)?),
            (_, b'{' | b'[') => None,
            _ => {
                let end = scan::skip_value(self.json, at)?;
                is_scalar(self.json.get(at..end)?, ty).then_some(end)
            }
        }
    }

    /// The entries of a map, each key once.
    fn entries(&mut self, at: usize, item: &Type, depth: usize) -> Option<usize> {
        let mut members = scan::members(self.json, at);
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

    fn items(&mut self, at: usize, item: &Type, depth: usize) -> Option<usize> {
        let mut items = scan::items(self.json, at);
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
            // To be taken out, which is no reason not to fit.
            (r#"{"metadata":{"annotations":{}}}"#, true),
            (r#"{"metadata":{"finalizers":[]}}"#, true),
            (r#"{"spec":{"containers":[],"securityContext":{}}}"#, true),
            // Not JSON, or not alone.
            (r#"{"metadata":{"name":"a"}"#, false),
            (r#"{} {}"#, false),
            (r#"{"metadata":{"annotations":{},}}"#, false),
            (r#"{"metadata":{,"annotations":{}}}"#, false),
            (r#"{"metadata":{"name":"a" "annotations":{}}}"#, false),
            ("[]", false),
            ("", false),
        ] {
            assert_eq!(fit(body.as_bytes(), &pod).is_some(), expected, "{body}");
        }
        assert!(fit(br#"{"spec":{"replicas":2147483647}}"#, &of::<Deployment>()).is_some());
        assert!(fit(br#"{"spec":{"replicas":2147483648}}"#, &of::<Deployment>()).is_none());
        assert!(fit(br#"{"data":{"a":"YQ=="}}"#, &of::<Secret>()).is_some());
        assert!(fit(br#"{"data":{"a":"Y"}}"#, &of::<Secret>()).is_none());
    }

    #[test]
    fn many_keys_take_the_long_way() {
        let map = |count: usize| {
            let data: serde_json::Map<_, _> = (0..count).map(|n| (format!("k{n}"), "v".into())).collect();
            json!({ "data": data }).to_string()
        };
        assert!(fit(map(MAX_KEYS).as_bytes(), &of::<ConfigMap>()).is_some());
        assert!(fit(map(MAX_KEYS + 1).as_bytes(), &of::<ConfigMap>()).is_none());
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
        /// What fits is what the long way finds nothing in, and changes nothing of but for zero values.
        #[test]
        fn agrees_with_the_long_way(at: usize, choice in 0..15usize) {
            let with = [json!(null), json!(true), json!(1), json!(-1), json!(1.5), json!(1u64 << 40), json!("a"),
                json!("500m"), json!("0.5"), json!("2026-01-02T03:04:05Z"), json!([]), json!({}), json!(false), json!(0), json!("")][choice].clone();
            let pod = pod(at, with);
            let mut checked = pod.clone();
            let is_known = normalize(&mut checked, &of::<Pod>()).is_ok_and(|unknown| unknown.is_empty());
            match fit(pod.to_string().as_bytes(), &of::<Pod>()) {
                Some(text) => {
                    let read: Value = serde_json::from_slice(&text).unwrap();
                    proptest::prop_assert!(is_known && read == checked, "{} became {} and {}", pod, read, checked);
                }
                None => proptest::prop_assert!(!is_known || checked != pod, "{}", pod),
            }
        }
    }

    #[test]
    fn zero_values_are_cut_wherever_they_stand() {
        for (body, expected) in [
            (r#"{"spec":{"hostNetwork":false,"hostPID":false}}"#, r#"{"spec":{}}"#),
            (r#"{"spec":{"hostNetwork": false , "hostname":"a"}}"#, r#"{"spec":{ "hostname":"a"}}"#),
            (r#"{"spec":{"hostname":"a" , "hostNetwork":false}}"#, r#"{"spec":{"hostname":"a" }}"#),
            (
                r#"{"spec":{"hostname":"a","hostIPC":false,"nodeName":"b","hostPID":false}}"#,
                r#"{"spec":{"hostname":"a","nodeName":"b"}}"#,
            ),
            // Pointers, items, entries.
            (
                r#"{"spec":{"hostUsers":false,"terminationGracePeriodSeconds":0}}"#,
                r#"{"spec":{"hostUsers":false,"terminationGracePeriodSeconds":0}}"#,
            ),
            (
                r#"{"metadata":{"labels":{"a":""},"finalizers":[""]}}"#,
                r#"{"metadata":{"labels":{"a":""},"finalizers":[""]}}"#,
            ),
            // Not what they seem.
            (
                r#"{"spec":{"containers":[{"env":[{"name":"","value":"\"}]"}],"image":"0"}]}}"#,
                r#"{"spec":{"containers":[{"env":[{"name":"","value":"\"}]"}],"image":"0"}]}}"#,
            ),
        ] {
            let cut = fit(body.as_bytes(), &of::<Pod>()).unwrap();
            assert_eq!(std::str::from_utf8(&cut).unwrap(), expected, "{body}");
            assert_eq!(matches!(cut, Cow::Borrowed(_)), body == expected, "{body}");
        }
    }
}
