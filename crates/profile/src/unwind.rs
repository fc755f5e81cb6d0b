//! From the registers and the stack of a moment to the chain of callers.

use std::collections::HashMap;

use crate::cfi::{Frames, REGISTERS, Rule, STACK_POINTER};
use crate::elf::{Elf, u64_at};
use crate::maps::{self, Mapping};

/// Callers that are followed.
const DEEPEST: usize = 256;

/// A thread at one moment.
pub(crate) struct Moment<'a> {
    pub(crate) instruction: u64,
    pub(crate) registers: [u64; REGISTERS],
    /// What lies above the stack pointer.
    pub(crate) stack: &'a [u8],
}

/// The code of this process.
pub(crate) struct Code {
    mappings: Vec<Mapping>,
    modules: HashMap<String, Option<Module>>,
}

/// A file of code.
pub(crate) struct Module {
    pub(crate) elf: Elf,
    frames: Option<Frames>,
}

impl Code {
    pub(crate) fn read() -> Self {
        Self { mappings: maps::read(), modules: HashMap::new() }
    }

    pub(crate) fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    pub(crate) fn mapping_of(&self, address: u64) -> Option<usize> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        after.checked_sub(1).filter(|at| address < self.mappings[*at].end)
    }

    pub(crate) fn module(&mut self, path: &str) -> Option<&Module> {
        let open = |path: &str| {
            // What runs may have been replaced on disk since.
            let is_own = std::env::current_exe().is_ok_and(|own| own.as_os_str() == path);
            let elf = Elf::open(if is_own { "/proc/self/exe" } else { path })?;
            let frames = elf.table(".eh_frame").map(Frames::parse);
            Some(Module { elf, frames })
        };
        if !self.modules.contains_key(path) {
            let opened = open(path);
            self.modules.insert(path.to_owned(), opened);
        }
        self.modules.get(path)?.as_ref()
    }

    /// An address in the file that it is of.
    pub(crate) fn in_file(&mut self, address: u64) -> Option<(&Module, u64)> {
        let mapping = self.mappings.get(self.mapping_of(address)?)?.clone();
        let module = self.module(&mapping.path)?;
        let inside = module.elf.address_of((address - mapping.start).checked_add(mapping.offset)?)?;
        Some((module, inside))
    }

    /// The instructions that the moment's function and its callers are at, innermost first.
    pub(crate) fn unwind(&mut self, moment: &Moment<'_>) -> Vec<u64> {
        let mut registers = moment.registers;
        let base = registers[STACK_POINTER];
        let on_stack = |address: u64| {
            let at = usize::try_from(address.checked_sub(base)?).ok()?;
            u64_at(moment.stack, at)
        };
        let mut found = vec![moment.instruction];
        let mut looked_up = moment.instruction;
        while found.len() < DEEPEST {
            let row = self.in_file(looked_up).and_then(|(module, at)| module.frames.as_ref()?.row(at));
            let Some(row) = row else { break };
            let Some(of) = registers.get(row.frame.0) else { break };
            let frame = of.wrapping_add_signed(row.frame.1);
            // The stack of a caller begins where this one ends: a chain that goes back does not end.
            if frame < registers[STACK_POINTER] || (frame == registers[STACK_POINTER] && found.len() > 1) {
                break;
            }
            let mut callers = registers;
            let mut is_known = true;
            for (register, rule) in row.rules.iter().enumerate() {
                match rule {
                    Rule::Same => {}
                    Rule::Undefined => is_known &= register != row.return_register,
                    Rule::At(offset) => match on_stack(frame.wrapping_add_signed(*offset)) {
                        Some(value) => callers[register] = value,
                        None => is_known = false,
                    },
                    Rule::Register(other) => {
                        callers[register] = registers.get(*other).copied().unwrap_or_default();
                    }
                }
            }
            let back = callers[row.return_register];
            callers[STACK_POINTER] = frame;
            if !is_known || back == 0 {
                break;
            }
            registers = callers;
            // The call itself, which may be the last instruction of its function.
            looked_up = back.wrapping_sub(1);
            found.push(looked_up);
        }
        found
    }
}
