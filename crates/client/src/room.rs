//! The room that there is for what aggregated API servers list. Those are servers of others, which list as much as they like, while
//! our own API server has in memory what it lists.
//!
//! What does not fit is an error, never a shorter list: a collection that is too large cannot be read.

use std::sync::atomic::{AtomicUsize, Ordering};

use api::read::Reader;
use http::HeaderMap;
use serde::de::Error as _;

use crate::BoxError;

/// For one list, or for what a watch brings until its collection is listed again: a million small objects, or a hundred thousand
/// large ones.
const MAX_LIST: usize = if cfg!(test) { 4 << 20 } else { 512 << 20 };
/// For all that this process holds at a time.
const MAX_ALL: usize = 1 << 30;
/// What an object, or a page, takes besides its text: `{}` is one.
const OBJECT: usize = 512;

static ALL: All = All { taken: AtomicUsize::new(0), most: MAX_ALL };

struct All {
    taken: AtomicUsize,
    most: usize,
}

/// The bytes that something has taken, as long as this lives. Nothing is counted before an answer shows that it comes from an
/// aggregated API server.
pub(crate) struct Room {
    all: &'static All,
    is_bounded: bool,
    taken: usize,
    is_full: bool,
}

impl Default for Room {
    fn default() -> Self {
        Self { all: &ALL, is_bounded: false, taken: 0, is_full: false }
    }
}

impl Room {
    /// Takes note of where an answer comes from.
    pub(crate) fn bound_by(&mut self, headers: &HeaderMap) {
        self.is_bounded |= headers.contains_key(api::AGGREGATED_HEADER);
    }

    pub(crate) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), BoxError> {
        if !self.is_bounded {
            return Ok(());
        }
        if self.taken.saturating_add(bytes) > MAX_LIST {
            self.is_full = true;
            return Err(format!("an aggregated API server lists more than {MAX_LIST} bytes").into());
        }
        let most = self.all.most;
        let fits = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= most);
        if self.all.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            self.is_full = true;
            return Err(format!("aggregated API servers list more than {most} bytes together").into());
        }
        self.taken += bytes;
        Ok(())
    }

    /// Whether something did not fit.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// For an object besides its text.
    pub(crate) fn take_object(&mut self) -> serde_json::Result<()> {
        self.take(OBJECT).map_err(serde_json::Error::custom)
    }

    /// Reads something that takes no more memory than there is room for: `[{},{}]` is two structures of half a kilobyte.
    pub(crate) fn read<T>(
        &mut self,
        from: &mut Reader<'_>,
        read: impl FnOnce(&mut Reader<'_>) -> serde_json::Result<T>,
    ) -> serde_json::Result<T> {
        if !self.is_bounded {
            return read(from);
        }
        let before = from.bound(MAX_LIST - self.taken);
        let result = read(from);
        if result.is_err() && from.room() == 0 {
            self.is_full = true;
        }
        let object = result?;
        self.take(before - from.room()).map_err(serde_json::Error::custom)?;
        Ok(object)
    }

    /// Gives back what was taken.
    pub(crate) fn clear(&mut self) {
        self.all.taken.fetch_sub(self.taken, Ordering::Relaxed);
        self.taken = 0;
        self.is_full = false;
    }

    /// An empty one for more of the same.
    pub(crate) fn another(&self) -> Self {
        Self { all: self.all, is_bounded: self.is_bounded, taken: 0, is_full: false }
    }

    /// Whether others may soon lack what was taken here.
    pub(crate) fn is_crowded(&self) -> bool {
        self.taken > 0 && self.all.taken.load(Ordering::Relaxed) > self.all.most / 2
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn aggregated() -> HeaderMap {
        HeaderMap::from_iter([(api::AGGREGATED_HEADER.parse().unwrap(), HeaderValue::from_static("true"))])
    }

    #[test]
    fn security_only_what_aggregated_servers_list_is_bounded() {
        let mut room = Room::default();
        room.bound_by(&HeaderMap::new());
        assert!((0..3).all(|_| room.take(MAX_LIST).is_ok()) && !room.is_crowded());
        room.bound_by(&aggregated());
        assert!(room.take(MAX_LIST).is_ok() && !room.is_full());
        let error = room.take(1).unwrap_err().to_string();
        assert_eq!(error, format!("an aggregated API server lists more than {MAX_LIST} bytes"));
        assert!(room.take_object().is_err() && room.is_full());
        room.clear();
        assert!(room.take(MAX_LIST).is_ok());
    }

    #[test]
    fn security_what_all_aggregated_servers_list_is_bounded() {
        static FEW: All = All { taken: AtomicUsize::new(0), most: MAX_LIST };
        let room = || Room { all: &FEW, is_bounded: true, taken: 0, is_full: false };
        let (mut first, mut second) = (room(), room());
        assert!(first.take(MAX_LIST / 2).is_ok() && !first.is_crowded());
        assert!(second.take(MAX_LIST / 2).is_ok() && first.is_crowded() && !second.another().is_crowded());
        assert!(first.take(1).unwrap_err().to_string().contains(" together"));
        drop(second);
        assert!(first.take(1).is_ok());
        drop(first);
        assert_eq!(FEW.taken.load(Ordering::Relaxed), 0);
    }
}
