//! What may run short, and from when on it counts as short. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use api::quantity::Quantity;

use crate::config::Settings;

/// What runs short, as the eviction manager sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pressure {
    pub(crate) memory: bool,
    pub(crate) disk: bool,
    pub(crate) pids: bool,
}

/// Something of the node that can run short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    /// First: a node without memory does nothing else well.
    MemoryAvailable,
    NodefsAvailable,
    NodefsInodesFree,
    ImagefsAvailable,
    ImagefsInodesFree,
    PidAvailable,
}

/// Name, and the resource that pods use of it.
const SIGNALS: &[(Signal, &str, &str)] = &[
    (Signal::MemoryAvailable, "memory.available", "memory"),
    (Signal::NodefsAvailable, "nodefs.available", "ephemeral-storage"),
    (Signal::NodefsInodesFree, "nodefs.inodesFree", "inodes"),
    (Signal::ImagefsAvailable, "imagefs.available", "ephemeral-storage"),
    (Signal::ImagefsInodesFree, "imagefs.inodesFree", "inodes"),
    (Signal::PidAvailable, "pid.available", "pids"),
];

/// The file system of containers is the node's or that of the images, whose thresholds count whatever is configured for it
/// (`UpdateContainerFsThresholds`, v1.36).
const OF_CONTAINERS: [&str; 2] = ["containerfs.available", "containerfs.inodesFree"];

impl Signal {
    /// None for one whose thresholds are those of another.
    fn named(name: &str) -> anyhow::Result<Option<Self>> {
        if OF_CONTAINERS.contains(&name) {
            return Ok(None);
        }
        let found = SIGNALS.iter().find(|(_, known, _)| *known == name);
        let signal = found.map(|(signal, _, _)| *signal);
        signal.map(Some).with_context(|| format!("eviction signal {name:?} is not known"))
    }

    pub(crate) fn name(self) -> &'static str {
        SIGNALS.iter().find(|(signal, _, _)| *signal == self).map_or("", |(_, name, _)| name)
    }

    pub(crate) fn resource(self) -> &'static str {
        SIGNALS.iter().find(|(signal, _, _)| *signal == self).map_or("", |(_, _, resource)| resource)
    }

    pub(crate) fn is_disk(self) -> bool {
        !matches!(self, Signal::MemoryAvailable | Signal::PidAvailable)
    }

    /// The node condition it shows as.
    pub(crate) fn pressure(self) -> Pressure {
        Pressure { memory: self == Signal::MemoryAvailable, disk: self.is_disk(), pids: self == Signal::PidAvailable }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Amount {
    Absolute(Quantity),
    Percent(f64),
}

impl Amount {
    fn parse(text: &str) -> anyhow::Result<Self> {
        match text.strip_suffix('%') {
            Some(number) => Ok(Amount::Percent(number.parse().with_context(|| format!("{text:?} is no percentage"))?)),
            None => text.parse().map(Amount::Absolute).map_err(|error| anyhow::anyhow!("{text:?}: {error}")),
        }
    }

    /// What must be left of a signal. Nothing and all that there is are no threshold: so one is switched off.
    fn of_threshold(name: &str, text: &str) -> anyhow::Result<Option<Self>> {
        if matches!(text, "0%" | "100%") {
            return Ok(None);
        }
        let amount = Self::parse(text)?;
        match &amount {
            Amount::Percent(percent) if !(0.0..=100.0).contains(percent) => {
                let bound = if *percent > 100.0 { "<= 100%" } else { ">= 0%" };
                bail!("eviction percentage threshold {name} must be {bound}: {text}")
            }
            Amount::Absolute(quantity) if quantity.is_zero() || quantity.is_negative() => {
                bail!("eviction threshold {name} must be positive: {text}")
            }
            _ => Ok(Some(amount)),
        }
    }

    fn of_reclaim(name: &str, text: &str) -> anyhow::Result<Self> {
        let amount = Self::parse(text)?;
        match &amount {
            Amount::Percent(percent) if percent.is_nan() || *percent <= 0.0 => {
                bail!("eviction percentage minimum reclaim {name} must be positive: {text}")
            }
            Amount::Absolute(quantity) if quantity.is_negative() => {
                bail!("negative eviction minimum reclaim specified for {name}")
            }
            _ => Ok(amount),
        }
    }

    fn of(&self, capacity: u64) -> u64 {
        match self {
            Amount::Absolute(quantity) => quantity.value().max(0) as u64,
            Amount::Percent(percent) => (capacity as f64 * percent / 100.0) as u64,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Threshold {
    pub(crate) signal: Signal,
    amount: Amount,
    /// How long it must hold; none for hard thresholds, which act at once.
    pub(crate) grace: Option<Duration>,
    /// Once acted upon, this much more must be free.
    reclaim: Option<Amount>,
}

/// What is there and what is left, per signal.
pub(crate) type Observations = BTreeMap<Signal, Observed>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) available: u64,
    pub(crate) capacity: u64,
}

impl Threshold {
    /// Whether less than the threshold is left; with `reclaiming`, less than threshold and minimum reclaim together.
    /// None when the signal was not observed.
    pub(crate) fn is_met(&self, observations: &Observations, reclaiming: bool) -> Option<bool> {
        let seen = observations.get(&self.signal)?;
        let extra = self.reclaim.as_ref().filter(|_| reclaiming).map_or(0, |amount| amount.of(seen.capacity));
        Some(seen.available < self.quantity(seen.capacity).saturating_add(extra))
    }

    /// The threshold as a number.
    pub(crate) fn quantity(&self, capacity: u64) -> u64 {
        self.amount.of(capacity)
    }
}

/// Reads the maps of a configuration file, hard ones first.
fn parse(
    hard: &BTreeMap<String, String>,
    soft: &BTreeMap<String, String>,
    grace: &BTreeMap<String, Duration>,
    reclaim: &BTreeMap<String, String>,
) -> anyhow::Result<Vec<Threshold>> {
    for name in grace.keys() {
        Signal::named(name)?;
    }
    let mut minimum: BTreeMap<Signal, Amount> = BTreeMap::new();
    for (name, text) in reclaim {
        let (signal, amount) = (Signal::named(name)?, Amount::of_reclaim(name, text)?);
        minimum.extend(signal.map(|signal| (signal, amount)));
    }
    let mut thresholds = Vec::new();
    for (is_soft, map) in [(false, hard), (true, soft)] {
        for (name, amount) in map {
            let signal = Signal::named(name)?;
            let Some(amount) = Amount::of_threshold(name, amount)? else { continue };
            let grace = match is_soft {
                false => None,
                true => Some(*grace.get(name).with_context(|| {
                    format!("grace period must be specified for the soft eviction threshold {name}")
                })?),
            };
            let Some(signal) = signal else { continue };
            thresholds.push(Threshold { signal, amount, grace, reclaim: minimum.get(&signal).cloned() });
        }
    }
    Ok(thresholds)
}

/// Those that are configured.
pub(crate) fn of(settings: &Settings) -> anyhow::Result<Vec<Threshold>> {
    parse(
        &settings.eviction_hard,
        &settings.eviction_soft,
        &settings.eviction_soft_grace_period,
        &settings.eviction_minimum_reclaim,
    )
}

/// What hard thresholds keep free of memory or of the node's disk, in bytes: pods cannot be promised that.
pub(crate) fn kept_free(settings: &Settings, resource: &str, capacity: u64) -> u64 {
    let signal = if resource == "memory" { Signal::MemoryAvailable } else { Signal::NodefsAvailable };
    let hard = of(settings).unwrap_or_default();
    let hard = hard.iter().filter(|threshold| threshold.signal == signal && threshold.grace.is_none());
    hard.map(|threshold| threshold.quantity(capacity)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn amounts_are_absolute_or_shares() {
        let hard = map(&[("memory.available", "100Mi"), ("nodefs.available", "10%")]);
        let reclaim = map(&[("nodefs.available", "5%")]);
        let thresholds = parse(&hard, &BTreeMap::new(), &BTreeMap::new(), &reclaim).unwrap();
        let seen = |memory, disk| {
            Observations::from([
                (Signal::MemoryAvailable, Observed { available: memory, capacity: 1 << 30 }),
                (Signal::NodefsAvailable, Observed { available: disk, capacity: 1000 }),
            ])
        };
        for (observations, reclaiming, expected) in [
            (seen(1 << 29, 500), false, [Some(false), Some(false)]),
            (seen(99 << 20, 500), false, [Some(true), Some(false)]),
            (seen(1 << 29, 99), false, [Some(false), Some(true)]),
            (seen(1 << 29, 120), false, [Some(false), Some(false)]),
            (seen(1 << 29, 120), true, [Some(false), Some(true)]),
            (Observations::new(), false, [None, None]),
        ] {
            let met: Vec<Option<bool>> = thresholds.iter().map(|t| t.is_met(&observations, reclaiming)).collect();
            assert_eq!(met, expected, "{observations:?}");
        }
    }

    #[test]
    fn nothing_and_all_are_no_thresholds_and_what_makes_no_sense_is_refused() {
        let none = BTreeMap::new();
        let hard = |amount: &str| {
            let parsed = parse(&map(&[("nodefs.available", amount)]), &none, &BTreeMap::new(), &none);
            parsed.map(|thresholds| thresholds.len()).map_err(|error| error.to_string())
        };
        for (amount, expected) in [
            ("0%", Ok(0)),
            ("100%", Ok(0)),
            ("99.5%", Ok(1)),
            ("101%", Err("eviction percentage threshold nodefs.available must be <= 100%: 101%")),
            ("-1%", Err("eviction percentage threshold nodefs.available must be >= 0%: -1%")),
            ("NaN%", Err("eviction percentage threshold nodefs.available must be >= 0%: NaN%")),
            ("0", Err("eviction threshold nodefs.available must be positive: 0")),
            ("-1Gi", Err("eviction threshold nodefs.available must be positive: -1Gi")),
        ] {
            assert_eq!(hard(amount), expected.map_err(str::to_owned), "{amount}");
        }
        for (signal, amount, is_fine) in [
            ("nodefs.available", "0", true),
            ("nodefs.available", "10%", true),
            ("nodefs.available", "-1", false),
            ("nodefs.available", "0%", false),
            ("nonsense", "1", false),
        ] {
            let parsed = parse(&none, &none, &BTreeMap::new(), &map(&[(signal, amount)]));
            assert_eq!(parsed.is_ok(), is_fine, "{signal} {amount}");
        }
    }

    #[test]
    fn thresholds_of_the_file_system_of_containers_are_accepted_and_do_not_count() {
        let hard = map(&[("containerfs.available", "10%"), ("nodefs.available", "5%")]);
        let soft = map(&[("containerfs.inodesFree", "5%")]);
        let grace = BTreeMap::from([("containerfs.inodesFree".to_owned(), Duration::from_secs(60))]);
        let reclaim = map(&[("containerfs.available", "1Gi")]);
        let thresholds = parse(&hard, &soft, &grace, &reclaim).unwrap();
        let counting: Vec<_> = thresholds.iter().map(|threshold| threshold.signal).collect();
        assert_eq!(counting, [Signal::NodefsAvailable]);
        assert!(parse(&hard, &soft, &BTreeMap::new(), &reclaim).is_err());
    }

    #[test]
    fn soft_thresholds_need_a_grace_period() {
        let soft = map(&[("memory.available", "1Gi")]);
        let none = BTreeMap::new();
        assert!(parse(&none, &soft, &BTreeMap::new(), &none).is_err());
        let grace = BTreeMap::from([("memory.available".to_string(), Duration::from_secs(90))]);
        let parsed = parse(&none, &soft, &grace, &none).unwrap();
        assert_eq!(parsed[0].grace, Some(Duration::from_secs(90)));
        assert!(parse(&map(&[("nonsense", "1")]), &none, &BTreeMap::new(), &none).is_err());
    }
}
