//! From rules to the kernel's classic BPF.
//!
//! The program checks the architecture, then compares the call's number with each rule's in turn. The kernel remembers
//! which numbers are always allowed, so the length of the chain costs nothing for those.

/// What happens to a call: a value for `seccomp_data` filters to return.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Action(pub(crate) u32);

impl Action {
    pub(crate) const ALLOW: Self = Self(0x7fff_0000);
    pub(crate) const LOG: Self = Self(0x7ffc_0000);
    pub(crate) const TRAP: Self = Self(0x0003_0000);
    pub(crate) const KILL_THREAD: Self = Self(0);
    pub(crate) const KILL_PROCESS: Self = Self(0x8000_0000);

    pub(crate) const fn errno(number: u16) -> Self {
        Self(0x0005_0000 | number as u32)
    }

    pub(crate) const fn trace(message: u16) -> Self {
        Self(0x7ff0_0000 | message as u32)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Compare {
    NotEqual,
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
    /// `argument & mask == value`
    MaskedEqual(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Condition {
    pub(crate) argument: u32,
    pub(crate) compare: Compare,
    pub(crate) value: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) syscall: i64,
    /// All must hold.
    pub(crate) conditions: Vec<Condition>,
    pub(crate) action: Action,
}

#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) default: Action,
    /// For numbers above every one we know: programs take this as "an older kernel" and fall back.
    pub(crate) unknown: Action,
    pub(crate) rules: Vec<Rule>,
}

impl Profile {
    /// Calls of another ABI always fail: a profile that allows what it does not name would let all of them through.
    fn foreign(&self) -> Action {
        match self.default {
            Action(value) if value & ACTION_MASK <= Action::errno(0).0 || self.default == Action::KILL_PROCESS => {
                self.default
            }
            _ => Action::errno(libc::ENOSYS as u16),
        }
    }
}

/// The part of an action beside its data.
const ACTION_MASK: u32 = 0xffff_0000;
/// Set in the numbers of x32's calls.
const X32_BIT: u32 = 0x4000_0000;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The kernel refuses longer programs.
const MAX_INSTRUCTIONS: usize = 4096;

#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

fn plain(code: u16, value: u32) -> Instruction {
    Instruction { code, if_true: 0, if_false: 0, value }
}

fn jump(code: u16, value: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, if_true, if_false, value }
}

/// A profile for which there is no program.
#[derive(Debug, thiserror::Error)]
pub enum NoProgram {
    #[error("too many rules for system call {0}")]
    Rules(i64),
    #[error("the profile needs {0} instructions, more than the kernel takes")]
    Long(usize),
    #[error("a rule has too many conditions")]
    Conditions,
    #[error("system calls have no argument {0}")]
    Argument(u32),
}

/// The program as bytes, eight per instruction.
pub(crate) fn compile(profile: &Profile) -> Result<Vec<u8>, NoProgram> {
    let mut program = vec![
        plain(LOAD, OFFSET_ARCHITECTURE),
        // Calls of another architecture (32-bit programs) have other numbers: no rule of the profile means them.
        jump(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        plain(RETURN, profile.foreign().0),
        plain(LOAD, OFFSET_NUMBER),
        // So have those of x32, which says that it is x86-64.
        jump(JUMP_GREATER_EQUAL, X32_BIT, 0, 1),
        plain(RETURN, profile.foreign().0),
    ];
    let highest = super::syscalls::TABLE.iter().map(|(_, number)| *number).max().unwrap_or(0);
    program.push(jump(JUMP_GREATER, highest as u32, 0, 1));
    program.push(plain(RETURN, profile.unknown.0));
    let mut numbers: Vec<i64> = profile.rules.iter().map(|r| r.syscall).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        let block = block(profile, number)?;
        let skip = u8::try_from(block.len()).map_err(|_| NoProgram::Rules(number))?;
        program.push(jump(JUMP_EQUAL, number as u32, 0, skip));
        program.extend(block);
    }
    program.push(plain(RETURN, profile.default.0));
    if program.len() > MAX_INSTRUCTIONS {
        return Err(NoProgram::Long(program.len()));
    }
    Ok(program
        .iter()
        .flat_map(|i| {
            let mut bytes = [0u8; 8];
            bytes[..2].copy_from_slice(&i.code.to_ne_bytes());
            (bytes[2], bytes[3]) = (i.if_true, i.if_false);
            bytes[4..].copy_from_slice(&i.value.to_ne_bytes());
            bytes
        })
        .collect())
}

/// What to do for one number: the first rule whose conditions hold, else the default.
fn block(profile: &Profile, number: i64) -> Result<Vec<Instruction>, NoProgram> {
    let mut block = Vec::new();
    for rule in profile.rules.iter().filter(|r| r.syscall == number) {
        let mut body: Vec<Instruction> = Vec::new();
        for condition in &rule.conditions {
            body.extend(test(condition)?);
        }
        // Failed tests jump to behind this rule.
        let length = body.len() + 1;
        for (index, instruction) in body.iter_mut().enumerate() {
            for target in [&mut instruction.if_true, &mut instruction.if_false] {
                if *target == FAIL {
                    *target = u8::try_from(length - index - 1).map_err(|_| NoProgram::Conditions)?;
                }
            }
        }
        block.extend(body);
        block.push(plain(RETURN, rule.action.0));
        if rule.conditions.is_empty() {
            return Ok(block);
        }
    }
    block.push(plain(RETURN, profile.default.0));
    Ok(block)
}

/// Stands for "to the end of the rule" until its length is known.
const FAIL: u8 = 255;

/// Arguments have 64 bits, the machine has 32: high half first, low half where that does not decide.
fn test(condition: &Condition) -> Result<Vec<Instruction>, NoProgram> {
    if condition.argument > 5 {
        return Err(NoProgram::Argument(condition.argument));
    }
    let low = OFFSET_ARGUMENTS + condition.argument * 8;
    let high = low + 4;
    let (value_low, value_high) = (condition.value as u32, (condition.value >> 32) as u32);
    let ordered = |code: u16, negate: bool| {
        // Above or below in the high half decides; equal goes on to the low half.
        let (above, below) = if negate { (FAIL, 2) } else { (3, FAIL) };
        let (yes, no) = if negate { (FAIL, 0) } else { (0, FAIL) };
        vec![
            plain(LOAD, high),
            jump(JUMP_GREATER, value_high, above, 0),
            jump(JUMP_EQUAL, value_high, 0, below),
            plain(LOAD, low),
            jump(code, value_low, yes, no),
        ]
    };
    Ok(match condition.compare {
        Compare::Equal => vec![
            plain(LOAD, high),
            jump(JUMP_EQUAL, value_high, 0, FAIL),
            plain(LOAD, low),
            jump(JUMP_EQUAL, value_low, 0, FAIL),
        ],
        Compare::NotEqual => vec![
            plain(LOAD, high),
            jump(JUMP_EQUAL, value_high, 0, 2),
            plain(LOAD, low),
            jump(JUMP_EQUAL, value_low, FAIL, 0),
        ],
        Compare::MaskedEqual(mask) => vec![
            plain(LOAD, high),
            plain(AND, (mask >> 32) as u32),
            jump(JUMP_EQUAL, value_high, 0, FAIL),
            plain(LOAD, low),
            plain(AND, mask as u32),
            jump(JUMP_EQUAL, value_low, 0, FAIL),
        ],
        Compare::Greater => ordered(JUMP_GREATER, false),
        Compare::GreaterOrEqual => ordered(JUMP_GREATER_EQUAL, false),
        Compare::LessOrEqual => ordered(JUMP_GREATER, true),
        Compare::Less => ordered(JUMP_GREATER_EQUAL, true),
    })
}

/// What the kernel asks of a filter before it takes it.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn verify(program: &[u8]) {
    let length = program.len() / 8;
    assert!(program.len().is_multiple_of(8) && (1..=MAX_INSTRUCTIONS).contains(&length), "{length} instructions");
    for (at, i) in program.chunks_exact(8).enumerate() {
        let (code, value) = (u16::from_ne_bytes([i[0], i[1]]), u32::from_ne_bytes([i[4], i[5], i[6], i[7]]));
        match code {
            LOAD => assert!(value % 4 == 0 && value < OFFSET_ARGUMENTS + 6 * 8, "load from {value}"),
            JUMP_EQUAL | JUMP_GREATER | JUMP_GREATER_EQUAL => {
                assert!(at + 1 + usize::from(i[2].max(i[3])) < length, "a jump from {at} leads out");
            }
            AND | RETURN => {}
            _ => panic!("{code:#x} is no instruction of ours"),
        }
        assert!(at + 1 < length || code == RETURN, "the program has no end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program the way the kernel does.
    fn run(program: &[u8], number: u32, arguments: [u64; 6]) -> u32 {
        run_on(ARCHITECTURE, program, number, arguments)
    }

    fn run_on(architecture: u32, program: &[u8], number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(number.to_le_bytes());
        data.extend(architecture.to_le_bytes());
        data.extend(0u64.to_le_bytes());
        arguments.iter().for_each(|a| data.extend(a.to_le_bytes()));
        let (mut pc, mut a) = (0usize, 0u32);
        loop {
            let i = &program[pc * 8..pc * 8 + 8];
            let code = u16::from_ne_bytes([i[0], i[1]]);
            let value = u32::from_ne_bytes([i[4], i[5], i[6], i[7]]);
            let branch = |taken: bool| 1 + usize::from(if taken { i[2] } else { i[3] });
            pc += match code {
                LOAD => {
                    let at = value as usize;
                    a = u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
                    1
                }
                AND => {
                    a &= value;
                    1
                }
                JUMP_EQUAL => branch(a == value),
                JUMP_GREATER => branch(a > value),
                JUMP_GREATER_EQUAL => branch(a >= value),
                RETURN => return value,
                other => panic!("instruction {other:#x}"),
            };
        }
    }

    #[test]
    fn security_calls_of_another_abi_fail() {
        const I386: u32 = 0x4000_0003;
        let enosys = Action::errno(38);
        for (default, foreign) in [
            (Action::ALLOW, enosys),
            (Action::LOG, enosys),
            (Action::trace(1), enosys),
            (Action::errno(1), Action::errno(1)),
            (Action::TRAP, Action::TRAP),
            (Action::KILL_THREAD, Action::KILL_THREAD),
            (Action::KILL_PROCESS, Action::KILL_PROCESS),
        ] {
            let program = compile(&Profile { default, unknown: default, rules: Vec::new() }).unwrap();
            assert_eq!(run_on(I386, &program, 1, [0; 6]), foreign.0, "i386 under {default:?}");
            assert_eq!(run(&program, X32_BIT | 1, [0; 6]), foreign.0, "x32 under {default:?}");
            assert_eq!(run(&program, 1, [0; 6]), default.0);
        }
    }

    #[test]
    fn comparisons_have_64_bits() {
        let big = 0x1_0000_0005u64;
        for (compare, value, cases) in [
            (Compare::Equal, big, vec![(big, true), (5, false), (big + 1, false)]),
            (Compare::NotEqual, big, vec![(big, false), (5, true), (0x2_0000_0005, true)]),
            (Compare::Greater, big, vec![(big, false), (big + 1, true), (6, false), (0x2_0000_0000, true)]),
            (Compare::GreaterOrEqual, big, vec![(big, true), (big - 1, false), (0x2_0000_0000, true)]),
            (Compare::Less, big, vec![(big, false), (big - 1, true), (0xffff_ffff, true), (0x2_0000_0000, false)]),
            (
                Compare::LessOrEqual,
                big,
                vec![(big, true), (big + 1, false), (0xffff_ffff, true), (0x2_0000_0000, false)],
            ),
            (Compare::MaskedEqual(0xf_0000_000f), big, vec![(big, true), (0x1_0000_00f5, true), (5, false)]),
        ] {
            let rule =
                Rule { syscall: 1, conditions: vec![Condition { argument: 2, compare, value }], action: Action::ALLOW };
            let profile = Profile { default: Action::errno(1), unknown: Action::errno(38), rules: vec![rule] };
            let program = compile(&profile).unwrap();
            for (argument, allowed) in cases {
                let expected = if allowed { Action::ALLOW } else { Action::errno(1) };
                let result = run(&program, 1, [0, 0, argument, 0, 0, 0]);
                assert_eq!(result, expected.0, "{compare:?} {value:#x} on {argument:#x}");
            }
            assert_eq!(run(&program, 2, [0; 6]), Action::errno(1).0);
            assert_eq!(run(&program, 100_000, [0; 6]), Action::errno(38).0);
        }
    }
}
