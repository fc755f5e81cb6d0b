//! What a node says of itself in its Node object. Only that node may write there, and everybody reads it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{PublicKey, place};

/// Of a Node.
pub const ANNOTATION: &str = "cox.dev/wireguard";

/// One for each device.
const MAX_KEYS: usize = 2;
const MAX_BYTES: usize = 1024;
/// Nobody gets there by exchanging keys; who says more would leave no number for those who come after.
const MAX_GENERATION: u64 = 1 << 32;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Of the first device; the second has the next one.
    pub port: u16,
    /// By generation.
    pub keys: BTreeMap<u64, PublicKey>,
}

#[derive(Debug, thiserror::Error)]
pub enum BadAnnouncement {
    #[error("it is longer than {} bytes", MAX_BYTES)]
    Long,
    #[error("it has more than {} keys", MAX_KEYS)]
    ManyKeys,
    #[error("it has two keys for one device")]
    SameDevice,
    #[error("it has a key of a generation after {}", MAX_GENERATION)]
    Generation,
    #[error("it is not understood: {0}")]
    NotUnderstood(#[from] serde_json::Error),
}

impl Announcement {
    /// Where the device of a generation is reached.
    pub fn endpoint(&self, address: IpAddr, generation: u64) -> Option<SocketAddr> {
        let port = self.port.checked_add(place(generation) as u16)?;
        Some((address, port).into())
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl FromStr for Announcement {
    type Err = BadAnnouncement;

    fn from_str(text: &str) -> Result<Self, BadAnnouncement> {
        if text.len() > MAX_BYTES {
            return Err(BadAnnouncement::Long);
        }
        let announcement: Self = serde_json::from_str(text)?;
        if announcement.keys.len() > MAX_KEYS {
            return Err(BadAnnouncement::ManyKeys);
        }
        if announcement.keys.keys().any(|generation| *generation > MAX_GENERATION) {
            return Err(BadAnnouncement::Generation);
        }
        let places: Vec<usize> = announcement.keys.keys().map(|generation| place(*generation)).collect();
        match places[..] {
            [one, other] if one == other => Err(BadAnnouncement::SameDevice),
            _ => Ok(announcement),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_or_refused() {
        let key = PublicKey([7; 32]);
        let said = Announcement { port: 51820, keys: [(3, key), (4, key)].into() };
        let text = said.to_text();
        assert_eq!(text, format!("{{\"port\":51820,\"keys\":{{\"3\":\"{key}\",\"4\":\"{key}\"}}}}"));
        assert_eq!(text.parse::<Announcement>().unwrap(), said);
        let address: IpAddr = "2001:db8::7".parse().unwrap();
        assert_eq!(said.endpoint(address, 3).unwrap().to_string(), "[2001:db8::7]:51821");
        assert_eq!(said.endpoint(address, 4).unwrap().to_string(), "[2001:db8::7]:51820");
        assert_eq!(Announcement { port: 65535, ..said }.endpoint(address, 3), None);
        let keys = |generations: &[u64]| {
            let keys: Vec<String> =
                generations.iter().map(|generation| format!("\"{generation}\":\"{key}\"")).collect();
            format!("{{\"port\":1,\"keys\":{{{}}}}}", keys.join(","))
        };
        for (text, why) in [
            (keys(&[1, 2, 3]), "more than 2 keys"),
            (keys(&[1, 3]), "two keys for one device"),
            (keys(&[1, u64::MAX]), "a generation after"),
            ("{}".to_owned(), "not understood"),
            ("{\"port\":1,\"keys\":{\"1\":\"AAAA\"}}".to_owned(), "not understood"),
            (" ".repeat(2000), "longer than"),
        ] {
            let error = text.parse::<Announcement>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
