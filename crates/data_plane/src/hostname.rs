//! Host names as listeners, routes and certificates write them, and tables keyed by them.

use std::borrow::Cow;
use std::collections::HashMap;

/// Which hosts are meant. Names are in lower case and have no final dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pattern {
    Any,
    Exact(String),
    /// `*.example.com` of an Ingress: one label before the suffix.
    OneLabel(String),
    /// `*.example.com` of a Gateway: one or more labels before the suffix.
    Labels(String),
}

/// How an API reads a wildcard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wildcard {
    OneLabel,
    Labels,
}

impl Pattern {
    /// None of a text means any host, and so does an empty one.
    pub fn new(text: Option<&str>, wildcard: Wildcard) -> Self {
        let text = normalized(text.unwrap_or_default());
        match (text.strip_prefix("*."), wildcard) {
            _ if text.is_empty() || text == "*" => Self::Any,
            (Some(suffix), Wildcard::OneLabel) => Self::OneLabel(suffix.to_owned()),
            (Some(suffix), Wildcard::Labels) => Self::Labels(suffix.to_owned()),
            (None, _) => Self::Exact(text),
        }
    }

    /// The hosts that both patterns mean, as Gateways intersect their listeners with routes; none if there are none.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let within = |name: &str, suffix: &str| {
            name.strip_suffix(suffix).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        };
        match (self, other) {
            (Self::Any, one) | (one, Self::Any) => Some(one.clone()),
            (Self::Exact(name), Self::Exact(other)) => (name == other).then(|| self.clone()),
            (Self::Exact(name), Self::Labels(suffix)) => within(name, suffix).then(|| self.clone()),
            (Self::Labels(suffix), Self::Exact(name)) => within(name, suffix).then(|| other.clone()),
            (Self::Labels(one), Self::Labels(two)) if one == two || within(one, two) => Some(self.clone()),
            (Self::Labels(one), Self::Labels(two)) if within(two, one) => Some(other.clone()),
            _ => None,
        }
    }

    /// Whether every host of the other one is a host of this one, however deep the other's wildcard reaches.
    pub fn contains(&self, other: &Self) -> bool {
        let other = match other {
            Self::OneLabel(suffix) => Self::Labels(suffix.clone()),
            other => other.clone(),
        };
        self.intersection(&other).as_ref() == Some(&other)
    }
}

/// In lower case, without a final dot.
pub fn normalized(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The name in a `Host` header or an authority, without its port; none if it is no name of a host.
pub fn of_authority(authority: &str) -> Option<Cow<'_, str>> {
    let name = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_number);
            let is_address = is_port && address.parse::<std::net::Ipv6Addr>().is_ok();
            return is_address.then(|| Cow::Borrowed(&authority[..address.len() + 2]));
        }
        None => match authority.split_once(':') {
            Some((name, port)) if port.is_empty() || is_number(port) => name,
            Some(_) => return None,
            None => authority,
        },
    };
    let is_name = !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
    let name = name.strip_suffix('.').unwrap_or(name);
    is_name.then(|| match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    })
}

fn is_number(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// Values by the hosts they are for.
#[derive(Clone, Debug)]
pub struct Hosts<T> {
    exact: HashMap<String, T>,
    one_label: HashMap<String, T>,
    labels: HashMap<String, T>,
    any: Option<T>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), one_label: HashMap::new(), labels: HashMap::new(), any: None }
    }
}

impl<T> Hosts<T> {
    /// The values that are for a host, the most specific first.
    pub fn matching<'a, 'h>(&'a self, host: &'h str) -> impl Iterator<Item = &'a T> + use<'a, 'h, T> {
        let suffixes = host.char_indices().filter(|(_, letter)| *letter == '.').map(|(at, _)| &host[at + 1..]);
        let wildcards = suffixes.enumerate().flat_map(|(depth, suffix)| {
            let one_label = self.one_label.get(suffix).filter(|_| depth == 0);
            one_label.into_iter().chain(self.labels.get(suffix))
        });
        self.exact.get(host).into_iter().chain(wildcards).chain(&self.any)
    }

    /// The most specific value for a host.
    pub fn best(&self, host: &str) -> Option<&T> {
        self.matching(host).next()
    }

    pub fn get(&self, pattern: &Pattern) -> Option<&T> {
        match pattern {
            Pattern::Any => self.any.as_ref(),
            Pattern::Exact(name) => self.exact.get(name),
            Pattern::OneLabel(suffix) => self.one_label.get(suffix),
            Pattern::Labels(suffix) => self.labels.get(suffix),
        }
    }

    pub fn insert(&mut self, pattern: Pattern, value: T) {
        match pattern {
            Pattern::Any => self.any = Some(value),
            Pattern::Exact(name) => drop(self.exact.insert(name, value)),
            Pattern::OneLabel(suffix) => drop(self.one_label.insert(suffix, value)),
            Pattern::Labels(suffix) => drop(self.labels.insert(suffix, value)),
        }
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.exact.values().chain(self.one_label.values()).chain(self.labels.values()).chain(&self.any)
    }

    pub fn is_empty(&self) -> bool {
        self.values().next().is_none()
    }
}

impl<T> FromIterator<(Pattern, T)> for Hosts<T> {
    fn from_iter<I: IntoIterator<Item = (Pattern, T)>>(values: I) -> Self {
        let mut hosts = Self::default();
        values.into_iter().for_each(|(pattern, value)| hosts.insert(pattern, value));
        hosts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Pattern {
        Pattern::new(Some(text), Wildcard::Labels)
    }

    #[test]
    fn the_most_specific_host_comes_first() {
        let one = |text| Pattern::new(Some(text), Wildcard::OneLabel);
        let hosts: Hosts<&str> = [
            (one("Foo.example.com."), "exact"),
            (one("*.example.com"), "one"),
            (labels("*.example.com"), "deep"),
            (labels("*.com"), "com"),
            (Pattern::Any, "any"),
        ]
        .into_iter()
        .collect();
        for (host, expected) in [
            ("foo.example.com", "exact one deep com any"),
            ("bar.example.com", "one deep com any"),
            ("a.bar.example.com", "deep com any"),
            ("example.com", "com any"),
            ("example.org", "any"),
            ("", "any"),
        ] {
            let found: Vec<&str> = hosts.matching(host).copied().collect();
            assert_eq!(found.join(" "), expected, "{host}");
        }
    }

    #[test]
    fn listeners_and_routes_meet_in_the_narrower_name() {
        for (one, two, expected) in [
            ("", "", Some("")),
            ("", "a.com", Some("a.com")),
            ("*.a.com", "x.a.com", Some("x.a.com")),
            ("*.a.com", "x.y.a.com", Some("x.y.a.com")),
            ("*.a.com", "a.com", None),
            ("*.a.com", "xa.com", None),
            ("*.a.com", "*.b.a.com", Some("*.b.a.com")),
            ("*.a.com", "*.a.com", Some("*.a.com")),
            ("a.com", "b.com", None),
            ("*.a.com", "*.b.com", None),
        ] {
            let expected = expected.map(labels);
            assert_eq!(labels(one).intersection(&labels(two)), expected, "{one} {two}");
            assert_eq!(labels(two).intersection(&labels(one)), expected, "{two} {one}");
        }
    }

    #[test]
    fn security_an_authority_is_a_name_and_a_port() {
        for (authority, expected) in [
            ("Example.com:8080", Some("example.com")),
            ("example.com.", Some("example.com")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("[2001:db8::1]:80", Some("[2001:db8::1]")),
            ("user@example.com", None),
            ("example.com:http", None),
            ("example.com:80:90", None),
            ("example.com/x", None),
            ("", None),
            ("[::1]x", None),
        ] {
            assert_eq!(of_authority(authority).as_deref(), expected, "{authority}");
        }
    }
}
