//! The types of `k8s-openapi`, read from JSON.
//!
//! Their own readers, for serde, are compiled by every crate that reads a kind and take some 10 MB, mostly code that
//! drops what was read so far if the next field is wrong. Here a structure says only which field has which name, in a
//! table that the build writes from its schema ([`structures`]); fields are read in place, by code that all structures
//! share ([`reader`]).
//!
//! What is accepted is what serde's readers accept, but that `-0` is a whole number, as for Go, and that the text must be
//! UTF-8 also where nobody reads it. Other types can be read by serde ([`read_by_serde`](crate::read_by_serde)).

#[cfg(test)]
mod compare;
mod reader;
mod structures;
mod values;

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer};
use serde_json::value::RawValue;

pub(crate) use reader::without_place;
pub use reader::{Error, Reader};

/// What can be read from JSON.
pub trait Read: Sized {
    fn read(from: &mut Reader<'_>) -> Result<Self, Error>;
}

/// A structure whose fields are read one by one.
pub trait Fields {
    /// What it is called in errors.
    fn name(&self) -> &'static str;

    /// Reads the value of the field with this name; of a field that it does not have, passes over it.
    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> Result<(), Error>;
}

/// Reads a whole text.
pub fn from_slice<T: Read>(json: &[u8]) -> Result<T, Error> {
    // Checked once as a whole: string by string costs more.
    from_str(std::str::from_utf8(json).map_err(Error::custom)?)
}

pub fn from_str<T: Read>(json: &str) -> Result<T, Error> {
    let mut from = Reader::new(json);
    let read = T::read(&mut from)?;
    from.end()?;
    Ok(read)
}

/// Reads a whole text by a function, for what has no type of its own.
pub fn from_slice_by<T>(json: &[u8], read: impl FnOnce(&mut Reader<'_>) -> Result<T, Error>) -> Result<T, Error> {
    let mut from = Reader::new(std::str::from_utf8(json).map_err(Error::custom)?);
    let read = read(&mut from)?;
    from.end()?;
    Ok(read)
}

/// Reads a field of a type that serde reads, as other types do: `#[serde(deserialize_with = "api::read::by_table")]`. Without it, the
/// crate of that type has readers of its own of all that the field holds, some 30 KB for metadata.
pub fn by_table<'de, D: Deserializer<'de>, T: Read>(from: D) -> Result<T, D::Error> {
    let text = Box::<RawValue>::deserialize(from)?;
    from_str(text.get()).map_err(|error| D::Error::custom(without_place(&error)))
}

/// Reads types that serde reads.
#[macro_export]
macro_rules! read_by_serde {
    ($($type:ty),+ $(,)?) => {$(
        impl $crate::read::Read for $type {
            fn read(from: &mut $crate::read::Reader<'_>) -> Result<Self, $crate::read::Error> {
                from.by_serde()
            }
        }
    )+};
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde::Deserialize;

    #[test]
    fn security_small_texts_do_not_become_large_objects() {
        let pod = |count: usize| format!(r#"{{"spec": {{"containers": [{}]}}}}"#, vec!["{}"; count].join(","));
        let read = super::from_str::<Pod>(&pod(1000)).unwrap();
        assert_eq!(read.spec.unwrap().containers.len(), 1000);
        let refused = |error: super::Error| error.to_string().starts_with("the object would be too large in memory");
        assert!(super::from_str::<Pod>(&pod(100_000)).is_err_and(refused));
        for part in [r#"{"properties": {"a": {}}}"#, r#"{"not": {}}"#] {
            let schema = |count: usize| format!(r#"{{"anyOf": [{}]}}"#, vec![part; count].join(","));
            assert!(super::from_str::<JSONSchemaProps>(&schema(1000)).is_ok());
            assert!(super::from_str::<JSONSchemaProps>(&schema(100_000)).is_err_and(refused), "{part}");
        }
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Own {
        #[serde(default, deserialize_with = "crate::read::by_table")]
        metadata: ObjectMeta,
    }

    #[test]
    fn fields_of_types_that_serde_reads_are_read_by_their_tables() {
        let text = r#"{"other": 1, "metadata": {"name": "a", "labels": {"b": "c"}}}"#;
        let read: Own = serde_json::from_str(text).unwrap();
        assert_eq!((read.metadata.name.as_deref(), read.metadata.labels.as_ref().unwrap().len()), (Some("a"), 1));
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::from_value::<Own>(value).unwrap(), read);
        assert_eq!(serde_json::from_str::<Own>("{}").unwrap().metadata, ObjectMeta::default());
        let error = serde_json::from_str::<Own>(r#"{"metadata": {"name": 7}}"#).unwrap_err().to_string();
        assert!(error.starts_with("invalid type: integer `7`, expected a string"), "{error}");
    }
}
