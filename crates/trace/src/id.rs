//! Names of spans.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Identifies a span. A commit is named by the resource version that it made, so that whoever sees that version knows its
/// cause; all others have names that no other process makes up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

const COMMIT: u64 = 1 << 63;

impl Id {
    /// The span of the commit that made `revision`.
    pub const fn commit(revision: u64) -> Self {
        Self(revision | COMMIT)
    }

    /// A name that was never used: a random number of this process and a count.
    pub fn fresh() -> Self {
        static NEXT: LazyLock<AtomicU64> =
            LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(std::process::id())));
        Self(NEXT.fetch_add(1, Ordering::Relaxed) & !COMMIT)
    }

    pub const fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub const fn is_commit(self) -> bool {
        self.0 & COMMIT != 0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_commit() {
            true => write!(out, "rv{}", self.0 & !COMMIT),
            false => write!(out, "{:016x}", self.0),
        }
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl FromStr for Id {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bits = match text.strip_prefix("rv") {
            Some(revision) => revision.parse().ok().filter(|bits| bits & COMMIT == 0).map(|bits: u64| bits | COMMIT),
            None => u64::from_str_radix(text, 16).ok().filter(|bits| bits & COMMIT == 0),
        };
        bits.map(Self).ok_or("not the id of a span")
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_their_text() {
        for id in [Id::commit(0), Id::commit(1234), Id::fresh(), Id::fresh()] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        assert_eq!(Id::commit(12).to_string(), "rv12");
        assert_ne!(Id::fresh(), Id::fresh());
        assert_eq!("00000000000000ff".parse(), Ok(Id(255)));
        for wrong in ["", "rv", "rv-1", "xyz", "ffffffffffffffff"] {
            assert!(wrong.parse::<Id>().is_err(), "{wrong}");
        }
    }
}
