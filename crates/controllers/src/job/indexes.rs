//! Sets of completion indexes, written as `1,3-5,7`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

pub(super) type Indexes = BTreeSet<i32>;

/// Indexes at or beyond `limit` are left out: completions may have been lowered.
pub(super) fn parse(text: &str, limit: i32) -> Indexes {
    let ranges = text.split(',').filter(|range| !range.is_empty()).filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?)
    });
    ranges.flat_map(|range| range.take_while(|index| *index < limit)).collect()
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
