//! Which field has which name, for every structure that the build has a schema of.

use k8s_openapi::Resource as _;

use super::{Error, Fields, Read, Reader};

/// A structure, what it has besides its fields (a kind has its version and its name in JSON), and its fields.
macro_rules! structure {
    ($type:ty, $name:literal, kind, $($field:literal $member:ident)*) => {
        structure!($type, $name, $($field $member)*; "apiVersion" => API_VERSION, "kind" => KIND);

        impl crate::schema::Encode for $type {
            fn encode(&self) -> serde_json::Result<Vec<u8>> {
                crate::schema::encode(self, &crate::schema::of::<Self>())
            }
        }
    };
    ($type:ty, $name:literal, plain, $($field:literal $member:ident)*) => {
        structure!($type, $name, $($field $member)*;);
    };
    ($type:ty, $name:literal, $($field:literal $member:ident)*; $($constant:literal => $only:ident),*) => {
        impl Fields for $type {
            fn name(&self) -> &'static str {
                $name
            }

            fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> Result<(), Error> {
                match name {
                    $($field => from.field(&mut self.$member),)*
                    $($constant => from.constant(Self::$only),)*
                    _ => from.skip(),
                }
            }
        }

        impl Read for $type {
            fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
                let mut new = Self::default();
                from.object(&mut new)?;
                Ok(new)
            }
        }
    };
}

/// A structure without fields, which `k8s-openapi` takes as it is.
macro_rules! value {
    ($type:ty) => {
        impl Read for $type {
            fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
                Read::read(from).map(Self)
            }
        }
    };
}

/// A structure that cannot be made before a field of it was read.
macro_rules! by_serde {
    ($type:ty) => {
        crate::read_by_serde!($type);
    };
}

include!(concat!(env!("OUT_DIR"), "/structures.rs"));
