//! Where processor time goes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::pprof::{self, Profile, Texts};
use crate::refusal::Refusal;
use crate::sampler::{self, INTERRUPTED, OneAtATime, Sample, Timers};
use crate::stacks::Stacks;
use crate::unwind::{Code, Moment};

/// A hundred times a second of a thread's processor time, as Go's.
const PERIOD: i64 = 10_000;
/// New threads are looked for in every so many turns.
const COVER_EVERY: u32 = 5;
/// How often full slots are read: long before all are.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// Watches for so long, or until nobody wants it any more. Blocks. One at a time: there is one signal.
pub(crate) fn profile(duration: Duration, wanted: &dyn Fn() -> bool) -> Result<Vec<u8>, Refusal> {
    static ONE: OneAtATime = OneAtATime::new();
    let Some(_one) = ONE.enter() else {
        return Err(Refusal::Busy("Could not enable CPU profiling: cpu profiling already in use"));
    };
    if !sampler::can_copy() {
        return Err(Refusal::Impossible("this process may not read its own stack: process_vm_readv is refused"));
    }
    sampler::leave_alone();
    sampler::install().map_err(Refusal::Io)?;
    let (began, clock) = (pprof::now(), Instant::now());
    let (mut code, mut stacks, mut names) = (Code::read(), Stacks::new(2), HashMap::new());
    let lent = INTERRUPTED.begin();
    let mut read = |sample: &Sample| {
        let moment = Moment { instruction: sample.instruction, registers: sample.registers, stack: sample.stack() };
        let thread = names.entry(sample.thread).or_insert_with(|| crate::threads::name(sample.thread)).clone();
        stacks.add(code.unwind(&moment), thread, &[1, PERIOD * 1000]);
    };
    let mut timers = Timers::new(PERIOD);
    for turn in 0_u32.. {
        // Threads come and go.
        if turn.is_multiple_of(COVER_EVERY) {
            timers.cover(&crate::threads::numbers()).map_err(Refusal::Io)?;
        }
        if clock.elapsed() >= duration {
            break;
        }
        if !wanted() {
            return Err(Refusal::GivenUp);
        }
        std::thread::sleep(READ_INTERVAL.min(duration.saturating_sub(clock.elapsed())));
        lent.slots().drain(&mut read);
    }
    drop(timers);
    lent.slots().drain(&mut read);
    let lost = lent.slots().lost();
    drop(lent);

    let mut texts = Texts::new();
    let mut profile = Profile {
        sample_type: vec![texts.kind("samples", "count"), texts.kind("cpu", "nanoseconds")],
        time_nanos: began,
        duration_nanos: i64::try_from(clock.elapsed().as_nanos()).unwrap_or_default(),
        period_type: Some(texts.kind("cpu", "nanoseconds")),
        period: PERIOD * 1000,
        ..Profile::default()
    };
    if lost > 0 {
        profile.comment.push(texts.id(&format!("{lost} samples were lost: they came faster than they were read")));
    }
    stacks.describe(&mut code, &mut profile, &mut texts);
    pprof::encode(profile, texts).map_err(Refusal::Io)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[inline(never)]
    fn burn_processor_time(stop: &AtomicBool) -> u64 {
        let mut value = 1_u64;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..10_000 {
                value = black_box(value.wrapping_mul(31).rotate_left(7));
            }
        }
        value
    }

    #[inline(never)]
    fn caller_of_the_burner(stop: &AtomicBool) -> u64 {
        black_box(burn_processor_time(stop)).wrapping_add(1)
    }

    fn when_free(duration: Duration) -> Vec<u8> {
        loop {
            match profile(duration, &|| true) {
                Ok(bytes) => return bytes,
                Err(Refusal::Busy(_)) => std::thread::sleep(Duration::from_millis(50)),
                Err(other) => unreachable!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_profile_shows_who_used_the_processor_and_who_called() {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let burner = std::thread::Builder::new().name("burner".into()).spawn(move || caller_of_the_burner(&stopped));
        let deadline = Instant::now() + Duration::from_secs(60);
        let found = loop {
            let profile = pprof::decode(&when_free(Duration::from_secs(1)));
            let follows = |names: &[String]| {
                let at = names.iter().position(|name| name.contains("burn_processor_time"));
                at.is_some_and(|at| names[at..].iter().any(|name| name.contains("caller_of_the_burner")))
            };
            if profile.stacks().iter().any(|(names, values)| follows(names) && values[1] >= 10_000_000) {
                break true;
            }
            if Instant::now() > deadline {
                break false;
            }
        };
        stop.store(true, Ordering::Relaxed);
        burner.unwrap().join().unwrap();
        assert!(found);
    }

    #[test]
    fn a_profile_that_nobody_wants_ends() {
        let began = Instant::now();
        let ended = loop {
            match profile(Duration::from_secs(600), &|| began.elapsed() < Duration::from_millis(100)) {
                Err(Refusal::Busy(_)) => std::thread::sleep(Duration::from_millis(50)),
                other => break other,
            }
        };
        assert!(matches!(ended, Err(Refusal::GivenUp)), "{ended:?}");
        assert!(began.elapsed() < Duration::from_secs(300));
    }

    fn fails() {
        std::panic::resume_unwind(Box::new(7))
    }

    #[test]
    fn security_profiling_harms_nobody_who_allocates_panics_or_starts_processes() {
        let stop = Arc::new(AtomicBool::new(false));
        let jobs: [fn(); 4] = [
            || drop(black_box((0..2000).map(|number| vec![0_u8; number % 3000]).collect::<Vec<_>>())),
            || drop(std::panic::catch_unwind(fails)),
            || drop(std::process::Command::new("true").status()),
            || drop(std::thread::spawn(|| black_box(String::from("a thread that ends"))).join()),
        ];
        let threads = jobs.map(|job| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    job();
                }
            })
        });
        for _ in 0..3 {
            assert!(!pprof::decode(&when_free(Duration::from_millis(300))).string_table.is_empty());
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
