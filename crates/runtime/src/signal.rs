//! Signal names: images and CRI say `SIGTERM`, the kernel says 15.

use cri::v1;

/// In the kernel's order: index + 1 is the number.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// The C library keeps two real-time signals for itself.
const FIRST_REAL_TIME: i32 = 34;
const LAST_REAL_TIME: i32 = 64;

/// `SIGTERM`, `term`, `15`, `SIGRTMIN+3`, `RTMAX-1`.
pub(crate) fn parse(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (1..=LAST_REAL_TIME).contains(&number).then_some(number);
    }
    let upper = text.to_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let name = match name {
        "CLD" => "CHLD",
        "IOT" => "ABRT",
        "POLL" => "IO",
        name => name,
    };
    if let Some(index) = NAMES.iter().position(|known| *known == name) {
        return Some(index as i32 + 1);
    }
    // CRI spells the signs out.
    let name = name.replace("PLUS", "+").replace("MINUS", "-");
    let offset = |rest: &str| if rest.is_empty() { Some(0) } else { rest.parse::<i32>().ok() };
    let number = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(rest), _) => FIRST_REAL_TIME + offset(rest)?,
        (_, Some(rest)) => LAST_REAL_TIME + offset(rest)?,
        _ => return None,
    };
    (FIRST_REAL_TIME..=LAST_REAL_TIME).contains(&number).then_some(number)
}

/// The pod's wish, then the image's, then SIGTERM.
pub(crate) fn of_container(config: &v1::ContainerConfig, image: &str) -> i32 {
    let wanted = match config.stop_signal() {
        v1::Signal::RuntimeDefault => None,
        signal => parse(signal.as_str_name()),
    };
    wanted.or_else(|| parse(image)).unwrap_or(libc::SIGTERM)
}

pub(crate) fn to_cri(number: i32) -> v1::Signal {
    let name = match usize::try_from(number - 1).ok().and_then(|i| NAMES.get(i)) {
        Some(name) => format!("SIG{name}"),
        None if number >= LAST_REAL_TIME - 14 => match LAST_REAL_TIME - number {
            0 => "SIGRTMAX".into(),
            n => format!("SIGRTMAXMINUS{n}"),
        },
        None => match number - FIRST_REAL_TIME {
            0 => "SIGRTMIN".into(),
            n => format!("SIGRTMINPLUS{n}"),
        },
    };
    v1::Signal::from_str_name(&name).unwrap_or(v1::Signal::RuntimeDefault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (text, number) in [
            ("SIGTERM", Some(15)),
            ("quit", Some(3)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("SIGRTMAXMINUS1", Some(63)),
            ("", None),
            ("SIGNOPE", None),
            ("99", None),
        ] {
            assert_eq!(parse(text), number, "{text}");
        }
        for number in 1..=31 {
            assert_eq!(parse(to_cri(number).as_str_name()), Some(number));
        }
        for number in 34..=64 {
            assert_eq!(parse(to_cri(number).as_str_name()), Some(number));
        }
    }
}
