//! Stacks that were seen, each with what it came to, and the profile that they make.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::elf::Symbol;
use crate::pprof::{self, Function, Label, Line, Location, Profile};
use crate::unwind::Code;

/// Stacks that differ; what comes later and is new goes uncounted by its stack.
const MAX_STACKS: usize = 50_000;

/// Addresses, innermost first, and the thread's name.
type Key = (Vec<u64>, String);

pub(crate) struct Stacks {
    kinds: usize,
    seen: HashMap<Key, Vec<i64>>,
}

impl Stacks {
    /// Each stack comes to so many figures.
    pub(crate) fn new(kinds: usize) -> Self {
        Self { kinds, seen: HashMap::new() }
    }

    pub(crate) fn add(&mut self, stack: Vec<u64>, thread: String, values: &[i64]) {
        let mut key = (stack, thread);
        if self.seen.len() >= MAX_STACKS && !self.seen.contains_key(&key) {
            key.0.clear();
        }
        let counted = self.seen.entry(key).or_insert_with(|| vec![0; self.kinds]);
        counted.iter_mut().zip(values).for_each(|(counted, value)| *counted = counted.saturating_add(*value));
    }

    /// Puts names and places to the addresses.
    pub(crate) fn describe(self, code: &mut Code, profile: &mut Profile, texts: &mut pprof::Texts) {
        let addresses: BTreeSet<u64> = self.seen.keys().flat_map(|(stack, _)| stack.iter().copied()).collect();
        let names = names(code, &addresses);
        let mut functions: BTreeMap<String, u64> = BTreeMap::new();
        let mut ids = HashMap::new();
        for (at, mapping) in code.mappings().to_vec().into_iter().enumerate() {
            let module = code.module(&mapping.path);
            let build_id = module.map(|module| module.elf.build_id()).unwrap_or_default();
            profile.mapping.push(pprof::Mapping {
                id: at as u64 + 1,
                memory_start: mapping.start,
                memory_limit: mapping.end,
                file_offset: mapping.offset,
                filename: texts.id(&mapping.path),
                build_id: texts.id(&build_id),
                has_functions: names.keys().any(|address| (mapping.start..mapping.end).contains(address)),
            });
        }
        for (at, address) in addresses.iter().enumerate() {
            let id = at as u64 + 1;
            let line = names.get(address).map(|name| {
                let next = functions.len() as u64 + 1;
                Line { function_id: *functions.entry(name.clone()).or_insert(next) }
            });
            let mapping_id = code.mapping_of(*address).map_or(0, |at| at as u64 + 1);
            profile.location.push(Location { id, mapping_id, address: *address, line: line.into_iter().collect() });
            ids.insert(*address, id);
        }
        for (name, id) in functions {
            // pprof itself makes the names of compilers readable.
            let name = texts.id(&name);
            profile.function.push(Function { id, name, system_name: name });
        }
        let thread_key = texts.id("thread");
        for ((stack, thread), value) in self.seen {
            let location_id = stack.iter().filter_map(|address| ids.get(address).copied()).collect();
            let label = Label { key: thread_key, str: texts.id(&thread) };
            profile.sample.push(pprof::Sample { location_id, value, label: vec![label] });
        }
    }
}

/// The functions that addresses are in, as far as symbol tables say.
fn names(code: &mut Code, addresses: &BTreeSet<u64>) -> HashMap<u64, String> {
    let mut found = HashMap::new();
    for mapping in code.mappings().to_vec() {
        let here: Vec<u64> = addresses.range(mapping.start..mapping.end).copied().collect();
        let mut in_file: Vec<(u64, u64)> = Vec::new();
        for address in here {
            in_file.extend(code.in_file(address).map(|(_, inside)| (inside, address)));
        }
        in_file.sort_unstable();
        let Some(module) = code.module(&mapping.path).filter(|_| !in_file.is_empty()) else { continue };
        let wanted: Vec<u64> = in_file.iter().map(|(inside, _)| *inside).collect();
        for Symbol { start, end, name } in module.elf.symbols(&wanted) {
            let first = in_file.partition_point(|(inside, _)| *inside < start);
            for (_, address) in in_file[first..].iter().take_while(|(inside, _)| *inside < end) {
                found.insert(*address, name.clone());
            }
        }
    }
    found
}
