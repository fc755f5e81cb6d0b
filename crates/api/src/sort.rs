//! Sorting by an order that may have circles, as some of upstream's do: the sort of the standard library may panic there.

use std::cmp::Ordering;

/// The items in order, equal ones as they came.
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
