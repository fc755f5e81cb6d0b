//! The last hours of a cluster's figures, as its API server tells them (`GET /cox/history`).

use anyhow::{Context, Result};
use api::sort::CompactSort as _;
use client::Client;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
pub(crate) struct History {
    pub(crate) series: Vec<Series>,
    /// Series that the server has no room for.
    #[serde(default)]
    pub(crate) left_out: usize,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Series {
    /// What is measured, such as `cpu_cores`.
    pub(crate) what: String,
    /// `node`, `pod` or `component`.
    pub(crate) of: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Seconds since 1970 and values, oldest first.
    pub(crate) points: Vec<(u64, f64)>,
}

impl History {
    pub(crate) async fn ask(client: &Client, minutes: usize) -> Result<Self> {
        let asked = client.get_at(&["cox", "history"], &[("minutes", &minutes.to_string())]).await;
        asked.context("asking for the history of figures, which clusters keep that 'cox up' started")
    }

    /// The series of one thing.
    pub(crate) fn points(&self, what: &str, of: &str, namespace: &str, name: &str) -> &[(u64, f64)] {
        let found = self.series.iter().find(|series| {
            series.what == what && series.of == of && series.namespace == namespace && series.name == name
        });
        found.map_or(&[], |series| &series.points)
    }

    /// Of the points of a series, those of the last minutes that anything was recorded in.
    pub(crate) fn lately<'p>(&self, points: &'p [(u64, f64)], minutes: u64) -> &'p [(u64, f64)] {
        let newest = self.series.iter().filter_map(|series| series.points.last()).map(|(time, _)| *time).max();
        let since = newest.unwrap_or_default().saturating_sub(minutes * 60);
        &points[points.partition_point(|(time, _)| *time <= since)..]
    }

    /// The same of so many minutes, or of more where there are few points in these: many nodes are asked less often.
    pub(crate) fn lately_enough<'p>(&self, points: &'p [(u64, f64)], minutes: u64) -> &'p [(u64, f64)] {
        let needed = (2 * ENOUGH) as u64 * spacing(points);
        self.lately(points, minutes.max(needed.div_ceil(60)))
    }

    /// Namespace and name of all that there are figures of, in order.
    pub(crate) fn names(&self, of: &str) -> Vec<(&str, &str)> {
        let of = self.series.iter().filter(|series| series.of == of);
        let mut names: Vec<_> = of.map(|series| (&*series.namespace, &*series.name)).collect();
        names.compact_sort();
        names.dedup();
        names
    }
}

/// Points that say how values grow.
const ENOUGH: usize = 5;

/// Seconds between two points of a series, as in most places.
fn spacing(points: &[(u64, f64)]) -> u64 {
    let mut apart: Vec<u64> = points.windows(2).map(|two| two[1].0.saturating_sub(two[0].0)).collect();
    apart.compact_sort();
    apart.get(apart.len() / 2).copied().unwrap_or_default()
}

/// By how much values grow in a second: the line that fits them best. Nothing where there is too little to tell.
pub(crate) fn slope(points: &[(u64, f64)]) -> Option<f64> {
    let (first, count) = (points.first()?.0, points.len() as f64);
    if points.len() < ENOUGH {
        return None;
    }
    let at = |time: u64| (time - first) as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), (time, value)| (x + at(*time), y + value));
    let (mean_x, mean_y) = (x / count, y / count);
    let (mut above, mut below) = (0.0, 0.0);
    for (time, value) in points {
        let apart = at(*time) - mean_x;
        above += apart * (value - mean_y);
        below += apart * apart;
    }
    (below > 0.0).then(|| above / below)
}

/// Bytes as people say them.
pub(crate) fn bytes(amount: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut amount, mut unit) = (amount.max(0.0), 0);
    while amount >= 1024.0 && unit + 1 < units.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if unit == 0 || amount >= 100.0 {
        format!("{amount:.0} {}", units[unit])
    } else {
        format!("{amount:.1} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_per_second() {
        let line = |count: u64| (0..count).map(|at| (1000 + at * 60, 7.0 + at as f64 * 120.0)).collect::<Vec<_>>();
        assert_eq!(slope(&line(4)), None, "too little to tell");
        assert_eq!(slope(&line(10)), Some(2.0));
        assert_eq!(slope(&[(5, 1.0); 9]), None, "no time has passed");
        assert_eq!(slope(&[]), None);
    }

    #[test]
    fn what_is_late_is_so_for_all_series() {
        let series = |name: &str, last: u64| Series {
            what: "cpu_cores".to_owned(),
            of: "node".to_owned(),
            namespace: String::new(),
            name: name.to_owned(),
            points: (1..=last).map(|minute| (minute * 60, 1.0)).collect(),
        };
        let history = History { series: vec![series("here", 60), series("gone", 50)], left_out: 0 };
        let late = |name| history.lately(history.points("cpu_cores", "node", "", name), 15).len();
        assert_eq!((late("here"), late("gone"), late("never")), (15, 5, 0));
    }

    #[test]
    fn what_is_seldom_measured_is_looked_at_for_longer() {
        let every = |minutes: u64| (1..=60).map(|at| (at * minutes * 60, 1.0)).collect::<Vec<_>>();
        for (minutes, expected) in [(1, 15), (2, 10), (5, 10)] {
            let points = every(minutes);
            let series = Series {
                what: "cpu_cores".to_owned(),
                of: "node".to_owned(),
                namespace: String::new(),
                name: "n".to_owned(),
                points: points.clone(),
            };
            let history = History { series: vec![series], left_out: 0 };
            assert_eq!(history.lately_enough(&points, 15).len(), expected, "{minutes}");
        }
        assert!(History::default().lately_enough(&[], 15).is_empty());
    }

    #[test]
    fn bytes_are_short() {
        for (amount, expected) in
            [(-1.0, "0 B"), (512.0, "512 B"), (1536.0, "1.5 KiB"), (150.0 * 1048576.0, "150 MiB"), (3e9, "2.8 GiB")]
        {
            assert_eq!(bytes(amount), expected);
        }
    }
}
