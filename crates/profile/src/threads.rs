//! The threads of this process, by what the kernel says of them.

use crate::pprof::{self, Function, Line, Location, Profile, Sample, Texts};
use crate::refusal::Refusal;

/// The name of a thread; its number once it is gone.
pub(crate) fn name(thread: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
    name.map_or_else(|_| thread.to_string(), |name| name.trim_end().to_owned())
}

/// The threads that there are now.
pub(crate) fn numbers() -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Threads and what they are at, by the name that the kernel has for it: `running`, or the call that they wait in.
fn all() -> Vec<(String, String)> {
    let state = |thread: i32| {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap_or_default();
        let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("gone");
        state.trim().trim_start_matches(|letter: char| letter.is_ascii_uppercase()).trim().to_owned()
    };
    numbers().into_iter().map(|thread| (name(thread), state(thread))).collect()
}

pub(crate) fn text() -> String {
    let threads = all();
    let mut text = format!("threads: total {}\n", threads.len());
    threads.iter().for_each(|(name, state)| text += &format!("1 {name} {state}\n"));
    text
}

/// A stack for each kind of thread: its name, called by its state. There are no goroutines, and whoever waits in a thread is
/// not asked where: that would interrupt it.
pub(crate) fn profile(kind: &str) -> Result<Vec<u8>, Refusal> {
    let mut texts = Texts::new();
    let mut profile =
        Profile { sample_type: vec![texts.kind(kind, "count")], time_nanos: pprof::now(), ..Profile::default() };
    let mut id = |name: &str, profile: &mut Profile| {
        let text = texts.id(name);
        if let Some(known) = profile.function.iter().find(|function| function.name == text) {
            return known.id;
        }
        let id = profile.function.len() as u64 + 1;
        profile.function.push(Function { id, name: text, system_name: text });
        profile.location.push(Location { id, mapping_id: 0, address: 0, line: vec![Line { function_id: id }] });
        id
    };
    for (name, state) in all() {
        let location_id = vec![id(&name, &mut profile), id(&format!("[{state}]"), &mut profile)];
        match profile.sample.iter_mut().find(|sample| sample.location_id == location_id) {
            Some(sample) => sample.value[0] += 1,
            None => profile.sample.push(Sample { location_id, value: vec![1], label: Vec::new() }),
        }
    }
    pprof::encode(profile, texts).map_err(Refusal::Io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted() {
        let profile = pprof::decode(&profile("threadcreate").unwrap());
        let total: i64 = profile.sample.iter().map(|sample| sample.value[0]).sum();
        assert!(total >= 2, "the test's thread, and the one that waits for it");
        assert!(text().starts_with("threads: total "));
    }
}
