//! Values of the types that Kubernetes adds.

mod semver;
mod url;

use std::net::IpAddr;
use std::sync::Arc;

use api::cidr::Cidr;
use api::quantity::Quantity;

pub(crate) use semver::Semver;
pub(crate) use url::Url;

#[derive(Debug)]
pub enum Extension {
    Quantity(Quantity),
    Ip(IpAddr),
    Cidr(Cidr),
    Url(Url),
    Semver(Semver),
    Format(&'static Format),
}

/// A named format of strings, and what is wrong with a string that is to have it.
#[derive(Debug)]
pub struct Format {
    pub(crate) name: &'static str,
    pub(crate) problems: fn(&str) -> Vec<String>,
}

impl Extension {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Extension::Quantity(_) => "kubernetes.Quantity",
            Extension::Ip(_) => "net.IP",
            Extension::Cidr(_) => "net.CIDR",
            Extension::Url(_) => "kubernetes.URL",
            Extension::Semver(_) => "kubernetes.Semver",
            Extension::Format(_) => "kubernetes.NamedFormat",
        }
    }

    /// What `string()` makes of it, where it makes anything.
    pub(crate) fn text(&self) -> Option<Arc<str>> {
        match self {
            Extension::Ip(ip) => Some(ip.to_string().into()),
            Extension::Cidr(cidr) => Some(cidr.to_string().into()),
            _ => None,
        }
    }

    pub(crate) fn equals(&self, other: &Extension) -> bool {
        match (self, other) {
            (Extension::Quantity(one), Extension::Quantity(other)) => one == other,
            (Extension::Ip(one), Extension::Ip(other)) => one == other,
            (Extension::Cidr(one), Extension::Cidr(other)) => one == other,
            (Extension::Url(one), Extension::Url(other)) => one == other,
            (Extension::Semver(one), Extension::Semver(other)) => one.compare(other).is_eq(),
            (Extension::Format(one), Extension::Format(other)) => std::ptr::eq(*one, *other),
            _ => false,
        }
    }
}
