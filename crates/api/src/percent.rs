//! Percent-encoding of URLs: client and servers read each other by one rule.

use std::borrow::Cow;
use std::fmt::Write;

/// Appends `value` so that it is one path segment or one query value.
pub fn encode(text: &mut String, value: &str) {
    append(text, value, |byte| is_unreserved(byte) || byte == b':');
}

/// For places with rules of their own: everything is encoded but what `keeps` says.
pub fn encode_except(value: &str, keeps: impl Fn(u8) -> bool) -> String {
    let mut text = String::with_capacity(value.len());
    append(&mut text, value, keeps);
    text
}

/// What stands for itself everywhere in a URL (RFC 3986).
pub fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn append(text: &mut String, value: &str, keeps: impl Fn(u8) -> bool) {
    for byte in value.bytes() {
        if keeps(byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}"); // writing to a String cannot fail
        }
    }
}

/// Decodes; invalid sequences stay as they are. In queries `+` is a space.
pub fn decode(text: &str, plus_is_space: bool) -> Cow<'_, str> {
    if !(text.contains('%') || plus_is_space && text.contains('+')) {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    let hex = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    while let Some(&byte) = bytes.get(at) {
        match (byte, hex(bytes.get(at + 1)), hex(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (b'+', ..) if plus_is_space => {
                out.push(b' ');
                at += 1;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (plain, encoded) in [
            ("", ""),
            ("a-b_c.d~e:f", "a-b_c.d~e:f"),
            ("app in (a,b)", "app%20in%20%28a%2Cb%29"),
            ("a+b/c%41", "a%2Bb%2Fc%2541"),
            ("\u{e9}\0", "%C3%A9%00"),
        ] {
            let mut text = String::new();
            encode(&mut text, plain);
            assert_eq!(text, encoded);
            assert_eq!((decode(encoded, true), decode(encoded, false)), (plain.into(), plain.into()));
        }
    }

    #[test]
    fn rules_of_ones_own_say_what_is_kept() {
        assert_eq!(encode_except("a b/c~\u{e9}", is_unreserved), "a%20b%2Fc~%C3%A9");
        assert_eq!(encode_except("a b/c", |byte| is_unreserved(byte) || byte == b'/'), "a%20b/c");
    }

    #[test]
    fn what_is_no_escape_stays() {
        for (text, as_query, as_path) in [
            ("a+b", "a b", "a+b"),
            ("100%", "100%", "100%"),
            ("%4", "%4", "%4"),
            ("%zz%41", "%zzA", "%zzA"),
            // A sign is no digit.
            ("%+1", "% 1", "%+1"),
            ("%e9", "\u{fffd}", "\u{fffd}"),
        ] {
            assert_eq!((&*decode(text, true), &*decode(text, false)), (as_query, as_path), "{text}");
        }
    }
}
