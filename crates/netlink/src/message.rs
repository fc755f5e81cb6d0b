//! Building and reading netlink messages: a header, a fixed body, attributes that nest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;

pub(crate) const HEADER: usize = 16;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;

/// A message in the making: header, then a fixed body, then attributes.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) bytes: Vec<u8>,
}

impl Request {
    pub(crate) fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        Self { bytes }
    }

    pub(crate) fn body(mut self, body: &[u8]) -> Self {
        self.bytes.extend_from_slice(body);
        self
    }

    pub(crate) fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        self.push(kind, value);
        self
    }

    pub(crate) fn attr_u32(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    pub(crate) fn attr_str(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    pub(crate) fn attr_ip(self, kind: u16, addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(addr) => self.attr(kind, &addr.octets()),
            IpAddr::V6(addr) => self.attr(kind, &addr.octets()),
        }
    }

    /// An attribute whose value is what `fill` adds.
    pub(crate) fn nest(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes[start + 2..start + 4].copy_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        let mut filled = fill(self);
        let length = (filled.bytes.len() - start) as u16;
        filled.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        filled
    }

    fn push(&mut self, kind: u16, value: &[u8]) {
        let length = (value.len() + 4) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// The attributes in `bytes`; stops at the first that does not fit.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(read_u16(rest, 0)?);
        let kind = read_u16(rest, 2)? & NLA_TYPE_MASK;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn read_string(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

pub(crate) fn read_ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

pub(crate) fn family(addr: IpAddr) -> u8 {
    (if addr.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET }) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_round_trip() {
        let request = Request::new(1, 0).attr_str(3, "eth0").nest(18, |r| r.attr(1, b"veth").attr_u32(2, 7));
        let bytes = request.finish(9);
        assert_eq!(read_u32(&bytes, 0), Some(bytes.len() as u32));
        let attrs: Vec<_> = attributes(&bytes[HEADER..]).collect();
        assert_eq!(attrs[0], (3, &b"eth0\0"[..]));
        assert_eq!(attrs[1].0, 18);
        let inner: Vec<_> = attributes(attrs[1].1).collect();
        assert_eq!(inner, vec![(1, &b"veth"[..]), (2, &7u32.to_ne_bytes()[..])]);
    }

    #[test]
    fn truncated_attributes_end_quietly() {
        for bytes in [&[][..], &[1], &[0, 0, 0, 0], &[200, 0, 1, 0, 1], &[4, 0, 1, 0]] {
            assert!(attributes(bytes).count() <= 1);
        }
    }
}
