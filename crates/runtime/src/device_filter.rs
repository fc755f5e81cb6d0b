//! Device access on cgroup version 2: a list of rules becomes a small eBPF program that the kernel asks at every open
//! and mknod. Version 1 has files for this; here the program is attached to the cgroup and lives as long as it does.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use crate::sys;

/// One rule: `c 1:3 rwm`, with `*` for any number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rule {
    kind: i32,
    major: Option<i32>,
    minor: Option<i32>,
    access: i32,
}

const BLOCK: i32 = 1;
const CHARACTER: i32 = 2;
const MKNOD: i32 = 1;
const READ: i32 = 2;
const WRITE: i32 = 4;

/// Lets the processes of a cgroup use the devices of these rules and no others.
pub(crate) fn allow(cgroup: &Path, rules: &[String]) -> io::Result<()> {
    let rules = rules.iter().map(|rule| parse(rule)).collect::<io::Result<Vec<_>>>()?;
    let program = sys::load_device_filter(&compile(&rules))?;
    sys::attach_device_filter(std::fs::File::open(cgroup)?.as_fd(), program.as_fd())
}

fn parse(text: &str) -> io::Result<Rule> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, format!("device rule {text:?}"));
    let number = |part: &str| match part {
        "*" => Ok(None),
        digits => digits.parse().map(Some).map_err(|_| invalid()),
    };
    let mut words = text.split(' ');
    let (Some(kind), Some(numbers), Some(access)) = (words.next(), words.next(), words.next()) else {
        return Err(invalid());
    };
    let (major, minor) = numbers.split_once(':').ok_or_else(invalid)?;
    let bits = [('r', READ), ('w', WRITE), ('m', MKNOD)];
    Ok(Rule {
        kind: if kind == "b" { BLOCK } else { CHARACTER },
        major: number(major)?,
        minor: number(minor)?,
        access: bits.iter().filter(|(letter, _)| access.contains(*letter)).map(|(_, bit)| bit).sum(),
    })
}

/// One instruction as the kernel takes it: operation, registers, jump offset, constant.
fn instruction(operation: u8, to: u8, from: u8, offset: i16, constant: i32) -> u64 {
    u64::from(operation)
        | u64::from(to | from << 4) << 8
        | u64::from(offset as u16) << 16
        | u64::from(constant as u32) << 32
}

const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x54;
const SHIFT_RIGHT: u8 = 0x74;
const MOVE: u8 = 0xbc;
const SET: u8 = 0xb4;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const EXIT: u8 = 0x95;

/// The first rule that fits allows; nothing else does.
///
/// The kernel passes a pointer to three words in register 1: access in the upper and kind in the lower half, major, minor.
fn compile(rules: &[Rule]) -> Vec<u64> {
    let (result, context, kind, access, major, minor, scratch) = (0, 1, 2, 3, 4, 5, 6);
    let mut program = vec![
        instruction(LOAD_WORD, kind, context, 0, 0),
        instruction(MOVE, access, kind, 0, 0),
        instruction(AND, kind, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, access, 0, 0, 16),
        instruction(LOAD_WORD, major, context, 4, 0),
        instruction(LOAD_WORD, minor, context, 8, 0),
    ];
    for rule in rules {
        let mut tests = vec![(kind, rule.kind)];
        tests.extend(rule.major.map(|number| (major, number)));
        tests.extend(rule.minor.map(|number| (minor, number)));
        // Each test is one jump; the access takes two more instructions, the answer the last two.
        let length = tests.len() + 3 + 2;
        let mut at = 0;
        let mut next = |program: &mut Vec<u64>, register, value| {
            program.push(instruction(JUMP_UNLESS_EQUAL, register, 0, (length - at - 1) as i16, value));
            at += 1;
        };
        for (register, value) in tests {
            next(&mut program, register, value);
        }
        program.push(instruction(MOVE, scratch, access, 0, 0));
        program.push(instruction(AND, scratch, 0, 0, !rule.access));
        program.push(instruction(JUMP_UNLESS_EQUAL, scratch, 0, 2, 0));
        program.push(instruction(SET, result, 0, 0, 1));
        program.push(instruction(EXIT, 0, 0, 0, 0));
    }
    program.push(instruction(SET, result, 0, 0, 0));
    program.push(instruction(EXIT, 0, 0, 0, 0));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        for (text, expected) in [
            ("c 1:3 rwm", Some(Rule { kind: CHARACTER, major: Some(1), minor: Some(3), access: READ | WRITE | MKNOD })),
            ("b *:* m", Some(Rule { kind: BLOCK, major: None, minor: None, access: MKNOD })),
            ("c 136:* r", Some(Rule { kind: CHARACTER, major: Some(136), minor: None, access: READ })),
            ("c 1", None),
            ("c x:y r", None),
        ] {
            assert_eq!(parse(text).ok(), expected, "{text}");
        }
    }

    /// What the program says, by walking through it as the kernel does.
    fn ask(program: &[u64], kind: i32, major: i32, minor: i32, access: i32) -> i32 {
        let words = [access << 16 | kind, major, minor];
        let mut registers = [0i32; 8];
        let mut at = 0;
        loop {
            let code = program[at];
            let (to, from) = ((code >> 8 & 0xf) as usize, (code >> 12 & 0xf) as usize);
            let (offset, constant) = ((code >> 16) as i16, (code >> 32) as i32);
            match code as u8 {
                LOAD_WORD => registers[to] = words[offset as usize / 4],
                MOVE => registers[to] = registers[from],
                SET => registers[to] = constant,
                AND => registers[to] &= constant,
                SHIFT_RIGHT => registers[to] = (registers[to] as u32 >> constant) as i32,
                JUMP_UNLESS_EQUAL if registers[to] != constant => at = (at as i16 + offset) as usize,
                JUMP_UNLESS_EQUAL => {}
                EXIT => return registers[0],
                other => panic!("{other:#x}"),
            }
            at += 1;
        }
    }

    #[test]
    fn programs_decide_as_the_rules_say() {
        let rules = ["c 1:3 rwm", "c 136:* rw", "b *:* m"].map(|rule| parse(rule).unwrap());
        let program = compile(&rules);
        for (kind, major, minor, access, expected) in [
            (CHARACTER, 1, 3, READ, 1),
            (CHARACTER, 1, 3, READ | WRITE, 1),
            (CHARACTER, 1, 5, READ, 0),
            (CHARACTER, 136, 7, WRITE, 1),
            (CHARACTER, 136, 7, MKNOD, 0),
            (BLOCK, 8, 0, MKNOD, 1),
            (BLOCK, 8, 0, READ, 0),
            (BLOCK, 1, 3, READ, 0),
        ] {
            assert_eq!(ask(&program, kind, major, minor, access), expected, "{kind} {major}:{minor} {access}");
        }
        sys::load_device_filter(&program).expect("the kernel's verifier is content");
    }

    /// On a real cgroup, where this machine has version 2 mounted.
    #[test]
    fn the_kernel_enforces_it() {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let Some(root) = mounts.lines().find(|line| line.contains(" cgroup2 ")).and_then(|l| l.split(' ').nth(1))
        else {
            return;
        };
        let cgroup = Path::new(root).join(format!("cox-devices-{}", std::process::id()));
        std::fs::create_dir(&cgroup).unwrap();
        allow(&cgroup, &["c 1:3 rwm".into()]).unwrap();
        let script = format!(
            "echo $$ > {}/cgroup.procs && cat /dev/null && (head -c 1 /dev/zero >/dev/null 2>&1 && echo open || echo closed)",
            cgroup.display()
        );
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        std::fs::remove_dir(&cgroup).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "closed\n", "{output:?}");
    }
}
