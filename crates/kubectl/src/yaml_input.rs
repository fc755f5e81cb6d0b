//! YAML as upstream's client reads it: version 1.1, where `yes` is true, `0644` is 420 and `<<` merges.
//!
//! The parser below knows 1.2, which leaves such words as strings. A word that stood in quotes is one; whether it did, the
//! source says: strings without escapes are borrowed from it, so the byte before them is at hand.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Which words are not strings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    /// All those of 1.1.
    Client,
    /// Only numbers, as the library behind kustomize has it.
    Kustomize,
}

pub(crate) fn read(text: &str, rules: Rules) -> Result<Value, yaml_serde::Error> {
    Source(text, rules).deserialize(yaml_serde::Deserializer::from_str(text))
}

#[derive(Clone, Copy)]
struct Source<'s>(&'s str, Rules);

impl Source<'_> {
    /// Whether a borrowed string stands in the source without quotes.
    fn is_plain(self, word: &str) -> bool {
        let Some(at) = (word.as_ptr() as usize).checked_sub(self.0.as_ptr() as usize) else { return false };
        if at + word.len() > self.0.len() || word.is_empty() {
            return false;
        }
        let before = at.checked_sub(1).map(|i| self.0.as_bytes()[i]);
        !matches!(before, Some(b'"' | b'\''))
    }
}

/// What a plain word means in YAML 1.1, when that is not what it means in 1.2.
fn resolve(word: &str, rules: Rules) -> Option<Value> {
    match word {
        _ if rules == Rules::Kustomize => {}
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some(Value::Bool(true)),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some(Value::Bool(false)),
        _ => {}
    }
    if !word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.')) {
        return None;
    }
    let digits = word.replace('_', "");
    let (negative, magnitude) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits.strip_prefix('+').unwrap_or(&digits)),
    };
    let lower = magnitude.to_ascii_lowercase();
    let parsed = if let Some(hex) = lower.strip_prefix("0x") {
        u64::from_str_radix(hex, 16).ok()
    } else if let Some(binary) = lower.strip_prefix("0b") {
        u64::from_str_radix(binary, 2).ok()
    } else if let Some(octal) = lower.strip_prefix("0o").or(lower.strip_prefix('0')).filter(|rest| !rest.is_empty()) {
        u64::from_str_radix(octal, 8).ok()
    } else {
        lower.parse().ok()
    };
    if let Some(number) = parsed {
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

impl<'de> DeserializeSeed<'de> for Source<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Source<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Value, E> {
        let meant = if self.is_plain(value) { resolve(value, self.1) } else { None };
        Ok(meant.unwrap_or_else(|| Value::String(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        let mut merged = Vec::new();
        while let Some(key) = entries.next_key_seed(self)? {
            let value = entries.next_value_seed(self)?;
            match key {
                Value::String(key) if key == "<<" && (value.is_object() || value.is_array()) => merged.push(value),
                Value::String(key) => drop(out.insert(key, value)),
                other => drop(out.insert(crate::printers::json::compact(&other), value)),
            }
        }
        // What is said here wins over what is merged in.
        for value in merged {
            let maps = if let Value::Array(maps) = value { maps } else { vec![value] };
            for (key, value) in
                maps.into_iter().filter_map(|m| if let Value::Object(m) = m { Some(m) } else { None }).flatten()
            {
                out.entry(key).or_insert(value);
            }
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
            ("a: &x yes\nb: *x", json!({"a": true, "b": true})),
        ] {
            assert_eq!(read(text, Rules::Client).unwrap(), expected, "{text}");
        }
        assert_eq!(read("[y, 0644]", Rules::Kustomize).unwrap(), json!(["y", 420]));
    }
}
