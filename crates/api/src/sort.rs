//! Sorting in little code, and by an order that may have circles.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Lists of up to so many items are sorted by insertion.
const SHORT: usize = 12;

/// Sorts as the methods of slices do; equal items stay as they came.
///
/// Each call of those is one more copy of the whole algorithm, some 6 KB. Here it stands once and asks for each comparison
/// through a pointer, which costs a few nanoseconds: for lists that are short, or seldom sorted.
pub trait CompactSort {
    type Item;

    fn compact_sort(&mut self)
    where
        Self::Item: Ord;

    fn compact_sort_by(&mut self, compare: impl FnMut(&Self::Item, &Self::Item) -> Ordering);

    fn compact_sort_by_key<K: Ord>(&mut self, key: impl FnMut(&Self::Item) -> K);

    /// The same, if a key costs something: it is asked for once.
    fn compact_sort_by_cached_key<K: Ord>(&mut self, key: impl FnMut(&Self::Item) -> K);
}

impl<T> CompactSort for [T] {
    type Item = T;

    fn compact_sort(&mut self)
    where
        T: Ord,
    {
        self.compact_sort_by(Ord::cmp);
    }

    fn compact_sort_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering) {
        sort(self.len(), &mut Compared { items: self, compare });
    }

    fn compact_sort_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.compact_sort_by(|one, other| key(one).cmp(&key(other)));
    }

    fn compact_sort_by_cached_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K) {
        let mut keys: Vec<K> = self.iter().map(key).collect();
        sort(self.len(), &mut Keyed { items: self, keys: &mut keys });
    }
}

/// Collects as [`Iterator::collect`] does, item by item: ordered maps and sets sort what they are collected from, each by a copy
/// of the algorithm of its own.
pub trait CompactCollect: Iterator + Sized {
    fn compact_collect<C: Collected<Self::Item>>(self) -> C {
        let mut all = C::default();
        self.for_each(|item| all.take(item));
        all
    }
}

impl<I: Iterator> CompactCollect for I {}

/// What keeps its items in order.
pub trait Collected<T>: Default {
    /// The last of equal ones stays.
    fn take(&mut self, item: T);
}

impl<T: Ord> Collected<T> for BTreeSet<T> {
    fn take(&mut self, item: T) {
        self.insert(item);
    }
}

impl<K: Ord, V> Collected<(K, V)> for BTreeMap<K, V> {
    fn take(&mut self, (key, value): (K, V)) {
        self.insert(key, value);
    }
}

impl Collected<(String, Value)> for Map<String, Value> {
    fn take(&mut self, (key, value): (String, Value)) {
        self.insert(key, value);
    }
}

/// A list whose items are known by their places.
trait Places {
    fn compare(&mut self, one: usize, other: usize) -> Ordering;
    fn swap(&mut self, one: usize, other: usize);
}

struct Compared<'a, T, F> {
    items: &'a mut [T],
    compare: F,
}

impl<T, F: FnMut(&T, &T) -> Ordering> Places for Compared<'_, T, F> {
    fn compare(&mut self, one: usize, other: usize) -> Ordering {
        (self.compare)(&self.items[one], &self.items[other])
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.items.swap(one, other);
    }
}

struct Keyed<'a, T, K> {
    items: &'a mut [T],
    keys: &'a mut [K],
}

impl<T, K: Ord> Places for Keyed<'_, T, K> {
    fn compare(&mut self, one: usize, other: usize) -> Ordering {
        self.keys[one].cmp(&self.keys[other])
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.items.swap(one, other);
        self.keys.swap(one, other);
    }
}

#[inline(never)]
fn sort(length: usize, list: &mut dyn Places) {
    if length <= SHORT {
        for next in 1..length {
            let mut at = next;
            while at > 0 && list.compare(at, at - 1).is_lt() {
                list.swap(at, at - 1);
                at -= 1;
            }
        }
        return;
    }
    // For each place, where the item is that belongs there.
    let mut sources: Vec<usize> = (0..length).collect();
    sources.sort_by(|one, other| list.compare(*one, *other));
    for first in 0..length {
        // Around one circle of places. What was in its first place moves along until it is where it belongs.
        let mut at = first;
        loop {
            let source = std::mem::replace(&mut sources[at], at);
            if source == first {
                break;
            }
            list.swap(at, source);
            at = source;
        }
    }
}

/// The items in order, equal ones as they came. The order may have circles, as some of upstream's do: the sort of the
/// standard library may panic there.
pub fn merge_sorted<'a, T: ?Sized>(items: &[&'a T], order: &impl Fn(&T, &T) -> Ordering) -> Vec<&'a T> {
    if items.len() < 2 {
        return items.to_vec();
    }
    let (left, right) = items.split_at(items.len() / 2);
    let mut left = merge_sorted(left, order).into_iter().peekable();
    let mut right = merge_sorted(right, order).into_iter().peekable();
    let mut merged = Vec::with_capacity(items.len());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let first = if order(b, a).is_lt() { &mut right } else { &mut left };
        merged.extend(first.next());
    }
    merged.extend(left.chain(right));
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_sorts_do_what_those_of_slices_do() {
        let mut random: u32 = 1;
        for length in (0..40).chain([100, 1000]) {
            for different in [1, 3, 1000] {
                // What has the same number is told apart by where it was.
                let items: Vec<(u32, String)> = (0..length)
                    .map(|place| {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        ((random >> 16) % different, place.to_string())
                    })
                    .collect();
                let sorted = |sort: fn(&mut Vec<(u32, String)>)| {
                    let mut items = items.clone();
                    sort(&mut items);
                    items
                };
                assert_eq!(sorted(|items| items.compact_sort()), sorted(|items| items.sort()));
                let stable = sorted(|items| items.sort_by_key(|item| item.0));
                assert_eq!(sorted(|items| items.compact_sort_by_key(|item| item.0)), stable);
                assert_eq!(sorted(|items| items.compact_sort_by_cached_key(|item| item.0)), stable);
                let falling = sorted(|items| items.sort_by_key(|item| std::cmp::Reverse(item.0)));
                assert_eq!(sorted(|items| items.compact_sort_by(|one, other| other.0.cmp(&one.0))), falling);
            }
        }
    }

    #[test]
    fn compact_collections_hold_the_last_of_equal_keys() {
        let pairs = [(2, 'a'), (1, 'b'), (2, 'c')];
        let map: BTreeMap<i32, char> = pairs.into_iter().compact_collect();
        assert_eq!(map, pairs.into_iter().collect::<BTreeMap<_, _>>());
        let set: BTreeSet<&str> = ["b", "a", "b"].into_iter().compact_collect();
        assert_eq!(set, BTreeSet::from(["a", "b"]));
    }

    #[test]
    fn circles_do_no_harm_and_equal_items_stay() {
        let circle = |a: &usize, b: &usize| match (3 + a - b) % 3 {
            0 => Ordering::Equal,
            1 => Ordering::Greater,
            _ => Ordering::Less,
        };
        let items: Vec<usize> = (0..500).map(|i| i * i % 3).collect();
        let mut sorted: Vec<usize> =
            merge_sorted(&items.iter().collect::<Vec<_>>(), &circle).into_iter().copied().collect();
        sorted.sort_unstable();
        let mut expected = items;
        expected.sort_unstable();
        assert_eq!(sorted, expected);

        let pairs = [(2, 'a'), (1, 'b'), (2, 'c'), (1, 'd'), (0, 'e')];
        let sorted = merge_sorted(&pairs.iter().collect::<Vec<_>>(), &|a: &(i32, char), b| a.0.cmp(&b.0));
        assert_eq!(sorted.iter().map(|pair| pair.1).collect::<String>(), "ebdac");
    }
}
