//! What plain words of YAML mean: upstream reads version 1.1, where `yes` is true, `0644` is 420 and `<<` merges.
//!
//! The parser below knows 1.2, which leaves such words as strings. A word that stood in quotes is one; whether it did, the
//! source says: strings without escapes are borrowed from it, so the byte before them is at hand.

use serde_json::{Number, Value};

use super::Expansion;

/// Which words are not strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// All those of 1.1, as upstream's client and server have it.
    Full,
    /// Only numbers, as the library behind kustomize has it.
    Kustomize,
}

/// What a reader makes of the strings of a text.
pub(crate) trait Meaning: Copy {
    /// The value that a string of the source stands for, when that is not the string itself.
    fn of(self, word: &str) -> Option<Value>;

    /// Whether a map under this key becomes part of the map around it.
    fn merges(self, key: &str) -> bool;

    /// Counts one more value or key with so many bytes of text; fails when the text has expanded to too much.
    fn charge<E: serde::de::Error>(self, text: usize) -> Result<(), E>;
}

/// The meaning of words in one YAML text.
#[derive(Clone, Copy)]
pub(crate) struct PlainWords<'s> {
    pub(crate) source: &'s [u8],
    pub(crate) rules: Rules,
    pub(crate) expansion: &'s Expansion,
}

impl PlainWords<'_> {
    /// Whether a borrowed string stands in the source without quotes.
    fn is_plain(self, word: &str) -> bool {
        let Some(at) = (word.as_ptr() as usize).checked_sub(self.source.as_ptr() as usize) else { return false };
        if at + word.len() > self.source.len() || word.is_empty() {
            return false;
        }
        let before = at.checked_sub(1).map(|i| self.source[i]);
        !matches!(before, Some(b'"' | b'\''))
    }
}

impl Meaning for PlainWords<'_> {
    fn of(self, word: &str) -> Option<Value> {
        self.is_plain(word).then(|| resolve(word, self.rules)).flatten()
    }

    fn merges(self, key: &str) -> bool {
        key == "<<" && self.is_plain(key)
    }

    fn charge<E: serde::de::Error>(self, text: usize) -> Result<(), E> {
        self.expansion.charge(text).map_err(E::custom)
    }
}

/// What a plain word means in YAML 1.1, when that is not what it means in 1.2.
pub(super) fn resolve(word: &str, rules: Rules) -> Option<Value> {
    match word {
        _ if rules == Rules::Kustomize => {}
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some(Value::Bool(true)),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some(Value::Bool(false)),
        _ => {}
    }
    if !word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.')) {
        return None;
    }
    if word.starts_with('.') && word.contains('_') {
        return None;
    }
    let digits = word.replace('_', "");
    let (negative, magnitude) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits.strip_prefix('+').unwrap_or(&digits)),
    };
    let lower = magnitude.to_ascii_lowercase();
    let (figures, radix) = if let Some(hex) = lower.strip_prefix("0x") {
        (hex, 16)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        (binary, 2)
    } else if let Some(octal) = lower.strip_prefix("0o").or(lower.strip_prefix('0')).filter(|rest| !rest.is_empty()) {
        (octal, 8)
    } else {
        (&*lower, 10)
    };
    // A second sign makes no number.
    let unsigned = !figures.starts_with('+');
    if let Some(number) = u64::from_str_radix(figures, radix).ok().filter(|_| unsigned) {
        let signed = i64::try_from(number).ok();
        return match (negative, signed) {
            (true, Some(n)) => Some(Value::from(-n)),
            (true, None) => None,
            (false, _) => Some(Value::from(number)),
        };
    }
    let numeric = magnitude.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '-' | '+'));
    let float = digits.parse::<f64>().ok().filter(|f| numeric && f.is_finite())?;
    #[expect(clippy::cast_possible_truncation, reason = "whole and small: checked")]
    if float.fract() == 0.0 && float.abs() < 1e15 {
        return Some(Value::from(float as i64));
    }
    Number::from_f64(float).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    use crate::codec::from_yaml_by;

    #[test]
    fn words_mean_what_they_mean_in_1_1() {
        for (text, expected) in [
            ("yes", json!(true)),
            ("\"yes\"", json!("yes")),
            ("'off'", json!("off")),
            ("OFF", json!(false)),
            ("yesterday", json!("yesterday")),
            ("0644", json!(420)),
            ("'0644'", json!("0644")),
            ("-010", json!(-8)),
            ("08", json!(8)),
            ("1_000", json!(1000)),
            ("0x10", json!(16)),
            ("0b11", json!(3)),
            ("1.5", json!(1.5)),
            ("10.0.0.1", json!("10.0.0.1")),
            ("1-2", json!("1-2")),
            ("2020-01-01", json!("2020-01-01")),
            ("1:30", json!("1:30")),
            ("~", json!(null)),
            ("|\n  yes\n", json!("yes\n")),
            ("[on, \"on\", {no: 1}]", json!([true, "on", {"false": 1}])),
            ("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}", json!({"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}})),
            ("{\"<<\": {a: 1}}", json!({"<<": {"a": 1}})),
            ("[++7, 0+10, +7, -+7, 0x+1, ._5, 1_5]", json!(["++7", "0+10", 7, "-+7", "0x+1", "._5", 15])),
            ("a: &x yes\nb: *x", json!({"a": true, "b": true})),
        ] {
            assert_eq!(from_yaml_by(text.as_bytes(), Rules::Full).unwrap().value, expected, "{text}");
        }
        assert_eq!(from_yaml_by(b"[y, 0644]", Rules::Kustomize).unwrap().value, json!(["y", 420]));
    }
}
