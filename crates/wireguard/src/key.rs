//! Keys of WireGuard: 32 bytes, in base64 wherever people see them.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gotatun::x25519;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const LENGTH: usize = 32;

/// A text that is no key. It is not repeated: it may be almost a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key has {} bytes in base64", LENGTH)]
pub struct BadKey;

/// Wiped from memory when it is dropped.
#[derive(Clone)]
pub struct PrivateKey(x25519::StaticSecret);

impl PrivateKey {
    /// None if the system has no random bytes.
    pub fn generate() -> Option<Self> {
        let mut bytes = [0; LENGTH];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(x25519::StaticSecret::from(bytes)))
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(x25519::PublicKey::from(&self.0).to_bytes())
    }

    /// As `wg` writes it; for a file that only its owner reads.
    pub fn to_text(&self) -> String {
        STANDARD.encode(self.0.to_bytes())
    }

    pub(crate) fn to_bytes(&self) -> [u8; LENGTH] {
        self.0.to_bytes()
    }

    pub(crate) fn secret(&self) -> x25519::StaticSecret {
        self.0.clone()
    }
}

impl FromStr for PrivateKey {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        decode(text.trim()).map(|bytes| Self(x25519::StaticSecret::from(bytes)))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub(crate) [u8; LENGTH]);

impl PublicKey {
    pub(crate) fn of_peer(&self) -> x25519::PublicKey {
        x25519::PublicKey::from(self.0)
    }
}

impl FromStr for PublicKey {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        decode(text).map(Self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

fn decode(text: &str) -> Result<[u8; LENGTH], BadKey> {
    let bytes = STANDARD.decode(text).map_err(|_| BadKey)?;
    bytes.try_into().map_err(|_| BadKey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_standard() {
        // RFC 7748, section 6.1: Bob's key pair.
        let private = "XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os=";
        let key: PrivateKey = format!("{private}\n").parse().unwrap();
        assert_eq!(key.public().to_string(), "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=");
        assert_eq!(key.to_text(), private);
        let again: PublicKey = key.public().to_string().parse().unwrap();
        assert_eq!(again, key.public());
        assert_ne!(PrivateKey::generate().unwrap().public(), PrivateKey::generate().unwrap().public());
    }

    #[test]
    fn security_other_texts_are_no_keys_and_secrets_are_not_shown() {
        for text in ["", "x", "AAAA", &"A".repeat(44), &"A".repeat(60)] {
            assert_eq!(text.parse::<PublicKey>(), Err(BadKey), "{text}");
        }
        let key = PrivateKey::generate().unwrap();
        assert_eq!(format!("{key:?}"), "PrivateKey");
    }
}
