//! Policy rules: whether one allows a request, and whether some of them cover others.

use api::sort::CompactSort as _;
use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::authz::Attributes;

fn has(list: &Option<Vec<String>>, value: &str) -> bool {
    list.as_ref().is_some_and(|list| list.iter().any(|item| item == "*" || item == value))
}

/// Whether one rule allows one request.
pub fn allows(rule: &PolicyRule, attributes: &Attributes) -> bool {
    let verb = rule.verbs.iter().any(|verb| verb == "*" || verb == attributes.verb.as_str());
    if !verb {
        return false;
    }
    if !attributes.is_resource {
        return rule.non_resource_urls.iter().flatten().any(|url| url_covers(url, &attributes.path));
    }
    has(&rule.api_groups, &attributes.group)
        && resource_matches(rule, &attributes.resource, &attributes.subresource)
        && rule.resource_names.as_ref().is_none_or(|names| names.is_empty() || names.contains(&attributes.name))
}

fn url_covers(owner: &str, path: &str) -> bool {
    owner == "*" || owner == path || owner.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

fn resource_matches(rule: &PolicyRule, resource: &str, subresource: &str) -> bool {
    rule.resources.iter().flatten().any(|pattern| {
        if pattern == "*" {
            return true;
        }
        if subresource.is_empty() {
            return pattern == resource;
        }
        match pattern.split_once('/') {
            Some(("*", sub)) => sub == subresource,
            Some((main, sub)) => main == resource && sub == subresource,
            None => false,
        }
    })
}

/// So many single rights are compared with those that somebody has, and so many words with each other: a few short lists
/// multiply to more than any memory holds.
const MAX_RIGHTS: usize = 10_000;
const MAX_COMPARISONS: usize = 50_000_000;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the rules combine to more rights than are compared with those currently held: use wildcards, or several roles"
)]
pub(crate) struct TooManyRights;

/// What `wanted` grants and `owned` does not, one right per rule: nobody may give what they do not have.
pub(crate) fn missing(owned: &[PolicyRule], wanted: &[PolicyRule]) -> Result<Vec<PolicyRule>, TooManyRights> {
    let words = |rule: &PolicyRule| lists(rule).iter().map(|list| list.len()).sum::<usize>();
    let held: usize = owned.iter().map(|rule| words(rule) + 1).sum();
    let asked: usize = wanted.iter().map(words).sum();
    if asked.saturating_mul(held) > MAX_COMPARISONS {
        return Err(TooManyRights);
    }
    // Whoever has a rule as a whole has all that it combines to.
    let uncertain: Vec<&PolicyRule> =
        wanted.iter().filter(|rule| !owned.iter().any(|owner| grants_whole(owner, rule))).collect();
    let rights = uncertain.iter().fold(0_usize, |sum, rule| sum.saturating_add(combinations(rule)));
    if rights > MAX_RIGHTS || rights.saturating_mul(held) > MAX_COMPARISONS {
        return Err(TooManyRights);
    }
    let singles = uncertain.into_iter().flat_map(breakdown);
    Ok(singles.filter(|single| !owned.iter().any(|rule| grants(rule, single))).collect())
}

/// Verbs, groups, resources, names and URLs.
fn lists(rule: &PolicyRule) -> [&[String]; 5] {
    fn list(values: &Option<Vec<String>>) -> &[String] {
        values.as_deref().unwrap_or_default()
    }
    let PolicyRule { verbs, api_groups, resources, resource_names, non_resource_urls } = rule;
    [verbs, list(api_groups), list(resources), list(resource_names), list(non_resource_urls)]
}

/// How many rules [`breakdown`] makes.
fn combinations(rule: &PolicyRule) -> usize {
    let [verbs, groups, resources, names, urls] = lists(rule).map(<[String]>::len);
    let of_resources = groups.saturating_mul(resources).saturating_mul(names.max(1));
    verbs.saturating_mul(of_resources.saturating_add(urls))
}

/// Whether one rule grants all that another does.
fn grants_whole(owner: &PolicyRule, rule: &PolicyRule) -> bool {
    let [verbs, groups, resources, names, urls] = lists(rule);
    let owned = owner.resource_names.as_deref().unwrap_or_default();
    let has_verb = |verb: &String| owner.verbs.iter().any(|owned| owned == "*" || owned == verb);
    let has_url = |url: &String| owner.non_resource_urls.iter().flatten().any(|owned| url_covers(owned, url));
    verbs.iter().all(has_verb)
        && urls.iter().all(has_url)
        && groups.iter().all(|group| has(&owner.api_groups, group))
        && resources.iter().all(|resource| has_resource(owner, resource))
        && (owned.is_empty() || !names.is_empty() && names.iter().all(|name| !name.is_empty() && owned.contains(name)))
}

fn has_resource(owner: &PolicyRule, resource: &str) -> bool {
    let all_of_sub = resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
    has(&owner.resources, resource) || all_of_sub.is_some_and(|pattern| has(&owner.resources, &pattern))
}

/// Splits a rule into rules with one verb, group, resource and name each.
fn breakdown(rule: &PolicyRule) -> Vec<PolicyRule> {
    let mut singles = Vec::new();
    let list = |values: &Option<Vec<String>>| values.clone().unwrap_or_default();
    for verb in &rule.verbs {
        for url in list(&rule.non_resource_urls) {
            let urls = Some(vec![url]);
            singles.push(PolicyRule { verbs: vec![verb.clone()], non_resource_urls: urls, ..Default::default() });
        }
        for group in list(&rule.api_groups) {
            for resource in list(&rule.resources) {
                let base = PolicyRule {
                    verbs: vec![verb.clone()],
                    api_groups: Some(vec![group.clone()]),
                    resources: Some(vec![resource]),
                    ..Default::default()
                };
                let names = list(&rule.resource_names);
                if names.is_empty() {
                    singles.push(base);
                } else {
                    let named = |name| PolicyRule { resource_names: Some(vec![name]), ..base.clone() };
                    singles.extend(names.into_iter().map(named));
                }
            }
        }
    }
    singles
}

fn grants(owner: &PolicyRule, single: &PolicyRule) -> bool {
    let verb = single.verbs.first().map(String::as_str).unwrap_or_default();
    if !owner.verbs.iter().any(|owned| owned == "*" || owned == verb) {
        return false;
    }
    let first = |list: &Option<Vec<String>>| list.as_ref().and_then(|list| list.first().cloned()).unwrap_or_default();
    if single.non_resource_urls.is_some() {
        let url = first(&single.non_resource_urls);
        return owner.non_resource_urls.iter().flatten().any(|owned| url_covers(owned, &url));
    }
    let name = first(&single.resource_names);
    has(&owner.api_groups, &first(&single.api_groups))
        && has_resource(owner, &first(&single.resources))
        && owner
            .resource_names
            .as_ref()
            .is_none_or(|owned| owned.is_empty() || (!name.is_empty() && owned.contains(&name)))
}

/// The rules as a refusal names them: verbs on the same resource together, sorted.
pub(crate) fn describe(singles: &[PolicyRule]) -> Vec<String> {
    let mut merged: Vec<PolicyRule> = Vec::new();
    for single in singles {
        let is_plain = |rule: &PolicyRule| rule.resource_names.is_none() && rule.non_resource_urls.is_none();
        let same = merged.iter_mut().find(|rule| {
            is_plain(rule)
                && is_plain(single)
                && rule.api_groups == single.api_groups
                && rule.resources == single.resources
        });
        match same {
            Some(rule) => rule.verbs.extend(single.verbs.iter().cloned()),
            None => merged.push(single.clone()),
        }
    }
    let mut texts: Vec<String> = merged
        .iter()
        .map(|rule| {
            let parts = [
                ("APIGroups", rule.api_groups.as_deref()),
                ("Resources", rule.resources.as_deref()),
                ("NonResourceURLs", rule.non_resource_urls.as_deref()),
                ("ResourceNames", rule.resource_names.as_deref()),
                ("Verbs", Some(rule.verbs.as_slice())),
            ];
            let parts = parts.iter().filter_map(|(name, list)| Some(format!("{name}:{}", quoted((*list)?))));
            format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
        })
        .collect();
    texts.compact_sort();
    texts.dedup();
    texts
}

/// A list as Go prints it with `%q`.
pub(crate) fn quoted(list: &[String]) -> String {
    let items: Vec<String> = list.iter().map(|item| api::field::quote(item)).collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> PolicyRule {
        let list = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        PolicyRule {
            verbs: list(verbs),
            api_groups: Some(list(groups)),
            resources: Some(list(resources)),
            ..Default::default()
        }
    }

    fn named(rule: PolicyRule, name: &str) -> PolicyRule {
        PolicyRule { resource_names: Some(vec![name.to_owned()]), ..rule }
    }

    fn urls(verb: &str, url: &str) -> PolicyRule {
        PolicyRule { verbs: vec![verb.to_owned()], non_resource_urls: Some(vec![url.to_owned()]), ..Default::default() }
    }

    fn request(verb: &str, group: &str, resource: &str, subresource: &str, name: &str) -> Attributes {
        Attributes {
            is_resource: true,
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            name: name.into(),
            ..Default::default()
        }
    }

    fn path(verb: &str, path: &str) -> Attributes {
        Attributes { verb: verb.into(), path: path.into(), ..Default::default() }
    }

    #[test]
    fn rules_match_requests() {
        let pods = || rule(&["get"], &[""], &["pods"]);
        for (rule, request, allowed) in [
            (pods(), request("get", "", "pods", "", "p"), true),
            (pods(), request("list", "", "pods", "", ""), false),
            (pods(), request("get", "", "pods", "log", "p"), false),
            (rule(&["get"], &[""], &["pods/log"]), request("get", "", "pods", "log", "p"), true),
            (rule(&["*"], &["*"], &["*/scale"]), request("update", "apps", "deployments", "scale", "d"), true),
            (rule(&["*"], &["*"], &["*"]), request("update", "apps", "deployments", "scale", "d"), true),
            (rule(&["get"], &["apps"], &["pods"]), request("get", "", "pods", "", "p"), false),
            (named(pods(), "p"), request("get", "", "pods", "", "p"), true),
            (named(pods(), "p"), request("get", "", "pods", "", "q"), false),
            (named(pods(), "p"), request("get", "", "pods", "", ""), false),
            (pods(), path("get", "/pods"), false),
            (urls("get", "/healthz"), path("get", "/healthz"), true),
            (urls("get", "/healthz"), path("get", "/healthz/etcd"), false),
            (urls("get", "/healthz/*"), path("get", "/healthz/etcd"), true),
            (urls("get", "*"), path("get", "/metrics"), true),
            (urls("get", "*"), request("get", "", "pods", "", "p"), false),
        ] {
            assert_eq!(allows(&rule, &request), allowed, "{rule:?} {request:?}");
        }
    }

    #[test]
    fn nobody_gives_what_they_do_not_have() {
        let owned = [
            rule(&["get", "list"], &[""], &["pods", "services", "*/status"]),
            named(rule(&["get"], &[""], &["secrets"]), "mine"),
            urls("get", "/logs/*"),
        ];
        for (wanted, covered) in [
            (rule(&["get"], &[""], &["pods"]), true),
            (rule(&["get", "list"], &[""], &["pods", "services"]), true),
            (rule(&["get"], &[""], &["pods/status"]), true),
            (rule(&["get"], &[""], &["pods/exec"]), false),
            (rule(&["*"], &[""], &["pods"]), false),
            (rule(&["get"], &["*"], &["pods"]), false),
            (rule(&["get"], &[""], &["*"]), false),
            (rule(&["get"], &[""], &["secrets"]), false),
            (named(rule(&["get"], &[""], &["secrets"]), "mine"), true),
            (named(rule(&["get"], &[""], &["secrets"]), "yours"), false),
            (urls("get", "/logs/a"), true),
            (urls("get", "/*"), false),
            (urls("post", "/logs/a"), false),
        ] {
            let left = missing(&owned, std::slice::from_ref(&wanted)).unwrap();
            assert_eq!(left.is_empty(), covered, "{wanted:?}");
        }
    }

    #[test]
    fn security_a_few_lists_do_not_multiply_to_billions() {
        let many: Vec<String> = (0..1000).map(|number| format!("x{number}")).collect();
        let vast = || PolicyRule {
            verbs: many.clone(),
            api_groups: Some(many.clone()),
            resources: Some(many.clone()),
            resource_names: Some(many.clone()),
            ..Default::default()
        };
        assert_eq!(missing(&[], &[vast()]), Err(TooManyRights));
        assert_eq!(missing(&[rule(&["get"], &[""], &["pods"])], &[vast()]), Err(TooManyRights));
        // Who has them all needs no count, and neither does who asks for little.
        assert_eq!(missing(&[rule(&["*"], &["*"], &["*"])], &[vast()]), Ok(Vec::new()));
        assert_eq!(missing(&[vast()], &[vast()]), Ok(Vec::new()));
        assert_eq!(missing(&[vast()], &[named(rule(&["x1"], &["x2"], &["x3"]), "x4")]), Ok(Vec::new()));
        let long: Vec<String> = (0..100_000).map(|number| format!("x{number}")).collect();
        let long = PolicyRule { resource_names: Some(long), ..rule(&["get"], &[""], &["pods"]) };
        assert_eq!(missing(std::slice::from_ref(&long), std::slice::from_ref(&long)), Err(TooManyRights));
    }

    #[test]
    fn refusals_name_what_is_missing() {
        let left = missing(&[], &[rule(&["get", "list"], &["", "apps"], &["x"]), urls("get", "/y")]).unwrap();
        let expected = [
            r#"{APIGroups:[""], Resources:["x"], Verbs:["get" "list"]}"#.to_owned(),
            r#"{APIGroups:["apps"], Resources:["x"], Verbs:["get" "list"]}"#.to_owned(),
            r#"{NonResourceURLs:["/y"], Verbs:["get"]}"#.to_owned(),
        ];
        assert_eq!(describe(&left), expected);
    }
}
