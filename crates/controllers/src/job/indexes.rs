//! Sets of completion indexes, written as `1,3-5,7`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

pub(super) type Indexes = BTreeSet<i32>;

/// Indexes at or beyond `limit` are left out: completions may have been lowered.
pub(super) fn parse(text: &str, limit: i32) -> Indexes {
    intervals(text, limit).flat_map(|(first, last)| first..=last).collect()
}

/// How many indexes a text names, and how many of them are in a set. The text of a user may name billions, which are not
/// written out.
pub(super) fn named(text: &str, limit: i32, set: &Indexes) -> (i64, usize) {
    intervals(text, limit).fold((0, 0), |(all, found), (first, last)| {
        (all + i64::from(last) - i64::from(first) + 1, found + set.range(first..=last).count())
    })
}

/// The first and the last index of each range.
fn intervals(text: &str, limit: i32) -> impl Iterator<Item = (i32, i32)> {
    text.split(',').filter_map(move |range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<i32>().ok()?, last.parse::<i32>().ok()?);
        let last = last.min(limit.saturating_sub(1));
        (first <= last).then_some((first, last))
    })
}

/// Two neighbours are written apart, three or more as a range.
pub(super) fn format(indexes: &Indexes) -> String {
    let mut text = String::new();
    let mut rest = indexes.iter().copied().peekable();
    while let Some(first) = rest.next() {
        let mut last = first;
        while rest.peek() == Some(&(last + 1)) {
            last += 1;
            rest.next();
        }
        if !text.is_empty() {
            text.push(',');
        }
        // Writing to a String cannot fail.
        let _ = match last - first {
            0 => write!(text, "{first}"),
            1 => write!(text, "{first},{last}"),
            _ => write!(text, "{first}-{last}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_billions_of_indexes_are_not_written_out() {
        let set = Indexes::from([0, 1, 5, i32::MAX - 1]);
        for (text, limit, expected) in [
            ("0-2147483646", i32::MAX, (i64::from(i32::MAX), 4)),
            ("0-1,5", i32::MAX, (3, 3)),
            ("1-5", 3, (2, 1)),
            ("7", 3, (0, 0)),
            ("", 3, (0, 0)),
        ] {
            assert_eq!(named(text, limit, &set), expected, "{text}");
        }
    }

    #[test]
    fn texts_and_sets_agree() {
        for (text, limit, canonical) in [
            ("", 10, ""),
            ("0", 10, "0"),
            ("1,3-5,7", 10, "1,3-5,7"),
            ("0,1,2", 10, "0-2"),
            ("3,4", 10, "3,4"),
            ("1-9", 4, "1-3"),
            ("bad,2", 10, "2"),
        ] {
            assert_eq!(format(&parse(text, limit)), canonical, "{text}");
        }
    }
}
