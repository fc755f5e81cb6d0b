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
