//! IP addresses and ranges as fields may hold them, and those addresses that mean something else where they are used than
//! where they were written: the host itself, its link.
//!
//! What was stored when more was accepted may stay: on updates, callers ask only about values that the old object does not
//! have (`StrictIPCIDRValidation`, v1.36).

use std::net::IpAddr;

use api::cidr::{Cidr, is_link_local};
use api::field::{FieldErrors, Path};

/// Why a text is no IP address for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    #[error("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]
    NoAddress,
    /// Decimal to some programs and octal to others.
    #[error("must not have leading 0s")]
    LeadingZeros,
    /// IPv4 to some programs and IPv6 to others.
    #[error("must not be an IPv4-mapped IPv6 address")]
    Mapped,
    #[error("must be in canonical form (\"{0}\")")]
    NotCanonical(IpAddr),
}

/// Why a text is no range of addresses for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRange {
    #[error("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")]
    NoRange,
    #[error("must not have leading 0s in IP or prefix length")]
    LeadingZeros,
    #[error("must not have an IPv4-mapped IPv6 address")]
    Mapped,
    #[error("must not have bits set beyond the prefix length")]
    HostBits,
    #[error("must be in canonical form (\"{0}\")")]
    NotCanonical(Cidr),
}

/// An IP address of either family (`IsValidIPForLegacyField`, v1.36).
pub fn parse_ip(text: &str) -> Result<IpAddr, InvalidAddress> {
    match text.parse::<IpAddr>() {
        Ok(address) if is_mapped(address) => Err(InvalidAddress::Mapped),
        Ok(address) => Ok(address),
        Err(_) if without_leading_zeros(text).parse::<IpAddr>().is_ok() => Err(InvalidAddress::LeadingZeros),
        Err(_) => Err(InvalidAddress::NoAddress),
    }
}

/// The same, written as everybody writes it (`IsValidIP`, v1.36).
pub fn parse_canonical_ip(text: &str) -> Result<IpAddr, InvalidAddress> {
    let address = parse_ip(text)?;
    if address.to_string() == text { Ok(address) } else { Err(InvalidAddress::NotCanonical(address)) }
}

/// A range of either family (`IsValidCIDRForLegacyField`, v1.36).
pub(crate) fn parse_cidr(text: &str) -> Result<Cidr, InvalidRange> {
    let range = any_cidr(text).ok_or(InvalidRange::NoRange)?;
    let (address, length) = text.split_once('/').unwrap_or_default();
    if address.parse::<IpAddr>().is_err() || without_leading_zeros(length) != length {
        Err(InvalidRange::LeadingZeros)
    } else if is_mapped(range.addr) {
        Err(InvalidRange::Mapped)
    } else if range != range.network() {
        Err(InvalidRange::HostBits)
    } else {
        Ok(range)
    }
}

/// The same, written as everybody writes it (`IsValidCIDR`, v1.36).
pub(crate) fn parse_canonical_cidr(text: &str) -> Result<Cidr, InvalidRange> {
    let range = parse_cidr(text)?;
    if range.to_string() == text { Ok(range) } else { Err(InvalidRange::NotCanonical(range)) }
}

/// A range as fields could hold it before v1.36 (`ParseCIDRSloppy`).
pub(crate) fn any_cidr(text: &str) -> Option<Cidr> {
    let (address, length) = text.split_once('/')?;
    format!("{}/{}", without_leading_zeros(address), without_leading_zeros(length)).parse().ok()
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// `010.1.0.00` as `10.1.0.0`.
fn without_leading_zeros(text: &str) -> String {
    let plain = |part: &str| {
        let rest = part.trim_start_matches('0');
        let is_number = rest.starts_with(|c: char| c.is_ascii_hexdigit());
        if is_number || rest.len() == part.len() { rest.to_owned() } else { format!("0{rest}") }
    };
    text.split_inclusive(['.', ':']).map(plain).collect()
}

/// An IP address of either family.
pub(crate) fn ip(errors: &mut FieldErrors, path: &Path<'_>, value: &str) {
    if let Err(error) = parse_ip(value) {
        errors.invalid(path, value, error.to_string());
    }
}

/// A range of either family.
pub(crate) fn cidr(errors: &mut FieldErrors, path: &Path<'_>, value: &str) {
    if let Err(error) = parse_cidr(value) {
        errors.invalid(path, value, error.to_string());
    }
}

/// An address that traffic of others may be sent to: an IP address, and none that leads back to whoever sends.
pub(crate) fn ordinary(errors: &mut FieldErrors, path: &Path<'_>, text: &str) {
    match parse_ip(text) {
        Ok(_) => not_special(errors, path, text),
        Err(error) => errors.invalid(path, text, error.to_string()),
    }
}

/// None that leads back to whoever sends (`ValidateEndpointIP`, v1.36), of an IP address that may have been stored when more
/// was accepted.
pub(crate) fn not_special(errors: &mut FieldErrors, path: &Path<'_>, text: &str) {
    let Ok(address) = without_leading_zeros(text).parse::<IpAddr>() else {
        return errors.invalid(path, text, "must be a valid IP address");
    };
    let address = address.to_canonical();
    if address.is_unspecified() {
        errors.invalid(path, text, format!("may not be unspecified ({text})"));
    }
    if address.is_loopback() {
        errors.invalid(path, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if is_link_local(address) {
        errors.invalid(path, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if is_link_local_multicast(address) {
        errors.invalid(path, text, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

fn is_link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.is_multicast() && address.segments()[0] & 0xf == 2,
    }
}

#[cfg(test)]
mod tests {
    use api::cidr::is_global_unicast;

    use super::*;

    #[test]
    fn security_addresses_that_lead_back_are_told_apart() {
        for (text, is_ordinary, is_proxied) in [
            ("10.0.0.1", true, true),
            ("192.168.1.1", true, true),
            ("2001:db8::1", true, true),
            ("fd00::1", true, true),
            ("127.0.0.1", false, false),
            ("::1", false, false),
            ("::ffff:127.0.0.1", false, false),
            ("169.254.169.254", false, false),
            ("::ffff:169.254.169.254", false, false),
            ("fe80::1", false, false),
            ("224.0.0.251", false, false),
            ("ff02::fb", false, false),
            ("239.1.1.1", true, false),
            ("255.255.255.255", true, false),
            ("0.0.0.0", false, false),
            ("::", false, false),
        ] {
            let mut errors = FieldErrors::default();
            ordinary(&mut errors, &Path::new("a"), text);
            assert_eq!(errors.is_empty(), is_ordinary, "{text}: {errors}");
            assert_eq!(is_global_unicast(text.parse().unwrap()), is_proxied, "{text}");
        }
        let mut errors = FieldErrors::default();
        ordinary(&mut errors, &Path::new("a"), "169.254.169.254");
        let expected =
            "a: Invalid value: \"169.254.169.254\": may not be in the link-local range (169.254.0.0/16, fe80::/10)";
        assert_eq!(errors.to_string(), expected);
    }

    #[test]
    fn addresses_that_programs_read_differently_are_refused() {
        let shown = |text: &str| parse_canonical_ip(text).map_or_else(|error| error.to_string(), |ip| ip.to_string());
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1"),
            ("0.0.0.0", "0.0.0.0"),
            ("fd00::a:0", "fd00::a:0"),
            ("FD00::0A", "must be in canonical form (\"fd00::a\")"),
            ("010.0.0.1", "must not have leading 0s"),
            ("10.0.0.00", "must not have leading 0s"),
            ("::ffff:10.0.0.01", "must not have leading 0s"),
            ("::ffff:10.0.0.1", "must not be an IPv4-mapped IPv6 address"),
            ("", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
            ("10.0.0.256", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
            ("fe80::1%eth0", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        assert!(parse_ip("FD00::0A").is_ok());
    }

    #[test]
    fn ranges_that_programs_read_differently_are_refused() {
        const NONE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        let shown = |text: &str| parse_canonical_cidr(text).map_or_else(|error| error.to_string(), |ip| ip.to_string());
        for (text, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("fd00::/64", "fd00::/64"),
            ("FD00::/64", "must be in canonical form (\"fd00::/64\")"),
            ("010.0.0.0/8", "must not have leading 0s in IP or prefix length"),
            ("10.0.0.0/08", "must not have leading 0s in IP or prefix length"),
            ("::ffff:10.0.0.0/104", "must not have an IPv4-mapped IPv6 address"),
            ("10.0.0.1/8", "must not have bits set beyond the prefix length"),
            ("10.0.0.0/+8", NONE),
            ("10.0.0.0/33", NONE),
            ("10.0.0.0/", NONE),
            ("10.0.0.0", NONE),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        assert!(parse_cidr("FD00::/64").is_ok());
    }
}
