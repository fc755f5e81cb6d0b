//! The rules of one host, in the order in which they are tried.
//!
//! Ingress: exact paths before prefixes, longer prefixes before shorter ones. Gateway API: the same, then rules that name a
//! method, then those with more headers, then those with more parameters of the query, then the older route, then the one
//! whose name comes first, then the place in the route. A path is looked up, not searched for: a thousand rules cost as much
//! as one.

use std::collections::HashMap;
use std::sync::Arc;

use api::percent;
use api::sort::CompactSort as _;
use cel::regex::Regex;
use http::{HeaderMap, HeaderName, Method};

use super::Route;

#[derive(Clone)]
pub struct Rule {
    pub path: PathMatch,
    pub method: Option<Method>,
    pub headers: Vec<(HeaderName, TextMatch)>,
    pub query: Vec<(String, TextMatch)>,
    pub rank: Rank,
    pub route: Arc<Route>,
}

/// What decides between rules that ask for the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The backend for what no rule asks for comes last.
    pub is_default: bool,
    /// When the object was made; an object without a time is as old as any.
    pub created: Option<jiff::Timestamp>,
    /// `namespace/name`
    pub name: String,
    /// The place in the object.
    pub place: (usize, usize),
}

#[derive(Clone, Debug)]
pub enum PathMatch {
    Exact(String),
    /// By elements: `/a` means `/a` and `/a/b`, but not `/ab`.
    Prefix(String),
    Regex(Regex),
}

#[derive(Clone, Debug)]
pub enum TextMatch {
    Exact(String),
    Regex(Regex),
}

impl TextMatch {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(expected) => expected == text,
            Self::Regex(regex) => regex.is_match(text),
        }
    }
}

/// A pattern that means the whole text.
pub fn pattern(text: &str) -> Result<Regex, cel::regex::BadPattern> {
    // By itself first: parentheses that do not match must not find partners here.
    cel::regex::compile(text)?;
    cel::regex::compile(&format!("^(?:{text})$"))
}

/// What rules look at.
pub struct Asked<'a> {
    /// Normalized: escapes of letters that need none are resolved.
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub method: &'a Method,
    pub headers: &'a dyn Headers,
}

/// The headers of a request, however they are kept.
pub trait Headers {
    /// The values of a header as one, as a list of them means the same; none if it is not there or not text.
    fn joined(&self, name: &HeaderName) -> Option<String>;
}

impl Headers for HeaderMap {
    fn joined(&self, name: &HeaderName) -> Option<String> {
        let mut values = self.get_all(name).iter();
        let mut text = values.next()?.to_str().ok()?.to_owned();
        for value in values {
            text.push(',');
            text.push_str(value.to_str().ok()?);
        }
        Some(text)
    }
}

/// A route, and how much of the path its prefix takes.
pub struct Found<'a> {
    pub route: &'a Arc<Route>,
    pub matched: usize,
}

#[derive(Default)]
pub struct Rules {
    exact: HashMap<String, Vec<Rule>>,
    regexes: Vec<Rule>,
    /// Without a final slash; the prefix of everything is empty.
    prefixes: HashMap<String, Vec<Rule>>,
    /// How long prefixes are, in order: a client's path may have thousands of elements.
    lengths: Vec<usize>,
}

impl Rules {
    /// What the rules lead to.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        let rules = self.exact.values().chain(self.prefixes.values()).flatten().chain(&self.regexes);
        rules.map(|rule| &rule.route)
    }

    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut this = Self::default();
        for rule in rules {
            match &rule.path {
                PathMatch::Exact(path) => this.exact.entry(path.clone()).or_default().push(rule),
                PathMatch::Regex(_) => this.regexes.push(rule),
                PathMatch::Prefix(path) => {
                    let path = path.trim_end_matches('/').to_owned();
                    this.prefixes.entry(path).or_default().push(rule);
                }
            }
        }
        this.lengths = this.prefixes.keys().map(String::len).collect();
        this.lengths.compact_sort();
        this.lengths.dedup();
        let lists = this.exact.values_mut().chain(this.prefixes.values_mut()).chain([&mut this.regexes]);
        for list in lists {
            list.compact_sort_by(|one, two| {
                let asks = |rule: &Rule| (rule.method.is_some(), rule.headers.len(), rule.query.len());
                asks(two).cmp(&asks(one)).then_with(|| one.rank.cmp(&two.rank))
            });
        }
        this
    }

    pub fn find(&self, asked: &Asked<'_>) -> Option<Found<'_>> {
        if let Some(rule) = first_match(self.exact.get(asked.path), asked) {
            return Some(Found { route: &rule.route, matched: asked.path.len() });
        }
        let matches = |rule: &&Rule| match &rule.path {
            PathMatch::Regex(regex) => regex.is_match(asked.path) && rule.matches(asked),
            _ => false,
        };
        if let Some(rule) = self.regexes.iter().find(matches) {
            return Some(Found { route: &rule.route, matched: 0 });
        }
        self.ends(asked.path).find_map(|end| {
            let rule = first_match(self.prefixes.get(&asked.path[..end]), asked)?;
            Some(Found { route: &rule.route, matched: end })
        })
    }

    /// Where prefixes of a path end that some rule may have: from the whole path, one element less at a time. `/a/` has the prefix `/a`
    /// as well as itself.
    fn ends<'a>(&'a self, path: &'a str) -> impl Iterator<Item = usize> + 'a {
        let ends = std::iter::successors(Some(path.len()), move |end| path[..*end].rfind('/'));
        ends.filter(move |end| self.lengths.binary_search(end).is_ok())
    }
}

fn first_match<'a>(rules: Option<&'a Vec<Rule>>, asked: &Asked<'_>) -> Option<&'a Rule> {
    rules?.iter().find(|rule| rule.matches(asked))
}

impl Rule {
    /// Everything but the path.
    fn matches(&self, asked: &Asked<'_>) -> bool {
        let has_header = |(name, expected): &(HeaderName, TextMatch)| match asked.headers.joined(name) {
            Some(value) => expected.matches(&value),
            None => false,
        };
        let has_parameter = |(name, expected): &(String, TextMatch)| {
            parameter(asked.query.unwrap_or_default(), name).is_some_and(|value| expected.matches(&value))
        };
        self.method.as_ref().is_none_or(|method| method == asked.method)
            && self.headers.iter().all(has_header)
            && self.query.iter().all(has_parameter)
    }
}

/// The first parameter of this name, decoded.
fn parameter(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent::decode(key, true) == name).then(|| percent::decode(value, true).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::super::Action;
    use super::*;

    fn rule(name: &str, path: PathMatch) -> Rule {
        let route = Route {
            name: name.to_owned(),
            filters: Vec::new(),
            action: Action::Refuse(StatusCode::NOT_FOUND),
            timeout: None,
            backend_timeout: None,
            metrics: Default::default(),
        };
        let rank = Rank { name: name.to_owned(), ..Rank::default() };
        Rule { path, method: None, headers: Vec::new(), query: Vec::new(), rank, route: Arc::new(route) }
    }

    fn prefix(path: &str) -> Rule {
        rule(&format!("prefix {path}"), PathMatch::Prefix(path.into()))
    }

    fn exact(path: &str) -> Rule {
        rule(&format!("exact {path}"), PathMatch::Exact(path.into()))
    }

    fn ask(rules: &Rules, target: &str, method: Method, headers: &[(&'static str, &'static str)]) -> Option<String> {
        let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let asked = Asked { path, query, method: &method, headers: &headers };
        rules.find(&asked).map(|found| found.route.name.clone())
    }

    fn get(rules: &Rules, target: &str) -> Option<String> {
        ask(rules, target, Method::GET, &[])
    }

    /// The table of examples in the documentation of Ingress.
    #[test]
    fn paths_match_as_ingress_says() {
        for (rule, path, expected) in [
            (prefix("/"), "/anything", true),
            (prefix("/"), "/", true),
            (exact("/foo"), "/foo", true),
            (exact("/foo"), "/bar", false),
            (exact("/foo"), "/foo/", false),
            (exact("/foo/"), "/foo", false),
            (prefix("/foo"), "/foo", true),
            (prefix("/foo"), "/foo/", true),
            (prefix("/foo/"), "/foo", true),
            (prefix("/foo/"), "/foo/", true),
            (prefix("/aaa/bb"), "/aaa/bbb", false),
            (prefix("/aaa/bbb"), "/aaa/bbb", true),
            (prefix("/aaa/bbb/"), "/aaa/bbb", true),
            (prefix("/aaa/bbb"), "/aaa/bbb/", true),
            (prefix("/aaa/bbb"), "/aaa/bbb/ccc", true),
            (prefix("/aaa/bbb"), "/aaa/bbbxyz", false),
            (prefix("/aaa"), "/ccc", false),
        ] {
            let name = rule.route.name.clone();
            assert_eq!(get(&Rules::new([rule]), path).is_some(), expected, "{name} {path}");
        }
    }

    /// Each look at a prefix reads all of it.
    #[test]
    fn security_paths_of_thousands_of_elements_take_few_looks() {
        let rules = Rules::new([prefix("/"), prefix("/a"), prefix("/b"), prefix("/a/bcd")]);
        let path = "/".repeat(8 << 10);
        assert_eq!(rules.ends(&path).collect::<Vec<_>>(), [6, 2, 0]);
        assert_eq!(get(&rules, &path).as_deref(), Some("prefix /"));
    }

    #[test]
    fn exact_before_prefix_and_longest_first() {
        let regex = rule("regex", PathMatch::Regex(pattern("/a|/a/[0-9]+").unwrap()));
        let rules = Rules::new([prefix("/"), prefix("/a"), prefix("/a/b"), exact("/a/b"), exact("/a/7"), regex]);
        for (path, expected) in [
            ("/x", "prefix /"),
            ("/a", "regex"),
            ("/a/", "prefix /a"),
            ("/a/b", "exact /a/b"),
            ("/a/b/", "prefix /a/b"),
            ("/a/b/c", "prefix /a/b"),
            ("/a/bc", "prefix /a"),
            ("/a/7", "exact /a/7"),
            ("/a/8", "regex"),
            ("/a/8x", "prefix /a"),
        ] {
            assert_eq!(get(&rules, path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(get(&Rules::new([prefix("/a")]), "/b"), None);
    }

    #[test]
    fn method_headers_query_and_age_decide_in_this_order() {
        let named = |name: &str| rule(name, PathMatch::Prefix("/".into()));
        let header = |name: &'static str, value: &str| (HeaderName::from_static(name), TextMatch::Exact(value.into()));
        let query = |name: &str, value: &str| (name.to_owned(), TextMatch::Exact(value.into()));
        let at = |seconds| Some(jiff::Timestamp::from_second(seconds).unwrap());
        let mut method = named("method");
        method.method = Some(Method::POST);
        let mut headers = named("headers");
        headers.headers = vec![header("x", "1"), header("y", "2")];
        let mut one_header = named("one header");
        one_header.headers = vec![header("x", "1")];
        let mut parameter = named("parameter");
        parameter.query = vec![query("q", "a b")];
        let mut old = named("z old");
        old.rank.created = at(1);
        let mut new = named("a new");
        new.rank.created = at(2);
        let mut default = named("default");
        default.rank = Rank { is_default: true, created: at(0), ..default.rank };
        let rules = Rules::new([default, new, old, parameter, one_header, headers, method]);
        let both: &[(&str, &str)] = &[("x", "1"), ("y", "2")];
        for (target, verb, given, expected) in [
            ("/", Method::GET, &[][..], "z old"),
            ("/?q=a+b", Method::GET, &[][..], "parameter"),
            ("/?q=a%20b&q=c", Method::GET, &[][..], "parameter"),
            ("/?q=c&q=a%20b", Method::GET, &[][..], "z old"),
            ("/?q=a+b", Method::GET, &both[..1], "one header"),
            ("/", Method::GET, both, "headers"),
            ("/", Method::POST, both, "method"),
        ] {
            assert_eq!(ask(&rules, target, verb, given).as_deref(), Some(expected), "{target} {given:?}");
        }
    }

    #[test]
    fn security_patterns_match_the_whole_text_or_nothing() {
        let mut strict = rule("strict", PathMatch::Prefix("/".into()));
        let matcher = TextMatch::Regex(pattern("(a|b)+").unwrap());
        strict.headers = vec![(HeaderName::from_static("x"), matcher)];
        let rules = Rules::new([strict]);
        assert!(ask(&rules, "/", Method::GET, &[("x", "abba")]).is_some());
        assert!(ask(&rules, "/", Method::GET, &[("x", "abba!")]).is_none());
        assert!(ask(&rules, "/", Method::GET, &[("x", "abba"), ("x", "c")]).is_none());
        assert!(pattern("a)|(b").is_err());
    }
}
