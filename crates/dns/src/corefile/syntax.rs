//! The text of a Corefile as words: server blocks, directives, and the lines in the braces of a directive.

use super::Refusal;

/// One server block: its keys (zones with ports), and what it does.
#[derive(Debug, PartialEq)]
pub(super) struct ServerBlock {
    pub(super) line: usize,
    pub(super) keys: Vec<String>,
    pub(super) directives: Vec<Directive>,
}

/// A directive with its arguments, and the lines in its braces.
#[derive(Debug, PartialEq)]
pub(super) struct Directive {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) args: Vec<String>,
    pub(super) body: Vec<Line>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Line {
    pub(super) line: usize,
    pub(super) words: Vec<String>,
}

pub(super) fn parse(text: &str) -> Result<Vec<ServerBlock>, Refusal> {
    let mut lines = lines(text)?.into_iter();
    let mut blocks = Vec::new();
    while let Some(Line { line, words: mut keys }) = lines.next() {
        if keys.pop().as_deref() != Some("{") {
            return Err(Refusal::at(line, "a server block begins with its zones and an opening curly brace"));
        }
        let keys: Vec<String> =
            keys.iter().flat_map(|key| key.split(',')).filter(|key| !key.is_empty()).map(str::to_owned).collect();
        if keys.is_empty() {
            return Err(Refusal::at(line, "a server block needs a zone"));
        }
        if keys.iter().any(|key| key.starts_with('(')) {
            return Err(Refusal::at(line, "snippets are not supported"));
        }
        blocks.push(ServerBlock { line, keys, directives: directives(&mut lines, line)? });
    }
    Ok(blocks)
}

/// Up to the end of the server block that began at `began`.
fn directives(lines: &mut impl Iterator<Item = Line>, began: usize) -> Result<Vec<Directive>, Refusal> {
    let mut directives = Vec::new();
    loop {
        let Some(Line { line, words }) = lines.next() else {
            return Err(Refusal::at(began, "the block has no closing curly brace"));
        };
        let mut words = words.into_iter();
        let name = words.next().unwrap_or_default();
        let mut args: Vec<String> = words.collect();
        if name == "}" {
            return match args.is_empty() {
                true => Ok(directives),
                false => Err(Refusal::at(line, "nothing may follow a closing curly brace")),
            };
        }
        let mut body = Vec::new();
        if args.last().is_some_and(|last| last == "{") {
            args.pop();
            loop {
                let Some(next) = lines.next() else {
                    return Err(Refusal::at(line, format!("{name} has no closing curly brace")));
                };
                if next.words == ["}"] {
                    break;
                }
                body.push(next);
            }
        }
        directives.push(Directive { line, name, args, body });
    }
}

/// The words of every line that has some. Quotes keep words together, over the ends of lines too; a comment begins with a word.
fn lines(text: &str) -> Result<Vec<Line>, Refusal> {
    let mut lines: Vec<Line> = Vec::new();
    let mut number = 1;
    // Where the present line of words began.
    let mut line = Line { line: 1, words: Vec::new() };
    let mut chars = text.chars().peekable();
    while let Some(next) = chars.next() {
        match next {
            '\n' => {
                number += 1;
                let ended = std::mem::replace(&mut line, Line { line: number, words: Vec::new() });
                lines.extend(Some(ended).filter(|line| !line.words.is_empty()));
            }
            white if white.is_whitespace() => {}
            '#' => while chars.next_if(|next| *next != '\n').is_some() {},
            '"' => {
                let began = number;
                let mut word = String::new();
                loop {
                    match chars.next() {
                        None => return Err(Refusal::at(began, "a quotation mark has no other")),
                        Some('"') => break,
                        Some('\\') if chars.peek() == Some(&'"') => word.extend(chars.next()),
                        Some(other) => {
                            number += usize::from(other == '\n');
                            word.push(other);
                        }
                    }
                }
                line.words.push(word);
            }
            first => {
                let mut word = String::from(first);
                while let Some(next) = chars.next_if(|next| !next.is_whitespace()) {
                    word.push(next);
                }
                if word.starts_with("{$") || word.starts_with("{%") {
                    return Err(Refusal::at(number, format!("{word}: environment variables are not available")));
                }
                line.words.push(word);
            }
        }
    }
    lines.extend(Some(line).filter(|line| !line.words.is_empty()));
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_directives_and_lines() {
        let text = "# a comment\n.:53, example.org {\n  errors # another\n  hosts {\n    192.0.2.1 a b\n\n    fallthrough\n  }\n  \
                    template IN A {\n answer \"{{ .Name }} \\\"x\\\" y\"\n}\n}\nb.test {\nlog\n}";
        let blocks = parse(text).unwrap();
        let directive = |line, name: &str, args: &[&str], body: &[(usize, &[&str])]| Directive {
            line,
            name: name.into(),
            args: args.iter().map(|word| (*word).to_owned()).collect(),
            body: body
                .iter()
                .map(|(line, words)| Line { line: *line, words: words.iter().map(|word| (*word).to_owned()).collect() })
                .collect(),
        };
        let first = vec![
            directive(3, "errors", &[], &[]),
            directive(4, "hosts", &[], &[(5, &["192.0.2.1", "a", "b"]), (7, &["fallthrough"])]),
            directive(9, "template", &["IN", "A"], &[(10, &["answer", "{{ .Name }} \"x\" y"])]),
        ];
        assert_eq!(
            blocks,
            [
                ServerBlock { line: 2, keys: vec![".:53".into(), "example.org".into()], directives: first },
                ServerBlock { line: 13, keys: vec!["b.test".into()], directives: vec![directive(14, "log", &[], &[])] },
            ]
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_line() {
        for (text, line) in [
            (".:53\n", 1),
            ("\n{\n}\n", 2),
            ("\n. {\nerrors\n", 2),
            (". {\nhosts {\n", 2),
            (". {\nerrors\n} x\n", 3),
            (". {\ntemplate IN A {\nanswer \"x\n}\n}\n", 3),
            (". {\nforward . {$UPSTREAM}\n}\n", 2),
            ("(snippet) {\nerrors\n}\n", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
    }
}
