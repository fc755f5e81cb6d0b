//! Text of others on its way to a terminal: what would command the terminal is shown instead of sent.

use std::borrow::Cow;

/// Escape and carriage return become what upstream makes of them. All other control characters but the ends of lines and
/// cells become `\u{…}`: many terminals take U+009B for the beginning of a command, too.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_command) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\x1b' => out.push_str("^["),
            c if is_command(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

fn is_command(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown() {
        for (text, expected) in [
            ("a\tb\nü", "a\tb\nü"),
            ("\x1b[31mred\r\n", "^[[31mred\\r\n"),
            ("a\u{9b}2J\u{7}\u{8}", "a\\u{9b}2J\\u{7}\\u{8}"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }
}
