//! Name rules: what may be a label, a DNS name, a port name, an environment variable.
//!
//! Each rule returns upstream's messages, none when the value is fine; strategies add the field with
//! [`crate::field::FieldErrors::invalid_each`]. The patterns are simple enough to be matched by hand,
//! and they are matched on every write.

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// Names of namespaces, containers, volumes.
pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut errors = max_length(value, 63);
    if !is_dns1123_label(value) {
        if is_dns1123_subdomain(value) {
            errors.push("must not contain dots".to_owned());
        } else {
            errors.push(regex_error(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            ));
        }
    }
    errors
}

/// Names of most objects.
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    let mut errors = max_length(value, 253);
    if !is_dns1123_subdomain(value) {
        errors.push(regex_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    errors
}

/// A subdomain whose labels may hold underscores (DNS search paths).
pub fn dns1123_subdomain_with_underscore(value: &str) -> Vec<String> {
    let mut errors = max_length(value, 253);
    let label = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        framed(label, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), |c| matches!(c, b'-' | b'_'))
    };
    if !value.split('.').all(label) {
        errors.push(regex_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character",
            "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    errors
}

/// Names of Services.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut errors = max_length(value, 63);
    let starts_with_letter = value.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    if !starts_with_letter || !is_dns1123_label(value) {
        errors.push(regex_error(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    errors
}

/// Hosts of Ingress rules such as `*.example.com`.
pub fn wildcard_dns1123_subdomain(value: &str) -> Vec<String> {
    let mut errors = max_length(value, 253);
    if !value.strip_prefix("*.").is_some_and(is_dns1123_subdomain) {
        errors.push(regex_error(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            "\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            &["*.example.com"],
        ));
    }
    errors
}

/// Keys of labels, annotations, resources: `name` or `prefix/name`.
pub fn qualified_name(value: &str) -> Vec<String> {
    const MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    const EXAMPLES: &[&str] = &["MyName", "my.name", "123-abc"];
    let mut errors = Vec::new();
    let name = match value.split_once('/') {
        None => value,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                regex_error(MESSAGE, QUALIFIED, EXAMPLES)
            )];
        }
        Some(("", name)) => {
            errors.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            errors.extend(dns1123_subdomain(prefix).into_iter().map(|error| format!("prefix part {error}")));
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", max_length_error(63)));
    }
    if !is_qualified_part(name) {
        errors.push(format!("name part {}", regex_error(MESSAGE, QUALIFIED, EXAMPLES)));
    }
    errors
}

/// Values of labels; may be empty.
pub fn label_value(value: &str) -> Vec<String> {
    let mut errors = max_length(value, 63);
    if !value.is_empty() && !is_qualified_part(value) {
        errors.push(regex_error(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

pub fn c_identifier(value: &str) -> Vec<String> {
    let mut bytes = value.bytes();
    let ok = bytes.next().is_some_and(|c| c.is_ascii_alphabetic() || c == b'_')
        && bytes.all(|c| c.is_ascii_alphanumeric() || c == b'_');
    refuse(ok, || {
        regex_error(
            "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'",
            "[A-Za-z_][A-Za-z0-9_]*",
            &["my_name", "MY_NAME", "MyName"],
        )
    })
}

/// Environment variable names as every node accepts them (`RelaxedEnvironmentVariableValidation`).
pub fn env_var_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.is_empty() {
        errors.push("environment variable name must be non-empty".to_owned());
    }
    if !value.chars().all(|c| (' '..='~').contains(&c) && c != '=') {
        errors.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        );
    }
    errors
}

/// Environment variable names as `envFrom` and old clients take them.
pub fn strict_env_var_name(value: &str) -> Vec<String> {
    let mut bytes = value.bytes();
    let other = |c: u8| matches!(c, b'-' | b'.' | b'_');
    let ok = bytes.next().is_some_and(|c| c.is_ascii_alphabetic() || other(c))
        && bytes.all(|c| c.is_ascii_alphanumeric() || other(c));
    let mut errors = refuse(ok, || {
        regex_error(
            "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', and must not start with a digit",
            "[-._a-zA-Z][-._a-zA-Z0-9]*",
            &["my.env-name", "MY_ENV.NAME", "MyEnvName1"],
        )
    });
    errors.extend(dot_dot(value));
    errors
}

/// Keys of ConfigMaps and Secrets.
pub fn config_map_key(value: &str) -> Vec<String> {
    let mut errors = max_length(value, 253);
    let ok = !value.is_empty() && value.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_'));
    if !ok {
        errors.push(regex_error(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    errors.extend(dot_dot(value));
    errors
}

/// Names of container and service ports (IANA service names).
pub fn port_name(value: &str) -> Vec<String> {
    let mut errors = max_length(value, 15);
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if value.is_empty() || !value.bytes().all(allowed) {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !value.bytes().any(|c| c.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

pub fn port_number(port: i64) -> Vec<String> {
    in_range(port, 1, 65535)
}

pub fn in_range(value: i64, low: i64, high: i64) -> Vec<String> {
    refuse((low..=high).contains(&value), || format!("must be between {low} and {high}, inclusive"))
}

/// User and group ids.
pub fn user_or_group_id(id: i64) -> Vec<String> {
    in_range(id, 0, i64::from(i32::MAX))
}

pub fn percent(value: &str) -> Vec<String> {
    let digits = value.strip_suffix('%').unwrap_or_default();
    refuse(!digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()), || {
        regex_error(
            "a valid percent string must be a numeric string followed by an ending '%'",
            "[0-9]+%",
            &["1%", "93%"],
        )
    })
}

pub fn http_header_name(value: &str) -> Vec<String> {
    refuse(!value.is_empty() && value.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-'), || {
        regex_error(
            "a valid HTTP header must consist of alphanumeric characters or '-'",
            "[-A-Za-z0-9]+",
            &["X-Header-Name"],
        )
    })
}

/// Names that become a path segment (RBAC objects): anything but `.`, `..`, `/` and `%`.
pub fn path_segment_name(value: &str) -> Vec<String> {
    match value {
        "." => vec!["may not be '.'".to_owned()],
        ".." => vec!["may not be '..'".to_owned()],
        _ => ['/', '%'].into_iter().filter(|&c| value.contains(c)).map(|c| format!("may not contain '{c}'")).collect(),
    }
}

/// Whether a text holds one PEM block that every reader takes for the same one. Readers differ in where they look for the
/// beginning of a block, in what ends a line, and in what they pass over: whoever decides about a request and whoever acts
/// on it must not see two different ones.
pub fn is_one_pem_block(text: &[u8], label: &str) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    if ["-----BEGIN", "-----END"].iter().any(|mark| text.matches(mark).count() != 1) {
        return false;
    }
    let Some((before, rest)) = text.split_once(&format!("-----BEGIN {label}-----")) else { return false };
    let Some((content, _)) = rest.split_once(&format!("\n-----END {label}-----")) else { return false };
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    let mut lines = content.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let begins_a_line = before.is_empty() || before.ends_with('\n');
    begins_a_line
        && lines.next().is_some_and(str::is_empty)
        && lines.all(|line| !line.is_empty() && line.bytes().all(is_base64))
}

pub fn is_dns1123_label(value: &str) -> bool {
    framed(value, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), |c| c == b'-')
}

pub fn is_dns1123_subdomain(value: &str) -> bool {
    value.split('.').all(is_dns1123_label)
}

fn is_qualified_part(value: &str) -> bool {
    framed(value, |c| c.is_ascii_alphanumeric(), |c| matches!(c, b'-' | b'_' | b'.'))
}

/// Begins and ends with `edge`; between them also `inner`.
fn framed(value: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match value.as_bytes() {
        [] => false,
        [only] => edge(*only),
        [first, middle @ .., last] => edge(*first) && edge(*last) && middle.iter().all(|&c| edge(c) || inner(c)),
    }
}

fn max_length(value: &str, max: usize) -> Vec<String> {
    refuse(value.len() <= max, || max_length_error(max))
}

pub fn max_length_error(max: usize) -> String {
    format!("must be no more than {max} characters")
}

fn dot_dot(value: &str) -> Option<String> {
    let message = match value {
        "." => "must not be '.'",
        ".." => "must not be '..'",
        _ if value.starts_with("..") => "must not start with '..'",
        _ => return None,
    };
    Some(message.to_owned())
}

fn refuse(ok: bool, message: impl FnOnce() -> String) -> Vec<String> {
    if ok { Vec::new() } else { vec![message()] }
}

/// `message (e.g. 'a',  or 'b', regex used for validation is '...')`, with upstream's odd spacing.
pub fn regex_error(message: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{pattern}')");
    }
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{message} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_one_block_is_the_same_for_every_reader() {
        let block = |label: &str, body: &str| format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
        let good = block("CERTIFICATE REQUEST", "MIIB\nAA==");
        for (text, is_one) in [
            (good.clone(), true),
            (good.replace('\n', "\r\n"), true),
            (format!("Certificate Request:\n  Data\n{good}"), true),
            (String::new(), false),
            (block("CERTIFICATE", "MIIB"), false),
            (format!("{good}{good}"), false),
            // Some look for the beginning anywhere, some at the beginning of a line, and lines end in more than one way.
            (format!("# {}{good}", block("X", "MIIB")), false),
            (format!("x\r{}{good}", good.replace('\n', "\r")), false),
            (format!("# {good}"), false),
            (good.replace('\n', "\r"), false),
            // Some take what stands before an empty line for headers.
            (good.replace("MIIB\n", "MIIB\n\n"), false),
            (good.replace("MIIB", "Proc-Type: 4"), false),
            (good.replace("MIIB", "MI\rIB"), false),
            (good.replace("-----END", "-----END X-----\n-----END"), false),
        ] {
            assert_eq!(is_one_pem_block(text.as_bytes(), "CERTIFICATE REQUEST"), is_one, "{text:?}");
        }
        assert!(!is_one_pem_block(b"\xff", "CERTIFICATE REQUEST"));
    }

    #[test]
    fn dns_names() {
        let long = "a".repeat(64);
        for (value, label, subdomain) in [
            ("a", true, true),
            ("a-b", true, true),
            ("a.b", false, true),
            ("-a", false, false),
            ("a-", false, false),
            ("A", false, false),
            ("", false, false),
            ("a..b", false, false),
            (&long, false, true),
        ] {
            assert_eq!(dns1123_label(value).is_empty(), label, "{value}");
            assert_eq!(dns1123_subdomain(value).is_empty(), subdomain, "{value}");
        }
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            dns1123_subdomain("A"),
            [
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        assert!(dns1035_label("1a").len() == 1 && dns1035_label("a1").is_empty());
        assert!(wildcard_dns1123_subdomain("*.a.b").is_empty() && !wildcard_dns1123_subdomain("*").is_empty());
    }

    #[test]
    fn qualified_names_and_values() {
        for (value, ok) in [
            ("a", true),
            ("a/b", true),
            ("A_b.c", true),
            ("/b", false),
            ("a/", false),
            ("a/b/c", false),
            ("A.com/b", false),
            ("", false),
        ] {
            assert_eq!(qualified_name(value).is_empty(), ok, "{value}");
        }
        for (value, ok) in [("", true), ("a", true), ("a b", false), ("-", false), ("1.2_3-x", true)] {
            assert_eq!(label_value(value).is_empty(), ok, "{value}");
        }
    }

    #[test]
    fn ports_keys_and_variables() {
        for (value, ok) in [("http", true), ("h--p", false), ("80", false), ("-a", false), ("a23456789012345b", false)]
        {
            assert_eq!(port_name(value).is_empty(), ok, "{value}");
        }
        for (value, ok) in [("a.b", true), ("..a", false), (".", false), ("a/b", false), ("", false)] {
            assert_eq!(config_map_key(value).is_empty(), ok, "{value}");
        }
        for (value, ok) in [("A", true), ("1 a", true), ("a=b", false), ("", false), ("é", false)] {
            assert_eq!(env_var_name(value).is_empty(), ok, "{value}");
        }
        assert_eq!(port_number(0), ["must be between 1 and 65535, inclusive"]);
        assert!(percent("50%").is_empty() && !percent("%").is_empty() && !percent("50").is_empty());
    }
}
