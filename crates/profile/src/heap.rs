//! Where memory is asked for, and what of it stays.
//!
//! The allocator tells of every allocation while somebody profiles, and of none at other times: then it costs one look at a
//! word. So a profile is of a window: what was asked for in it, and what of that is still in use at its end. One
//! allocation is looked at for every half megabyte, and stands for those that were not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::pprof::{self, Profile, Texts};
use crate::refusal::Refusal;
use crate::sampler::{self, Current, OneAtATime, Sample};
use crate::stacks::Stacks;
use crate::unwind::{Code, Moment};

/// Bytes between two allocations that are looked at, as Go's.
const PERIOD: i64 = 512 << 10;
const READ_INTERVAL: Duration = Duration::from_millis(5);
/// Allocations of a window that are followed until they are freed: some GB of them.
const FOLLOWED: usize = 1 << 14;
/// Places that are looked at for one address.
const PROBES: usize = 8;
/// No address.
const NONE: usize = 0;
const FREED: usize = 1;

static ALLOCATED: Current = Current::none();
static LEFT: AtomicI64 = AtomicI64::new(0);
/// Samples for which there was no place.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);
/// Addresses that are followed, each near the place that it hashes to.
static ADDRESSES: [AtomicUsize; FOLLOWED] = [const { AtomicUsize::new(NONE) }; FOLLOWED];

/// For the allocator: memory was given out. Allocates nothing.
#[inline]
pub fn allocated(address: *mut u8, size: usize) {
    if !ALLOCATED.is_none() {
        look(address as usize, size);
    }
}

/// For the allocator: memory comes back, and nobody has the address again before this returns.
#[inline]
pub fn freed(address: *mut u8) {
    if !ALLOCATED.is_none() {
        forget(address as usize);
    }
}

#[cold]
fn look(address: usize, size: usize) {
    let bytes = i64::try_from(size).unwrap_or(i64::MAX);
    if address <= FREED || LEFT.fetch_sub(bytes, Ordering::Relaxed) > bytes {
        return;
    }
    LEFT.store(PERIOD, Ordering::Relaxed);
    for place in places(address) {
        let free = ADDRESSES[place].compare_exchange(NONE, address, Ordering::Relaxed, Ordering::Relaxed);
        if free.is_ok() {
            if !sampler::take_here(&ALLOCATED, (place, size)) {
                ADDRESSES[place].store(NONE, Ordering::Relaxed);
            }
            return;
        }
    }
    LEFT_OUT.fetch_add(1, Ordering::Relaxed);
}

#[cold]
fn forget(address: usize) {
    for place in places(address) {
        if ADDRESSES[place].compare_exchange(address, FREED, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

fn places(address: usize) -> impl Iterator<Item = usize> {
    let first = (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize) >> 40;
    (0..PROBES).map(move |probe| (first + probe) % FOLLOWED)
}

/// How many allocations of a size the one that was looked at stands for.
fn stands_for(size: usize) -> f64 {
    1.0 / (1.0 - (-(size.max(1) as f64) / PERIOD as f64).exp())
}

/// Watches for so long, or until nobody wants it any more. Blocks. One at a time.
pub(crate) fn profile(duration: Duration, wanted: &dyn Fn() -> bool) -> Result<Vec<u8>, Refusal> {
    static ONE: OneAtATime = OneAtATime::new();
    let Some(_one) = ONE.enter() else { return Err(Refusal::Busy("heap profiling already in use")) };
    if !sampler::can_copy() {
        return Err(Refusal::Impossible("this process may not read its own stack: process_vm_readv is refused"));
    }
    let (began, clock) = (pprof::now(), Instant::now());
    ADDRESSES.iter().for_each(|address| address.store(NONE, Ordering::Relaxed));
    LEFT.store(PERIOD, Ordering::Relaxed);
    LEFT_OUT.store(0, Ordering::Relaxed);
    let mut code = Code::read();
    let mut seen: HashMap<usize, (Vec<u64>, String, usize)> = HashMap::new();
    let lent = ALLOCATED.begin();
    let mut read = |sample: &Sample| {
        let moment = Moment { instruction: sample.instruction, registers: sample.registers, stack: sample.stack() };
        let mut stack = code.unwind(&moment);
        // The look itself is of no interest.
        stack.drain(..stack.len().min(2));
        let (place, size) = sample.note;
        seen.insert(place, (stack, crate::threads::name(sample.thread), size));
    };
    while clock.elapsed() < duration {
        if !wanted() {
            return Err(Refusal::GivenUp);
        }
        std::thread::sleep(READ_INTERVAL.min(duration.saturating_sub(clock.elapsed())));
        lent.slots().drain(&mut read);
    }
    lent.slots().drain(&mut read);
    let (lost, left_out) = (lent.slots().lost(), LEFT_OUT.load(Ordering::Relaxed));
    let mut stacks = Stacks::new(4);
    for (place, (stack, thread, size)) in std::mem::take(&mut seen) {
        let objects = stands_for(size);
        let values = [objects as i64, (objects * size as f64) as i64];
        let in_use = ADDRESSES[place].load(Ordering::Relaxed) > FREED;
        let kept = if in_use { values } else { [0, 0] };
        stacks.add(stack, thread, &[values[0], values[1], kept[0], kept[1]]);
    }
    drop(lent);

    let mut texts = Texts::new();
    let mut profile = Profile {
        sample_type: [
            ("alloc_objects", "count"),
            ("alloc_space", "bytes"),
            ("inuse_objects", "count"),
            ("inuse_space", "bytes"),
        ]
        .map(|(kind, unit)| texts.kind(kind, unit))
        .into(),
        time_nanos: began,
        duration_nanos: i64::try_from(clock.elapsed().as_nanos()).unwrap_or_default(),
        period_type: Some(texts.kind("space", "bytes")),
        period: PERIOD,
        default_sample_type: texts.id("inuse_space"),
        ..Profile::default()
    };
    profile.comment.push(texts.id("allocations of the window alone; those made before it are not in it"));
    if let Some(resident) = resident() {
        profile.comment.push(texts.id(&format!("resident memory of the process: {resident} bytes")));
    }
    if lost > 0 {
        profile.comment.push(texts.id(&format!("{lost} samples were lost: they came faster than they were read")));
    }
    if left_out > 0 {
        let why = "the window has more allocations than are followed";
        profile.comment.push(texts.id(&format!("{left_out} samples were left out: {why}")));
    }
    stacks.describe(&mut code, &mut profile, &mut texts);
    pprof::encode(profile, texts).map_err(Refusal::Io)
}

/// Bytes of this process in memory.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// As the binary's: every allocation of the test is told of.
    struct Told;

    #[allow(unsafe_code, reason = "an allocator")]
    // SAFETY: every call goes on to the system's allocator unchanged.
    unsafe impl std::alloc::GlobalAlloc for Told {
        unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
            // SAFETY: the caller's promise.
            let address = unsafe { std::alloc::System.alloc(layout) };
            allocated(address, layout.size());
            address
        }

        unsafe fn dealloc(&self, address: *mut u8, layout: std::alloc::Layout) {
            freed(address);
            // SAFETY: the caller's promise.
            unsafe { std::alloc::System.dealloc(address, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Told = Told;

    #[inline(never)]
    fn keep_memory(kept: &mut Vec<Vec<u8>>) {
        kept.push(std::hint::black_box(vec![1; 64 << 10]));
    }

    #[inline(never)]
    fn drop_memory() {
        drop(std::hint::black_box(vec![1_u8; 64 << 10]));
    }

    #[test]
    fn what_stays_is_told_from_what_goes() {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let worker = std::thread::spawn(move || {
            let mut kept = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                if kept.len() < 4000 {
                    keep_memory(&mut kept);
                }
                (0..4).for_each(|_| drop_memory());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let found = loop {
            let profile = pprof::decode(&profile(Duration::from_secs(1), &|| true).unwrap());
            let sum = |of: &str, kind: usize| -> i64 {
                let stacks = profile.stacks();
                stacks
                    .iter()
                    .filter(|(names, _)| names.iter().any(|name| name.contains(of)))
                    .map(|(_, v)| v[kind])
                    .sum()
            };
            let (stays, goes) =
                ((sum("keep_memory", 1), sum("keep_memory", 3)), (sum("drop_memory", 1), sum("drop_memory", 3)));
            if stays.1 > 0 && goes.0 > 0 && goes.1 < goes.0 / 2 {
                break Ok(());
            }
            if Instant::now() > deadline {
                break Err((stays, goes));
            }
        };
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        assert_eq!(found, Ok(()));
    }

    #[test]
    fn what_finds_no_place_is_counted() {
        let address = 0x1000;
        let deadline = Instant::now() + Duration::from_secs(60);
        // Again, if a profile begins at the same time, which empties all places.
        loop {
            let before = LEFT_OUT.load(Ordering::Relaxed);
            places(address).for_each(|place| ADDRESSES[place].store(FREED, Ordering::Relaxed));
            look(address, 1 << 40);
            if LEFT_OUT.load(Ordering::Relaxed) > before {
                break;
            }
            assert!(Instant::now() < deadline);
        }
    }

    #[test]
    fn small_allocations_stand_for_many() {
        assert!(stands_for(16) > 30_000.0);
        assert!(stands_for(64 << 20) < 1.01);
    }
}
