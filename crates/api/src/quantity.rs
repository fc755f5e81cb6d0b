//! Quantities: `100m`, `1.5Gi`, `12e6`; exact fixed-point numbers with a remembered style of suffix.
//!
//! An amount is a whole number of nano-units, as fine as upstream keeps; finer input is rounded away
//! from zero, so that a request for a little never becomes a request for nothing.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NANO: i128 = 1_000_000_000;

/// A parsed quantity. Comparison is by amount alone: `1000m` equals `1`.
#[derive(Clone, Debug)]
pub struct Quantity {
    nanos: i128,
    format: Format,
    /// Text that upstream keeps although it is not canonical (`1.500`, `+5`).
    kept: Option<Box<str>>,
}

/// The family of suffixes a quantity was written with, and will be printed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    DecimalExponent,
    BinarySI,
    DecimalSI,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Quantity {
    pub const ZERO: Self = Self { nanos: 0, format: Format::DecimalSI, kept: None };

    pub fn new(value: i64, format: Format) -> Self {
        Self { nanos: i128::from(value) * NANO, format, kept: None }
    }

    pub fn from_milli(value: i64, format: Format) -> Self {
        Self { nanos: i128::from(value) * (NANO / 1000), format, kept: None }
    }

    pub fn parse(text: &str) -> Result<Self, ParseError> {
        if text.is_empty() {
            return Err(ParseError::Format);
        }
        match Self::plain(text) {
            Some(quantity) => Ok(quantity),
            None => Self::parse_any(text),
        }
    }

    /// Whole numbers in their canonical form, with or without a suffix: nearly all quantities are.
    fn plain(text: &str) -> Option<Self> {
        /// So many digits fit into a word with any of the suffixes.
        const MAX_DIGITS: usize = 15;
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        if !(1..=MAX_DIGITS).contains(&digits) || text.starts_with('0') {
            return None;
        }
        let number = text.bytes().take(digits).fold(0i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        let (nanos, format) = match &text[digits..] {
            _ if number % 1000 == 0 => return None,
            "m" => (i128::from(number) * (NANO / 1000), Format::DecimalSI),
            "" => (i128::from(number) * NANO, Format::DecimalSI),
            _ if number % 1024 == 0 => return None,
            "Ki" => (i128::from(number << 10) * NANO, Format::BinarySI),
            "Mi" if number < 1 << 40 => (i128::from(number << 20) * NANO, Format::BinarySI),
            "Gi" if number < 1 << 30 => (i128::from(number << 30) * NANO, Format::BinarySI),
            _ => return None,
        };
        Some(Self { nanos, format, kept: None })
    }

    fn parse_any(text: &str) -> Result<Self, ParseError> {
        let parts = split(text)?;
        let (factor, format) = suffix(parts.suffix).ok_or(ParseError::Suffix)?;
        let digits = match parts.fraction {
            "" => Cow::Borrowed(parts.whole),
            fraction => Cow::Owned([parts.whole, fraction].concat()),
        };
        let digits = digits.as_bytes();
        let mut nanos = match factor {
            Factor::Ten(exponent) => {
                let shift = i64::from(exponent) + 9 - parts.fraction.len() as i64;
                shifted(digits, shift)
            }
            Factor::Two(exponent) => {
                let shift = 9 - parts.fraction.len() as i64;
                binary(digits, shift, exponent)
            }
        };
        let mut format = format;
        if format == Format::BinarySI {
            nanos = nanos.min(i128::from(i64::MAX) * NANO);
            if 0 < nanos && nanos < NANO {
                format = Format::DecimalSI;
            }
        }
        let kept = keeps_text(&parts, factor, format).then(|| text.into());
        let nanos = if parts.negative { -nanos } else { nanos };
        let quantity = Self { nanos, format, kept };
        Ok(match &quantity.kept {
            Some(kept) if **kept == *quantity.canonical() => Self { kept: None, ..quantity },
            _ => quantity,
        })
    }

    /// The amount rounded up, away from zero, to a whole number.
    pub fn value(&self) -> i64 {
        self.scaled(NANO)
    }

    /// Thousandths, rounded up, away from zero.
    pub fn milli_value(&self) -> i64 {
        self.scaled(NANO / 1000)
    }

    fn scaled(&self, unit: i128) -> i64 {
        saturate(div_away(self.nanos, unit))
    }

    pub fn as_f64(&self) -> f64 {
        self.nanos as f64 / NANO as f64
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// True when the amount has no part smaller than one.
    pub fn is_integer(&self) -> bool {
        self.nanos % NANO == 0
    }

    /// True when the amount has no part smaller than a thousandth.
    pub fn is_milli_exact(&self) -> bool {
        self.nanos % (NANO / 1000) == 0
    }

    /// A zero takes over the style of what is added.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, i128::saturating_add);
    }

    pub fn sub(&mut self, other: &Self) {
        self.combine(other, i128::saturating_sub);
    }

    fn combine(&mut self, other: &Self, op: fn(i128, i128) -> i128) {
        if self.nanos == 0 {
            self.format = other.format;
        }
        self.nanos = op(self.nanos, other.nanos);
        self.kept = None;
    }

    pub fn max(self, other: Self) -> Self {
        if other > self { other } else { self }
    }

    fn canonical(&self) -> String {
        if self.nanos == 0 {
            return "0".to_owned();
        }
        let magnitude = self.nanos.unsigned_abs();
        let small = magnitude < 1024 * NANO as u128;
        if self.format == Format::BinarySI && !small && self.is_integer() {
            let mut mantissa = self.nanos / NANO;
            let mut power = 0;
            while mantissa % 1024 == 0 && power < 6 {
                mantissa /= 1024;
                power += 1;
            }
            return format!("{mantissa}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power]);
        }
        let exponential = self.format == Format::DecimalExponent;
        let mut mantissa = self.nanos;
        let mut exponent = -9;
        while mantissa % 1000 == 0 && (exponential || exponent < 18) {
            mantissa /= 1000;
            exponent += 3;
        }
        match (exponential, exponent) {
            (_, 0) => mantissa.to_string(),
            (true, exponent) => format!("{mantissa}e{exponent}"),
            (false, exponent) => {
                let suffix = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][((exponent + 9) / 3) as usize];
                format!("{mantissa}{suffix}")
            }
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kept {
            Some(kept) => f.pad(kept),
            None => f.pad(&self.canonical()),
        }
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl FromStr for Quantity {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text)
    }
}

impl TryFrom<&RawQuantity> for Quantity {
    type Error = ParseError;

    fn try_from(raw: &RawQuantity) -> Result<Self, ParseError> {
        Self::parse(&raw.0)
    }
}

impl From<&Quantity> for RawQuantity {
    fn from(quantity: &Quantity) -> Self {
        Self(quantity.to_string())
    }
}

impl From<Quantity> for RawQuantity {
    fn from(quantity: Quantity) -> Self {
        Self::from(&quantity)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

struct Parts<'a> {
    negative: bool,
    /// Without leading zeros.
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

fn split(text: &str) -> Result<Parts<'_>, ParseError> {
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let rest = unsigned.trim_start_matches('0');
    let digits_end = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (whole, rest) = rest.split_at(digits_end(rest));
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits_end(rest)),
        None => ("", rest),
    };
    // Upstream reads a bare sign as zero, but a suffix needs digits before it.
    let after_letters = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    let exponent = after_letters.strip_prefix(['-', '+']).unwrap_or(after_letters);
    if !exponent.bytes().all(|c| c.is_ascii_digit()) {
        return Err(ParseError::Format);
    }
    Ok(Parts { negative, whole, fraction, suffix })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Factor {
    Ten(i32),
    Two(u32),
}

fn suffix(text: &str) -> Option<(Factor, Format)> {
    let decimal = |exponent| Some((Factor::Ten(exponent), Format::DecimalSI));
    let binary = |exponent| Some((Factor::Two(exponent), Format::BinarySI));
    match text {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = text.strip_prefix(['e', 'E'])?.parse::<i64>().ok()?;
            let exponent = exponent.clamp(-1_000_000, 1_000_000) as i32;
            Some((Factor::Ten(exponent), Format::DecimalExponent))
        }
    }
}

/// The digits times ten to the `shift`, rounded up, saturating.
fn shifted(digits: &[u8], shift: i64) -> i128 {
    /// So many digits fit into a word.
    const SHORT: usize = 18;
    let read = |digits: &[u8]| {
        let (short, long) = digits.split_at(digits.len().min(SHORT));
        let short = short.iter().fold(0i64, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        long.iter().fold(i128::from(short), |sum, digit| sum.saturating_mul(10).saturating_add((digit - b'0').into()))
    };
    if shift < 0 {
        let keep = digits.len().saturating_sub(shift.unsigned_abs() as usize);
        let (kept, dropped) = digits.split_at(keep);
        return read(kept).saturating_add(i128::from(dropped.iter().any(|&digit| digit != b'0')));
    }
    let value = read(digits);
    if value == 0 {
        return 0;
    }
    u32::try_from(shift)
        .ok()
        .and_then(|shift| 10i128.checked_pow(shift))
        .map_or(i128::MAX, |factor| value.saturating_mul(factor))
}

fn binary(digits: &[u8], shift: i64, exponent: u32) -> i128 {
    let value = shifted(digits, 0).saturating_mul(1i128 << exponent);
    if value == i128::MAX {
        return value;
    }
    if shift >= 0 {
        return value.saturating_mul(10i128.pow(shift as u32));
    }
    u32::try_from(-shift)
        .ok()
        .and_then(|shift| 10i128.checked_pow(shift))
        .map_or_else(|| i128::from(value != 0), |divisor| div_away(value, divisor))
}

/// Whether upstream's parser takes the text itself for the printed form (`ParseQuantity`, v1.36).
fn keeps_text(parts: &Parts<'_>, factor: Factor, format: Format) -> bool {
    let whole = if parts.whole.is_empty() { "0" } else { parts.whole };
    let length = whole.len() + parts.fraction.len();
    match factor {
        Factor::Ten(exponent) => {
            let scale = i64::from(exponent) - parts.fraction.len() as i64;
            let mut from_end = whole.bytes().chain(parts.fraction.bytes()).rev();
            let ends_round = (0..3).all(|_| from_end.next() == Some(b'0'));
            length <= 18 && scale >= -9 && scale % 3 == 0 && !ends_round && !whole.starts_with('0')
        }
        Factor::Two(exponent) => {
            let precision = 15 - whole.len() as i64 - (exponent as f32 * 3.0 / 10.0) as i64 - 1;
            format == Format::BinarySI
                && parts.fraction.is_empty()
                && precision >= 0
                && whole.parse::<i64>().is_ok_and(|value| value & 7 != 0)
        }
    }
}

fn div_away(value: i128, unit: i128) -> i128 {
    let (quotient, remainder) = (value / unit, value % unit);
    quotient + remainder.signum()
}

fn saturate(value: i128) -> i64 {
    value.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn canonical_forms() {
        for (text, expected) in [
            ("0", "0"),
            ("0Gi", "0"),
            ("1", "1"),
            ("1000", "1k"),
            ("1000m", "1"),
            ("1.5", "1500m"),
            ("1.5Gi", "1536Mi"),
            ("0.5Mi", "512Ki"),
            ("1024Mi", "1Gi"),
            ("1025Mi", "1025Mi"),
            ("100Mi", "100Mi"),
            ("1023", "1023"),
            ("0.5Ki", "512"),
            ("0.1", "100m"),
            ("100000", "100k"),
            ("123456", "123456"),
            ("12e6", "12e6"),
            ("1e3", "1e3"),
            ("1000e0", "1e3"),
            ("1E", "1E"),
            ("1E2", "100"),
            ("0.1m", "100u"),
            ("1.0000000001", "1000000001n"),
            ("-1.5", "-1500m"),
            ("-5Gi", "-5Gi"),
            (".5", "500m"),
            ("5.", "5."),
            ("1.500", "1.500"),
            ("9Ei", "9223372036854775807"),
            ("2048Ti", "2Pi"),
            ("0.0000000001", "1n"),
        ] {
            assert_eq!(Quantity::parse(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn refusals() {
        for (text, error) in [
            ("", ParseError::Format),
            ("1x", ParseError::Format),
            ("1.1.1", ParseError::Format),
            ("1 Gi", ParseError::Format),
            ("1GiB", ParseError::Format),
            ("1mm", ParseError::Suffix),
            ("1i", ParseError::Suffix),
            ("1e", ParseError::Suffix),
            ("1.1e+", ParseError::Suffix),
        ] {
            assert_eq!(Quantity::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn arithmetic_and_rounding() {
        let mut sum = Quantity::ZERO;
        sum.add(&"1Gi".parse().unwrap());
        sum.add(&"512Mi".parse().unwrap());
        assert_eq!(sum.to_string(), "1536Mi");
        sum.sub(&"1536Mi".parse().unwrap());
        assert!(sum.is_zero());
        for (text, value, milli) in
            [("100m", 1, 100), ("1.5", 2, 1500), ("-1.5", -2, -1500), ("1u", 1, 1), ("1Gi", 1 << 30, 1000 << 30)]
        {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!((quantity.value(), quantity.milli_value()), (value, milli), "{text}");
        }
        assert!(Quantity::parse("1000m").unwrap() == Quantity::parse("1").unwrap());
        assert!(Quantity::parse("1Gi").unwrap() > Quantity::parse("1G").unwrap());
    }

    proptest! {
        #[test]
        fn never_panics_and_printing_is_stable(text in "[+-]?[0-9.]{0,30}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,12}") {
            if let Ok(quantity) = Quantity::parse(&text) {
                let printed = quantity.to_string();
                let again = Quantity::parse(&printed).unwrap();
                prop_assert_eq!(&again, &quantity);
                prop_assert_eq!(again.to_string(), printed);
            }
        }

        #[test]
        fn the_usual_ones_are_read_like_all_others(text in "[1-9][0-9]{0,15}(m|k|Ki|Mi|Gi|)") {
            if let Some(quantity) = Quantity::plain(&text) {
                let other = Quantity::parse_any(&text).unwrap();
                prop_assert_eq!((quantity.nanos, quantity.format, &quantity.kept), (other.nanos, other.format, &other.kept));
                prop_assert_eq!(quantity.to_string(), text);
            }
        }

        #[test]
        fn order_agrees_with_subtraction(a in any::<i64>(), b in any::<i64>()) {
            let (a, b) = (Quantity::from_milli(a, Format::DecimalSI), Quantity::from_milli(b, Format::BinarySI));
            let mut difference = a.clone();
            difference.sub(&b);
            prop_assert_eq!(a < b, difference.is_negative());
        }
    }
}
