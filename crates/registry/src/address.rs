//! IP addresses, and those among them that mean something else where they are used than where they were written: the host
//! itself, its link.

use std::net::IpAddr;

use api::cidr::is_link_local;
use api::field::{FieldErrors, Path};

/// An IP address of either family.
pub(crate) fn ip(errors: &mut FieldErrors, path: &Path<'_>, value: &str) {
    if value.parse::<IpAddr>().is_err() {
        errors.invalid(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
    }
}

/// An address that traffic of others may be sent to (`ValidateNonSpecialIP`, v1.36): an IP address, and none that leads
/// back to whoever sends.
pub(crate) fn ordinary(errors: &mut FieldErrors, path: &Path<'_>, text: &str) {
    let Ok(address) = text.parse::<IpAddr>() else {
        return ip(errors, path, text);
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
}
