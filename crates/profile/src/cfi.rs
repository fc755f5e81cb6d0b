//! `.eh_frame`: for every instruction, where the caller's registers are. Pure and bounded.
//!
//! Not read: expressions of DWARF. Linkers use them for stubs, where a stack then ends.

use crate::elf::{Table, u16_at, u32_at, u64_at};

/// Registers by their number in DWARF, with the return address in its place.
pub(crate) const REGISTERS: usize = 33;
#[cfg(target_arch = "aarch64")]
pub(crate) const STACK_POINTER: usize = 31;
#[cfg(not(target_arch = "aarch64"))]
pub(crate) const STACK_POINTER: usize = 7;

/// States that a function remembers, at most.
const MAX_REMEMBERED: usize = 16;

/// The tables of one file, by address.
pub(crate) struct Frames {
    table: Table,
    /// Sorted by `start`.
    functions: Vec<Function>,
}

struct Function {
    start: u64,
    end: u64,
    /// Of its instructions.
    program: (usize, usize),
    common: Common,
}

/// What functions share.
#[derive(Clone, Copy)]
struct Common {
    code_unit: u64,
    data_unit: i64,
    return_register: usize,
    pointers: u8,
    has_data: bool,
    program: (usize, usize),
}

/// Where the caller's registers are, at one instruction.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// The stack pointer of the caller: a register and what to add.
    pub(crate) frame: (usize, i64),
    pub(crate) rules: [Rule; REGISTERS],
    pub(crate) return_register: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    Same,
    Undefined,
    /// In memory, so far from the frame.
    At(i64),
    Register(usize),
}

impl Frames {
    pub(crate) fn parse(table: Table) -> Self {
        let mut functions = Vec::new();
        let mut at = 0;
        while let Some(next) = entry(&table, at, &mut functions) {
            at = next;
        }
        functions.sort_by_key(|function| function.start);
        Self { table, functions }
    }

    /// At an address of the file.
    pub(crate) fn row(&self, address: u64) -> Option<Row> {
        let after = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions.get(after.checked_sub(1)?).filter(|function| address < function.end)?;
        let common = function.common;
        let first =
            Row { frame: (STACK_POINTER, 0), rules: [Rule::Same; REGISTERS], return_register: common.return_register };
        let mut machine = Machine { common, row: first, initial: first, at: function.start, remembered: Vec::new() };
        machine.run(self.table.bytes.get(common.program.0..common.program.1)?, u64::MAX)?;
        machine.initial = machine.row;
        machine.at = function.start;
        machine.run(self.table.bytes.get(function.program.0..function.program.1)?, address)?;
        Some(machine.row)
    }
}

/// Reads the entry at `at`; returns where the next one is.
fn entry(table: &Table, at: usize, functions: &mut Vec<Function>) -> Option<usize> {
    let bytes = &table.bytes;
    let length = u32_at(bytes, at)?;
    // A length of zero ends the table; files that need 64 bits for it do not exist.
    if length == 0 || length == u32::MAX {
        return None;
    }
    let body = at.checked_add(4)?;
    let next = body.checked_add(length as usize).filter(|next| *next <= bytes.len())?;
    let pointer = u32_at(bytes, body)? as usize;
    if pointer != 0
        && let Some(common) = body.checked_sub(pointer).and_then(|at| common(table, at))
    {
        functions.extend(function(table, body + 4, next, common));
    }
    Some(next)
}

fn function(table: &Table, at: usize, end: usize, common: Common) -> Option<Function> {
    let mut reader = Reader { bytes: table.bytes.get(..end)?, at };
    let start = reader.pointer(common.pointers, table.address)?;
    // Its size has the same form, and is relative to nothing.
    let size = reader.pointer(common.pointers & 0x0f, 0)?;
    if common.has_data {
        let length = usize::try_from(reader.unsigned()?).ok()?;
        reader.at = reader.at.checked_add(length)?;
    }
    let program = (reader.at, end);
    (size > 0 && program.0 <= end).then_some(Function { start, end: start.checked_add(size)?, program, common })
}

fn common(table: &Table, at: usize) -> Option<Common> {
    let length = u32_at(&table.bytes, at)? as usize;
    let body = at.checked_add(4)?;
    let end = body.checked_add(length)?;
    let mut reader = Reader { bytes: table.bytes.get(..end)?, at: body.checked_add(4)? };
    let version = reader.byte()?;
    let from = reader.at;
    while reader.byte()? != 0 {}
    let augmentation = &table.bytes[from..reader.at - 1];
    let (code_unit, data_unit) = (reader.unsigned()?, reader.signed()?);
    let return_register = match version {
        1 => usize::from(reader.byte()?),
        _ => usize::try_from(reader.unsigned()?).ok()?,
    };
    let mut pointers = 0;
    let has_data = augmentation.first() == Some(&b'z');
    if has_data {
        let length = usize::try_from(reader.unsigned()?).ok()?;
        let after = reader.at.checked_add(length)?;
        for letter in &augmentation[1..] {
            match letter {
                b'R' => pointers = reader.byte()?,
                b'L' => {
                    reader.byte()?;
                }
                b'P' => {
                    let form = reader.byte()?;
                    reader.pointer(form & 0x0f, 0)?;
                }
                b'S' | b'B' => {}
                _ => return None,
            }
        }
        reader.at = after;
    } else if !augmentation.is_empty() {
        return None;
    }
    (return_register < REGISTERS && reader.at <= end).then_some(Common {
        code_unit,
        data_unit,
        return_register,
        pointers,
        has_data,
        program: (reader.at, end),
    })
}

/// Runs the program of a table.
struct Machine {
    common: Common,
    row: Row,
    initial: Row,
    at: u64,
    remembered: Vec<Row>,
}

impl Machine {
    /// Up to the row that holds `address`. Nothing if there is something it does not know.
    fn run(&mut self, program: &[u8], address: u64) -> Option<()> {
        let mut reader = Reader { bytes: program, at: 0 };
        while let Some(code) = reader.byte() {
            let low = usize::from(code & 0x3f);
            let advance = match code {
                0x40..=0x7f => Some(low as u64),
                0x02 => Some(u64::from(reader.byte()?)),
                0x03 => Some(u64::from(reader.number::<2>()?)),
                0x04 => Some(u64::from(reader.number::<4>()?)),
                _ => None,
            };
            if let Some(advance) = advance {
                self.at = self.at.checked_add(advance.checked_mul(self.common.code_unit)?)?;
                if self.at > address {
                    return Some(());
                }
                continue;
            }
            match code {
                0x80..=0xbf => {
                    let offset = self.factored(reader.unsigned()? as i64)?;
                    self.set(low, Rule::At(offset))?;
                }
                0xc0..=0xff => self.restore(low)?,
                0x00 => {}
                0x05 => {
                    let register = reader.register()?;
                    let offset = self.factored(reader.unsigned()? as i64)?;
                    self.set(register, Rule::At(offset))?;
                }
                0x06 => {
                    let register = reader.register()?;
                    self.restore(register)?;
                }
                0x07 => self.set(reader.register()?, Rule::Undefined)?,
                0x08 => self.set(reader.register()?, Rule::Same)?,
                0x09 => {
                    let (register, other) = (reader.register()?, reader.register()?);
                    self.set(register, Rule::Register(other))?;
                }
                0x0a => {
                    if self.remembered.len() >= MAX_REMEMBERED {
                        return None;
                    }
                    self.remembered.push(self.row);
                }
                0x0b => self.row = self.remembered.pop()?,
                0x0c => self.row.frame = (reader.register()?, i64::try_from(reader.unsigned()?).ok()?),
                0x0d => self.row.frame.0 = reader.register()?,
                0x0e => self.row.frame.1 = i64::try_from(reader.unsigned()?).ok()?,
                0x11 => {
                    let register = reader.register()?;
                    let offset = self.factored(reader.signed()?)?;
                    self.set(register, Rule::At(offset))?;
                }
                0x12 => {
                    let register = reader.register()?;
                    self.row.frame = (register, self.factored(reader.signed()?)?);
                }
                0x13 => self.row.frame.1 = self.factored(reader.signed()?)?,
                // Signing of return addresses on ARM, and the size of arguments: of no consequence here.
                0x2d => {}
                0x2e => {
                    reader.unsigned()?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    fn factored(&self, offset: i64) -> Option<i64> {
        offset.checked_mul(self.common.data_unit)
    }

    fn set(&mut self, register: usize, rule: Rule) -> Option<()> {
        // Registers of vectors are not followed.
        if let Some(of) = self.row.rules.get_mut(register) {
            *of = rule;
        }
        Some(())
    }

    fn restore(&mut self, register: usize) -> Option<()> {
        let initial = self.initial.rules.get(register).copied().unwrap_or(Rule::Same);
        self.set(register, initial)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn number<const N: usize>(&mut self) -> Option<u32> {
        let mut value = 0;
        for shift in 0..N {
            value |= u32::from(self.byte()?) << (8 * shift);
        }
        Some(value)
    }

    fn register(&mut self) -> Option<usize> {
        usize::try_from(self.unsigned()?).ok()
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= i64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                let unused = 64_u32.saturating_sub(shift + 7);
                return Some(value << unused >> unused);
            }
        }
        None
    }

    /// A pointer in one of the forms that compilers write; `table` is the address of the bytes' beginning.
    fn pointer(&mut self, form: u8, table: u64) -> Option<u64> {
        let here = table.wrapping_add(self.at as u64);
        let (value, size) = match form & 0x0f {
            0x00 | 0x04 | 0x0c => (u64_at(self.bytes, self.at)?, 8),
            0x02 => (u64::from(u16_at(self.bytes, self.at)?), 2),
            0x0a => (i64::from(u16_at(self.bytes, self.at)? as i16) as u64, 2),
            0x03 => (u64::from(u32_at(self.bytes, self.at)?), 4),
            0x0b => (i64::from(u32_at(self.bytes, self.at)? as i32) as u64, 4),
            _ => return None,
        };
        self.at += size;
        match form & 0xf0 {
            0x00 => Some(value),
            0x10 => Some(here.wrapping_add(value)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Elf;

    fn own() -> Table {
        Elf::open("/proc/self/exe").unwrap().table(".eh_frame").unwrap()
    }

    #[test]
    fn the_callers_of_own_functions_are_known() {
        let frames = Frames::parse(own());
        assert!(frames.functions.len() > 100);
        for function in frames.functions.iter().step_by(frames.functions.len() / 100) {
            let row = frames.row(function.start).unwrap();
            assert_eq!(row.frame.0, STACK_POINTER, "{:x}", function.start);
            assert!(frames.row(function.end - 1).is_some());
        }
        assert!(frames.row(0).is_none() && frames.row(u64::MAX).is_none());
    }

    #[test]
    fn security_damaged_tables_end_stacks_and_nothing_else() {
        let good = own();
        let length = good.bytes.len().min(40_000);
        let mut seed = 7_u64;
        for _ in 0..60 {
            let mut bytes = good.bytes[..length].to_vec();
            for _ in 0..200 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 24) as u8;
            }
            let frames = Frames::parse(Table { address: good.address, bytes });
            for function in frames.functions.iter().step_by(5) {
                let _ = frames.row(function.start);
                let _ = frames.row(function.end - 1);
            }
        }
    }
}
