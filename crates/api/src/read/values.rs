//! What structures are made of.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSON, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, JSONSchemaPropsOrStringArray,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, MicroTime, Time};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{Error, Read, Reader};

crate::read_by_serde!(Value, f64, ByteString, crate::Status);

impl<T: Read> Read for Option<T> {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        if from.is_null()? { Ok(None) } else { T::read(from).map(Some) }
    }
}

impl<T: Read> Read for Box<T> {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        from.take(size_of::<T>())?;
        T::read(from).map(Box::new)
    }
}

impl<T: Read> Read for Vec<T> {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let mut list = Vec::new();
        from.items(&mut |from| {
            from.take(size_of::<T>())?;
            list.push(T::read(from)?);
            Ok(())
        })?;
        if from.is_to_keep() {
            list.shrink_to_fit();
        }
        Ok(list)
    }
}

/// A node of a map has room for so many entries, and one that was split holds at least so many.
const NODE: usize = 11;
const LEAST_IN_NODE: usize = 5;

impl<T: Read> Read for BTreeMap<String, T> {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let mut map = BTreeMap::new();
        from.members("a map", &mut |key, from| {
            if map.len().is_multiple_of(LEAST_IN_NODE) {
                from.take(NODE * size_of::<(String, T)>())?;
            }
            map.insert(key.into_owned(), T::read(from)?);
            Ok(())
        })?;
        Ok(map)
    }
}

impl Read for String {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        from.string("a string").map(Into::into)
    }
}

impl Read for bool {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        from.bool()
    }
}

impl Read for i64 {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        from.whole("i64")
    }
}

impl Read for i32 {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        int32(from, "i32")
    }
}

fn int32(from: &mut Reader<'_>, expected: &str) -> Result<i32, Error> {
    let number = from.whole(expected)?;
    number.try_into().map_err(|_| from.error(format!("invalid value: integer `{number}`, expected {expected}")))
}

impl Read for IntOrString {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        match from.next() {
            Some(b'"') => String::read(from).map(Self::String),
            Some(b'-' | b'0'..=b'9') => int32(from, "a 32-bit integer").map(Self::Int),
            _ => Err(from.unexpected("IntOrString")),
        }
    }
}

impl Read for Quantity {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        // Files that people write have numbers, too.
        match from.next() {
            Some(b'-' | b'0'..=b'9') => from.by_serde(),
            _ => String::read(from).map(Self),
        }
    }
}

impl Read for Time {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        time(from).map(Self)
    }
}

impl Read for MicroTime {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        time(from).map(Self)
    }
}

fn time(from: &mut Reader<'_>) -> Result<Timestamp, Error> {
    let text = from.string("an RFC 3339 timestamp")?;
    text.parse().map_err(|error| from.error(error))
}

impl Read for RawExtension {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Value::read(from).map(Self)
    }
}

impl Read for FieldsV1 {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Value::read(from).map(Self)
    }
}

impl Read for JSON {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Value::read(from).map(Self)
    }
}

impl Read for JSONSchemaPropsOrArray {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        match from.next() {
            Some(b'{') => Read::read(from).map(Self::Schema),
            Some(b'[') => Read::read(from).map(Self::Schemas),
            _ => Err(from.unexpected("JSONSchemaPropsOrArray")),
        }
    }
}

impl Read for JSONSchemaPropsOrBool {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        match from.next() {
            Some(b'{') => Read::read(from).map(Self::Schema),
            Some(b't' | b'f') => from.bool().map(Self::Bool),
            _ => Err(from.unexpected("JSONSchemaPropsOrBool")),
        }
    }
}

impl Read for JSONSchemaPropsOrStringArray {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        match from.next() {
            Some(b'{') => Read::read(from).map(Self::Schema),
            Some(b'[') => Read::read(from).map(Self::Strings),
            _ => Err(from.unexpected("JSONSchemaPropsOrStringArray")),
        }
    }
}
