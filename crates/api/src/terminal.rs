//! Text of others on its way to a terminal: what would command the terminal is shown instead of sent.

use std::borrow::Cow;

/// Escape and carriage return become what upstream makes of them, other control characters `\u{…}`: many terminals take U+009B
/// for the beginning of a command, too. So do characters that turn the direction of what follows. The ends of lines and cells stay.
pub fn escaped(text: &str) -> Cow<'_, str> {
    without(text, |c| is_command(c) && !matches!(c, '\n' | '\t'))
}

/// The same for what has one line, or a part of it.
pub fn escaped_line(text: &str) -> Cow<'_, str> {
    without(text, is_command)
}

fn without(text: &str, is_unwanted: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_unwanted) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\x1b' => out.push_str("^["),
            c if is_unwanted(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Control characters, ends of lines and paragraphs, and what Unicode calls `Bidi_Control`.
fn is_command(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_commands_to_terminals_are_shown() {
        for (text, expected, line) in [
            ("a\tb\nü", "a\tb\nü", "a\\tb\\nü"),
            ("\x1b[31mred\r\n", "^[[31mred\\r\n", "^[[31mred\\r\\n"),
            ("a\u{9b}2J\u{7}\u{8}", "a\\u{9b}2J\\u{7}\\u{8}", "a\\u{9b}2J\\u{7}\\u{8}"),
            ("a\u{202e}b\u{2066}\u{2028}", "a\\u{202e}b\\u{2066}\\u{2028}", "a\\u{202e}b\\u{2066}\\u{2028}"),
            // Words that are joined, or not, without a sign for it.
            ("👩\u{200d}🚀 a\u{200c}b", "👩\u{200d}🚀 a\u{200c}b", "👩\u{200d}🚀 a\u{200c}b"),
        ] {
            assert_eq!((&*escaped(text), &*escaped_line(text)), (expected, line));
        }
    }
}
