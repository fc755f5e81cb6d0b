//! Slow start: 1, 2, 4 … at a time, so that a cause that fails every creation costs one request, not five hundred.

use std::future::Future;

use futures_util::future::join_all;

/// Runs `step` `count` times in growing batches and stops after the first batch with a failure.
/// Returns how many succeeded, and the first failure (`slowStartBatch`, v1.36).
pub(crate) async fn batches<E, F, Fut>(count: usize, mut step: F) -> (usize, Option<E>)
where
    F: FnMut(usize) -> Fut,
    Fut: Future<Output = Result<(), E>>,
{
    let (mut done, mut size) = (0, 1);
    while done < count {
        let size_now = size.min(count - done);
        let results = join_all((done..done + size_now).map(&mut step)).await;
        let failed: Vec<E> = results.into_iter().filter_map(Result::err).collect();
        done += size_now - failed.len();
        if let Some(first) = failed.into_iter().next() {
            return (done, Some(first));
        }
        size *= 2;
    }
    (done, None)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn batches_double_and_stop_at_a_failure() {
        for (count, fail_from, expected_calls, expected_done) in
            [(0, 99, 0, 0), (10, 99, 10, 10), (500, 0, 1, 0), (500, 1, 3, 1), (500, 5, 7, 5)]
        {
            let calls = Cell::new(0);
            let (done, failure) = batches(count, |number| {
                calls.set(calls.get() + 1);
                async move { if number >= fail_from { Err("refused") } else { Ok(()) } }
            })
            .await;
            assert_eq!((calls.get(), done), (expected_calls, expected_done), "{count} from {fail_from}");
            assert_eq!(failure.is_some(), done < count);
        }
    }
}
