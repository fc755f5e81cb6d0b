//! A count given as a number or as a percentage of another.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    Up,
    Down,
}

/// `value` of `total`. Text that is neither a number nor a percentage counts as nothing: the API refuses it.
pub(crate) fn resolve(value: &IntOrString, total: i32, round: Round) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let Some(percent) = text.strip_suffix('%').and_then(|number| number.parse::<i64>().ok()) else { return 0 };
            let hundredths = percent.saturating_mul(i64::from(total));
            let count = match round {
                Round::Up => hundredths.div_euclid(100) + i64::from(hundredths.rem_euclid(100) != 0),
                Round::Down => hundredths.div_euclid(100),
            };
            i32::try_from(count).unwrap_or(i32::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_percents() {
        let percent = |text: &str| IntOrString::String(text.into());
        for (value, total, up, down) in [
            (IntOrString::Int(3), 10, 3, 3),
            (percent("25%"), 10, 3, 2),
            (percent("25%"), 3, 1, 0),
            (percent("0%"), 10, 0, 0),
            (percent("100%"), 7, 7, 7),
            (percent("150%"), 3, 5, 4),
            (percent("9223372036854775807%"), 3, i32::MAX, i32::MAX),
            (percent("nonsense"), 3, 0, 0),
        ] {
            assert_eq!(
                (resolve(&value, total, Round::Up), resolve(&value, total, Round::Down)),
                (up, down),
                "{value:?} of {total}"
            );
        }
    }
}
