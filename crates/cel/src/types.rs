//! Types of expressions, and when one will do for another.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub enum Type {
    /// Known only at run time: fits everything.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    Type(Arc<Type>),
    Optional(Arc<Type>),
    Struct(Arc<dyn Struct>),
    /// A type with functions and no fields: `net.IP`.
    Opaque(&'static str),
    /// To be found out: the element of an empty list, a parameter of a function.
    Param(u32),
    /// Of what is wrong already, so that one mistake is told once.
    Error,
}

/// A type with known fields.
pub trait Struct: Send + Sync + fmt::Debug {
    fn name(&self) -> &str;
    fn field(&self, name: &str) -> Option<Type>;
}

impl Type {
    pub fn list(of: Type) -> Self {
        Type::List(Arc::new(of))
    }

    pub fn map(key: Type, value: Type) -> Self {
        Type::Map(Arc::new(key), Arc::new(value))
    }

    pub fn optional(of: Type) -> Self {
        Type::Optional(Arc::new(of))
    }

    pub fn is_dyn(&self) -> bool {
        matches!(self, Type::Dyn | Type::Error)
    }

    /// A simple type or type constructor by the name it has in expressions.
    pub(crate) fn named(name: &str) -> Option<Type> {
        Some(match name {
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "null_type" => Type::Null,
            "dyn" => Type::Dyn,
            "list" => Type::list(Type::Dyn),
            "map" => Type::map(Type::Dyn, Type::Dyn),
            "type" => Type::Type(Arc::new(Type::Dyn)),
            "google.protobuf.Timestamp" => Type::Timestamp,
            "google.protobuf.Duration" => Type::Duration,
            "optional_type" => Type::optional(Type::Dyn),
            "net.IP" => Type::Opaque("net.IP"),
            "net.CIDR" => Type::Opaque("net.CIDR"),
            "kubernetes.URL" => Type::Opaque("kubernetes.URL"),
            "kubernetes.Quantity" => Type::Opaque("kubernetes.Quantity"),
            "kubernetes.Semver" => Type::Opaque("kubernetes.Semver"),
            _ => return None,
        })
    }

    /// As values of the type call it, which for some differs from how the checker shows it.
    pub(crate) fn name(&self) -> String {
        match self {
            Type::Null => "null_type".to_owned(),
            Type::Timestamp => "google.protobuf.Timestamp".to_owned(),
            Type::Duration => "google.protobuf.Duration".to_owned(),
            other => other.to_string(),
        }
    }

    fn is_nullable(&self) -> bool {
        matches!(self, Type::Struct(_) | Type::Opaque(_) | Type::Optional(_) | Type::Timestamp | Type::Duration)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Dyn => f.write_str("dyn"),
            Type::Null => f.write_str("null"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::String => f.write_str("string"),
            Type::Bytes => f.write_str("bytes"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::List(of) => write!(f, "list({of})"),
            Type::Map(key, value) => write!(f, "map({key}, {value})"),
            Type::Type(of) => write!(f, "type({of})"),
            Type::Optional(of) => write!(f, "optional_type({of})"),
            Type::Struct(of) => f.write_str(of.name()),
            Type::Opaque(name) => f.write_str(name),
            Type::Param(_) => f.write_str("dyn"),
            Type::Error => f.write_str("!error!"),
        }
    }
}

/// What is known of parameters so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    bound: HashMap<u32, Type>,
    next: u32,
}

impl Known {
    pub(crate) fn fresh(&mut self) -> Type {
        self.next += 1;
        Type::Param(self.next)
    }

    /// Uses no number again that another attempt has used.
    pub(crate) fn skip_to(&mut self, other: &Known) {
        self.next = self.next.max(other.next);
    }

    /// The type with everything that is known put in.
    pub(crate) fn resolve(&self, of: &Type) -> Type {
        match of {
            Type::Param(number) => match self.bound.get(number) {
                Some(bound) => self.resolve(bound),
                None => of.clone(),
            },
            Type::List(inner) => Type::list(self.resolve(inner)),
            Type::Optional(inner) => Type::optional(self.resolve(inner)),
            Type::Type(inner) => Type::Type(Arc::new(self.resolve(inner))),
            Type::Map(key, value) => Type::map(self.resolve(key), self.resolve(value)),
            other => other.clone(),
        }
    }

    fn contains(&self, of: &Type, number: u32) -> bool {
        match self.resolve(of) {
            Type::Param(found) => found == number,
            Type::List(inner) | Type::Optional(inner) | Type::Type(inner) => self.contains(&inner, number),
            Type::Map(key, value) => self.contains(&key, number) || self.contains(&value, number),
            _ => false,
        }
    }

    /// Whether a value of type `from` may stand where `to` is wanted; parameters are found out on the way.
    pub(crate) fn assign(&mut self, from: &Type, to: &Type) -> bool {
        let (from, to) = (self.resolve(from), self.resolve(to));
        match (&from, &to) {
            (Type::Param(one), Type::Param(other)) if one == other => true,
            (other, Type::Param(number)) | (Type::Param(number), other) => {
                if self.contains(other, *number) {
                    return false;
                }
                self.bound.insert(*number, other.clone());
                true
            }
            (Type::Dyn | Type::Error, _) | (_, Type::Dyn | Type::Error) => true,
            (Type::Null, other) | (other, Type::Null) if other.is_nullable() => true,
            (Type::List(from), Type::List(to)) | (Type::Optional(from), Type::Optional(to)) => self.assign(from, to),
            (Type::Map(from_key, from_value), Type::Map(to_key, to_value)) => {
                self.assign(from_key, to_key) && self.assign(from_value, to_value)
            }
            (Type::Type(_), Type::Type(_)) => true,
            (Type::Struct(from), Type::Struct(to)) => from.name() == to.name(),
            (Type::Opaque(from), Type::Opaque(to)) => from == to,
            _ => std::mem::discriminant(&from) == std::mem::discriminant(&to),
        }
    }
}
