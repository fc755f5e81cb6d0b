//! Takes out of a text what two runs cannot have in common: uids, versions, times, ages, allocated addresses and ports.

/// Every such word becomes its kind. The blanks after an age or an address go too: columns are as wide as their widest cell.
pub(crate) fn normal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let before = if at == 0 { b'\n' } else { bytes[at - 1] };
        // A port follows another one; everything else stands by itself.
        let found =
            node_port(rest).or_else(|| if is_word(before) { None } else { RULES.iter().find_map(|rule| rule(rest)) });
        match found {
            Some((length, replacement, squeeze)) => {
                out.push_str(replacement);
                at += length;
                if squeeze {
                    let blanks = text[at..].len() - text[at..].trim_start_matches(' ').len();
                    if blanks > 0 {
                        out.push(' ');
                    }
                    at += blanks;
                }
            }
            None => {
                let c = rest.chars().next().unwrap_or(' ');
                out.push(c);
                at += c.len_utf8();
            }
        }
    }
    if text.contains("10.43.") { squeeze(&out) } else { out }
}

/// Leaves out the lines of `api-versions` that name custom groups: both sides and all scenarios make theirs on one server.
pub(crate) fn without_custom_groups(text: &str) -> String {
    let is_group = |line: &str| line.trim_end().ends_with(".example.com/v1") && !line.trim_end().contains(' ');
    text.split_inclusive('\n').filter(|line| !is_group(line)).collect()
}

/// Before 1.36 kubectl described a secret's data in the order of a Go map, another one every time: a peer's neighbouring
/// lines of sizes are sorted. Ours must come in that order by themselves.
pub(crate) fn in_order(text: &str) -> String {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    for sizes in lines.chunk_by_mut(|a, b| [a, b].iter().all(|line| line.ends_with(" bytes\n"))) {
        sizes.sort_unstable();
    }
    lines.concat()
}

/// How much of the text, what stands for it, and whether the blanks after it go.
type Found = Option<(usize, &'static str, bool)>;

const RULES: &[fn(&str) -> Found] = &[uid, timestamp, date, go_time, log_time, age, age_heading, version, address];

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'-' || b == b'.'
}

/// Whether `text` begins with the shape: `x` a hexadecimal digit, `9` a digit, `a` a letter, else itself.
fn shape(text: &str, shape: &str) -> bool {
    text.len() >= shape.len()
        && shape.bytes().zip(text.bytes()).all(|(s, t)| match s {
            b'x' => t.is_ascii_hexdigit(),
            b'9' => t.is_ascii_digit(),
            b'a' => t.is_ascii_alphabetic(),
            b'+' => t == b'+' || t == b'-',
            s => s == t,
        })
}

fn uid(text: &str) -> Found {
    shape(text, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx").then_some((36, "UID", false))
}

fn timestamp(text: &str) -> Found {
    if !shape(text, "9999-99-99T99:99:99") {
        return None;
    }
    let end = text[19..].find('Z')? + 20;
    (end <= 30).then_some((end, "TIME", false))
}

fn date(text: &str) -> Found {
    shape(text, "aaa, 99 aaa 9999 99:99:99 +9999").then_some((31, "TIME", false))
}

/// How Go prints a time without a format.
fn go_time(text: &str) -> Found {
    shape(text, "9999-99-99 99:99:99 +9999 aaa").then_some((29, "TIME", false))
}

/// The time and the process before a line of a log, after the letter that says how bad it is.
fn log_time(text: &str) -> Found {
    if !shape(text, "a9999 99:99:99.999999") {
        return None;
    }
    let rest = text[21..].trim_start_matches(' ');
    let process = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    Some((text.len() - rest.len() + process, "LOG", true))
}

/// `5s`, `2m10s`, `3d4h`; alone, not part of a longer word.
fn age(text: &str) -> Found {
    let length = text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    let mut digits = 0;
    for b in text[..length].bytes() {
        match b {
            b'0'..=b'9' => digits += 1,
            b's' | b'm' | b'h' | b'd' | b'y' if digits > 0 => digits = 0,
            _ => return None,
        }
    }
    (length >= 2 && digits == 0 && text[..length].ends_with(['s', 'm', 'h', 'd', 'y'])).then_some((length, "AGE", true))
}

/// A column of ages is as wide as the longest of them, and 99s and 100s are not equally long.
fn age_heading(text: &str) -> Found {
    text.strip_prefix("AGE").is_some_and(|rest| rest.starts_with(' ')).then_some((3, "AGE", true))
}

fn version(text: &str) -> Found {
    for head in ["resourceVersion: \"", "resourceVersion\": \"", "resourceVersion\":\""] {
        if let Some(rest) = text.strip_prefix(head) {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            return Some((head.len() + digits, "resourceVersion VERSION", false));
        }
    }
    None
}

fn address(text: &str) -> Found {
    let rest = text.strip_prefix("10.43.")?;
    let length = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    Some((6 + length, "CLUSTERIP", true))
}

fn node_port(text: &str) -> Found {
    for head in [":3", "nodePort: 3", "nodePort\": 3"] {
        if let Some(rest) = text.strip_prefix(head)
            && shape(rest, "9999")
            && !rest[4..].starts_with(|c: char| c.is_ascii_digit())
        {
            return Some((head.len() + 4, "NODEPORT", false));
        }
    }
    None
}

fn squeeze(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c != ' ' || !out.ends_with(' ') {
            out.push(c);
        }
    }
    out
}

#[test]
fn only_what_cannot_be_equal_goes() {
    for (text, expected) in [
        ("web   5s    x", "web   AGE x"),
        ("uid: 01234567-89ab-cdef-0123-456789abcdef\n", "uid: UID\n"),
        ("2026-01-02T03:04:05Z", "TIME"),
        ("Mon, 02 Jan 2026 03:04:05 +0000", "TIME"),
        ("W1115 10:27:37.185096    2388 prune.go:71] x", "LOG prune.go:71] x"),
        ("web-5s 3x v1s", "web-5s 3x v1s"),
        ("  resourceVersion: \"12\"", "  resourceVersion VERSION\""),
        ("a   10.43.1.2     80:31234/TCP", "a CLUSTERIP 80NODEPORT/TCP"),
        ("NAME  AGE    IMAGES\nweb   100s   nginx", "NAME  AGE IMAGES\nweb   AGE nginx"),
        ("NAME  AGE   IMAGES\nweb   99s   nginx", "NAME  AGE IMAGES\nweb   AGE nginx"),
        ("AGE\n2m10s (x3 over 4m)", "AGE\nAGE (x3 over AGE)"),
    ] {
        assert_eq!(normal(text), expected);
    }
}

#[test]
fn lines_of_sizes_are_sorted() {
    assert_eq!(in_order("====\nb:  1 bytes\na:  6 bytes\nz\na\n"), "====\na:  6 bytes\nb:  1 bytes\nz\na\n");
}
