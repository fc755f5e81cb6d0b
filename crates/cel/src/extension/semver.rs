//! Semantic versions.

use std::cmp::Ordering;

#[derive(Debug)]
pub struct Semver {
    pub(crate) numbers: [u64; 3],
    /// Parts of what is before the release.
    pre: Vec<String>,
}

impl Semver {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
        let (numbers, pre) = rest.split_once('-').map_or((rest, None), |(rest, pre)| (rest, Some(pre)));
        let parts: Vec<&str> = numbers.split('.').collect();
        let [major, minor, patch] = parts.as_slice() else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let number = |part: &str| {
            if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(format!("Invalid character(s) found in number {part:?}"));
            }
            if part.len() > 1 && part.starts_with('0') {
                return Err(format!("Version number must not contain leading zeroes {part:?}"));
            }
            part.parse::<u64>().map_err(|error| error.to_string())
        };
        let fits =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let pre: Vec<String> = pre.iter().flat_map(|pre| pre.split('.')).map(str::to_owned).collect();
        let mut parts = pre.iter().map(String::as_str).chain(build.iter().flat_map(|build| build.split('.')));
        if let Some(wrong) = parts.find(|part| !fits(part)) {
            return Err(format!("Invalid character(s) found in prerelease {wrong:?}"));
        }
        Ok(Self { numbers: [number(major)?, number(minor)?, number(patch)?], pre })
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        let before = |one: &String, other: &String| match (one.parse::<u64>(), other.parse::<u64>()) {
            (Ok(one), Ok(other)) => one.cmp(&other),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            _ => one.cmp(other),
        };
        self.numbers.cmp(&other.numbers).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => {
                let pairs = self.pre.iter().zip(&other.pre);
                let first = pairs.map(|(one, other)| before(one, other)).find(|order| order.is_ne());
                first.unwrap_or_else(|| self.pre.len().cmp(&other.pre.len()))
            }
        })
    }
}
