//! Whether a body is just what its schema says, found by reading over it once.
//!
//! Nearly all bodies are: programs wrote them. Such a body needs no tree, no repair and no report, and its typed form can
//! be read from its bytes. Whatever is in doubt does not fit and goes the long way, [`super::normalize`], which says why.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::check::{base64, time};
use super::{Field, Struct, Type};
use crate::quantity::Quantity;

/// Maps with more entries than this take the long way: repeated keys are looked for one by one here.
const MAX_KEYS: usize = 64;

/// Whether `json` is an object with known fields of the right types only, each given once, with nothing to make canonical.
pub fn fits(json: &[u8], definition: &Struct) -> bool {
    let mut reader = serde_json::Deserializer::from_slice(json);
    Fit::Fields(definition).deserialize(&mut reader).is_ok() && reader.end().is_ok()
}

/// What may come next.
#[derive(Clone, Copy)]
enum Fit<'a> {
    Fields(&'a Struct),
    /// The value of a field, which may be null: it is as good as absent.
    Field(&'a Field),
    /// A member of a list or map, where null would have to be filled.
    Member(&'a Type),
}

impl Fit<'_> {
    fn ty(&self) -> Option<&Type> {
        match self {
            Self::Fields(_) => None,
            Self::Field(field) => Some(&field.ty),
            Self::Member(ty) => Some(ty),
        }
    }

    /// A list or map with nothing in it has to be taken out of most structures.
    fn may_be_empty(&self) -> bool {
        !matches!(self, Self::Field(field) if !field.kept_empty && matches!(field.ty, Type::List(_) | Type::Map(_)))
    }

    fn demand<E: Error>(&self, is_fit: bool) -> Result<(), E> {
        if is_fit { Ok(()) } else { Err(E::custom("does not fit")) }
    }

    fn integer<E: Error>(&self, small: bool) -> Result<(), E> {
        self.demand(match self.ty() {
            Some(Type::Any | Type::Int64 | Type::Number) => true,
            Some(Type::Int32 | Type::IntOrString) => small,
            _ => false,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Fit<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Fit<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what the schema says")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.demand(matches!(self.ty(), Some(Type::Any | Type::Bool)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.integer(i32::try_from(value).is_ok())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.demand(i64::try_from(value).is_ok())?;
        self.integer(i32::try_from(value).is_ok())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.demand(matches!(self.ty(), Some(Type::Any | Type::Number)))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.demand(match self {
            // A time that cannot be absent has to be filled.
            Self::Field(field) => !(field.kept_empty && matches!(field.ty, Type::Time)),
            Self::Member(Type::Any) => true,
            _ => false,
        })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.demand(match self.ty() {
            Some(Type::Any | Type::String | Type::IntOrString) => true,
            Some(Type::Bytes) => base64(text).is_ok(),
            Some(Type::Time) => time(text).is_ok(),
            Some(Type::Quantity) => Quantity::parse(text).is_ok_and(|quantity| quantity.to_string() == text),
            _ => false,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        let item = match self.ty() {
            Some(Type::List(item)) => item,
            Some(ty @ Type::Any) => ty,
            _ => return self.demand(false),
        };
        let mut is_empty = true;
        while sequence.next_element_seed(Fit::Member(item))?.is_some() {
            is_empty = false;
        }
        self.demand(!is_empty || self.may_be_empty())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let definition = match (self, self.ty()) {
            (Self::Fields(definition), _) => definition,
            (_, Some(Type::Struct(definition))) => definition,
            (_, Some(Type::Map(item))) => {
                let count = entries(map, item)?;
                return self.demand(count > 0 || self.may_be_empty());
            }
            (_, Some(ty @ Type::Any)) => return entries(map, ty).map(drop),
            _ => return self.demand(false),
        };
        // No structure of the API has as many fields as bits.
        let mut seen = 0u128;
        while let Some(at) = map.next_key_seed(Name(definition))? {
            let bit = 1u128.checked_shl(at as u32).unwrap_or_default();
            self.demand(bit & !seen != 0)?;
            seen |= bit;
            map.next_value_seed(Fit::Field(&definition.fields()[at]))?;
        }
        self.demand(definition.times & !seen == 0)
    }
}

/// The entries of a map, each key once; how many there are.
fn entries<'de, A: MapAccess<'de>>(mut map: A, item: &Type) -> Result<usize, A::Error> {
    let mut keys: Vec<std::borrow::Cow<'de, str>> = Vec::new();
    while let Some(key) = map.next_key_seed(Key)? {
        if keys.len() == MAX_KEYS || keys.contains(&key) {
            return Err(A::Error::custom("repeated, or too many to tell"));
        }
        keys.push(key);
        map.next_value_seed(Fit::Member(item))?;
    }
    Ok(keys.len())
}

/// The place of a field among those of its structure.
struct Name<'a>(&'a Struct);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a known field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<usize, E> {
        self.0.position(name).ok_or_else(|| E::custom("unknown field"))
    }
}

/// A key, as it stands in the text where it can.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = std::borrow::Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = std::borrow::Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(key.into())
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(key.to_owned().into())
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
