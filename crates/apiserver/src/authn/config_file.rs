//! `--authentication-config`: issuers of JSON web tokens, what their claims mean, and where nobody need say who they are.
//!
//! A file is checked as a whole, and said to be wrong in upstream's words. Expressions see `claims`, or the `user` that was
//! made of them; what they return is checked when they run, because nobody knows the claims before.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use anyhow::Context;
use api::UserInfo;
use api::field::FieldErrors;
use api::sort::{CompactCollect as _, CompactSort as _};
use cel::{Budget, Env, PER_CALL_LIMIT, Program, Type};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::OidcError;
use super::oidc;
use jwt::Token;
use registry::admissionregistration::environment::structure;

const MAX_ISSUERS: usize = 64;
const BOTH: &str = "claim and expression can't both be set";
const EITHER: &str = "claim or expression is required";
const NO_PREFIX: &str = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
const EMAIL: &str = "claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression";

/// Who is let in without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Anonymous {
    Nobody,
    Anyone,
    /// Those who ask for one of these paths.
    At(Vec<String>),
}

impl Anonymous {
    pub(super) fn allows(&self, path: &str) -> bool {
        match self {
            Anonymous::Nobody => false,
            Anonymous::Anyone => true,
            Anonymous::At(paths) => paths.iter().any(|allowed| allowed == path),
        }
    }
}

/// What a file says.
pub(super) struct Configuration {
    pub(super) issuers: Vec<Issuer>,
    /// Unless it leaves that to the flag.
    pub(super) anonymous: Option<Anonymous>,
}

pub(super) struct Issuer {
    pub(super) url: String,
    pub(super) discovery_url: Option<String>,
    /// Authorities for its certificate, in PEM; the system's if `None`.
    pub(super) authority: Option<String>,
    pub(super) rules: Rules,
}

/// What tokens of an issuer must say, and who that is.
pub(super) struct Rules {
    audiences: Vec<String>,
    required_claims: Vec<(String, String)>,
    claim_rules: Vec<(Program, String)>,
    username: Source,
    groups: Option<Source>,
    uid: Option<Source>,
    extra: Vec<(String, Program)>,
    user_rules: Vec<(Program, String)>,
}

/// Where a part of a user comes from.
enum Source {
    Claim { claim: String, prefix: String },
    Expression(Program),
}

impl Rules {
    /// Who a token of the issuer speaks for; its signature is good.
    pub(super) fn user(&self, token: &Token<'_>, now: i64) -> Result<UserInfo, OidcError> {
        let found = token.audiences();
        if !self.audiences.iter().any(|audience| found.contains(&audience.as_str())) {
            return Err(OidcError::audience_in(&self.audiences, token));
        }
        oidc::check_times(token, now)?;
        oidc::check_required(&self.required_claims, &token.claims)?;
        let claims = cel::Value::from_json(&token.claims);
        let see = |name: &str| (name == "claims").then(|| claims.clone());
        hold(&self.claim_rules, &see, "claim validation")?;
        let mut user = UserInfo { name: self.username(&token.claims, &see)?, ..UserInfo::default() };
        user.groups = match &self.groups {
            None => Vec::new(),
            Some(Source::Claim { claim, prefix }) => oidc::groups(&token.claims, claim, prefix)?,
            Some(Source::Expression(program)) => texts(run(program, &see, "groups")?, "groups")?,
        };
        user.uid = match &self.uid {
            None => String::new(),
            Some(Source::Claim { claim, .. }) => text(&token.claims[claim.as_str()], "uid")?,
            Some(Source::Expression(program)) => text(&run(program, &see, "uid")?, "uid")?,
        };
        for (key, program) in &self.extra {
            let values = texts(run(program, &see, "extra")?, key)?;
            if !values.is_empty() {
                user.extra.insert(key.clone(), values);
            }
        }
        if let Some(id) = oidc::credential_id(&token.claims) {
            user.extra.insert(id.0, id.1);
        }
        let extra: BTreeMap<&String, &Vec<String>> = user.extra.iter().compact_collect();
        let made = json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": extra});
        let made = cel::Value::from_json(&made);
        hold(&self.user_rules, &|name: &str| (name == "user").then(|| made.clone()), "user validation")?;
        Ok(user)
    }

    fn username(&self, claims: &Value, see: &dyn cel::Activation) -> Result<String, OidcError> {
        match &self.username {
            Source::Claim { claim, prefix } => Ok(format!("{prefix}{}", oidc::username(claims, claim)?)),
            Source::Expression(program) => {
                let name = text(&run(program, see, "username")?, "username")?;
                // As with the claim, whatever the expression looks at.
                if name.is_empty() {
                    return Err(OidcError::EmptyUsername);
                }
                Ok(name)
            }
        }
    }
}

fn run(program: &Program, see: &dyn cel::Activation, what: &'static str) -> Result<Value, OidcError> {
    let result = program.run(see, &mut Budget::new(PER_CALL_LIMIT));
    let value = result.and_then(|value| value.to_json());
    value.map_err(|source| OidcError::Evaluation { what, source })
}

fn hold(rules: &[(Program, String)], see: &dyn cel::Activation, what: &'static str) -> Result<(), OidcError> {
    for (program, message) in rules {
        if run(program, see, what)? != Value::Bool(true) {
            let why = if message.is_empty() { format!("{:?} is not true", program.source()) } else { message.clone() };
            return Err(OidcError::Rule { what, why });
        }
    }
    Ok(())
}

fn text(value: &Value, what: &str) -> Result<String, OidcError> {
    value.as_str().map(str::to_owned).ok_or_else(|| OidcError::NotText(what.to_owned()))
}

/// One text or several; nothing and empty ones are left out.
fn texts(value: Value, what: &str) -> Result<Vec<String>, OidcError> {
    let all = match value {
        Value::Null => Vec::new(),
        Value::Array(all) => all,
        one => vec![one],
    };
    let all = all.iter().map(|one| text(one, what)).collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().filter(|one| !one.is_empty()).collect())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    jwt: Vec<Jwt>,
    anonymous: Option<AnonymousFields>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnonymousFields {
    #[serde(default)]
    enabled: bool,
    #[serde(default)]
    conditions: Vec<AnonymousCondition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnonymousCondition {
    #[serde(default)]
    path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Jwt {
    issuer: IssuerFields,
    #[serde(default)]
    claim_validation_rules: Vec<ClaimRule>,
    #[serde(default)]
    claim_mappings: Mappings,
    #[serde(default)]
    user_validation_rules: Vec<UserRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IssuerFields {
    #[serde(default)]
    url: String,
    #[serde(rename = "discoveryURL")]
    discovery_url: Option<String>,
    #[serde(default)]
    certificate_authority: String,
    #[serde(default)]
    audiences: Vec<String>,
    #[serde(default)]
    audience_match_policy: String,
    #[serde(default)]
    egress_selector_type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClaimRule {
    #[serde(default)]
    claim: String,
    #[serde(default)]
    required_value: String,
    #[serde(default)]
    expression: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserRule {
    #[serde(default)]
    expression: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Mappings {
    #[serde(default)]
    username: Mapping,
    #[serde(default)]
    groups: Mapping,
    #[serde(default)]
    uid: Mapping,
    #[serde(default)]
    extra: Vec<Extra>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Mapping {
    #[serde(default)]
    claim: String,
    prefix: Option<String>,
    #[serde(default)]
    expression: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Extra {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value_expression: String,
}

/// Reads a file. Tokens of `disallowed` issuers are for other authenticators.
pub(super) fn parse(bytes: &[u8], disallowed: &[String]) -> anyhow::Result<Configuration> {
    let file: File = serde_json::from_value(api::codec::from_yaml(bytes)?.value)?;
    let versions = ["v1", "v1beta1", "v1alpha1"].map(|version| format!("apiserver.config.k8s.io/{version}"));
    anyhow::ensure!(
        file.kind == "AuthenticationConfiguration" && versions.contains(&file.api_version),
        "not an AuthenticationConfiguration of apiserver.config.k8s.io"
    );
    let mut errors = FieldErrors::default();
    if file.jwt.len() > MAX_ISSUERS {
        errors.too_many("jwt", file.jwt.len(), MAX_ISSUERS);
    }
    let (mut urls, mut discoveries) = (HashSet::new(), HashSet::new());
    let mut issuers = Vec::new();
    for (index, jwt) in file.jwt.into_iter().enumerate() {
        let path = format!("jwt[{index}]");
        check_issuer(&jwt.issuer, &format!("{path}.issuer"), disallowed, &mut errors);
        if !urls.insert(jwt.issuer.url.clone()) {
            errors.duplicate(format!("{path}.issuer.url"), &jwt.issuer.url);
        }
        if let Some(discovery) = jwt.issuer.discovery_url.as_ref().filter(|url| !discoveries.insert((*url).clone())) {
            errors.duplicate(format!("{path}.issuer.discoveryURL"), discovery);
        }
        issuers.extend(issuer(jwt, &path, &mut errors));
    }
    let anonymous = file.anonymous.map(|fields| anonymous(fields, &mut errors));
    anyhow::ensure!(errors.is_empty(), "{errors}");
    Ok(Configuration { issuers, anonymous })
}

fn anonymous(fields: AnonymousFields, errors: &mut FieldErrors) -> Anonymous {
    let paths: Vec<String> = fields.conditions.into_iter().map(|condition| condition.path).collect();
    match (fields.enabled, paths.is_empty()) {
        (true, true) => Anonymous::Anyone,
        (true, false) => Anonymous::At(paths),
        (false, true) => Anonymous::Nobody,
        (false, false) => {
            errors.invalid(
                "anonymous.conditions",
                paths.join(","),
                "enabled should be set to true when conditions are defined",
            );
            Anonymous::Nobody
        }
    }
}

fn check_issuer(issuer: &IssuerFields, path: &str, disallowed: &[String], errors: &mut FieldErrors) {
    check_url(&issuer.url, &format!("{path}.url"), errors);
    if disallowed.contains(&issuer.url) {
        let mut listed = disallowed.to_vec();
        listed.compact_sort();
        let why = format!("URL must not overlap with disallowed issuers: [{}]", listed.join(" "));
        errors.invalid(format!("{path}.url"), &issuer.url, why);
    }
    if let Some(discovery) = &issuer.discovery_url {
        let at = format!("{path}.discoveryURL");
        if discovery.trim_end_matches('/') == issuer.url.trim_end_matches('/') {
            errors.invalid(at, discovery, "discoveryURL must be different from URL");
        } else {
            check_url(discovery, &at, errors);
        }
    }
    let at = format!("{path}.audiences");
    if issuer.audiences.is_empty() {
        errors.required(&at, "at least one jwt audience is required");
    }
    for (index, audience) in issuer.audiences.iter().enumerate() {
        if audience.is_empty() {
            errors.required(format!("{at}[{index}]"), "audience can't be empty");
        } else if issuer.audiences[..index].contains(audience) {
            errors.duplicate(format!("{at}[{index}]"), audience);
        }
    }
    let (at, policy) = (format!("{path}.audienceMatchPolicy"), issuer.audience_match_policy.as_str());
    if issuer.audiences.len() > 1 && policy != "MatchAny" {
        errors.invalid(at, policy, "audienceMatchPolicy must be MatchAny for multiple audiences");
    } else if issuer.audiences.len() == 1 && !["", "MatchAny"].contains(&policy) {
        errors.invalid(at, policy, "audienceMatchPolicy must be empty or MatchAny for single audience");
    }
    if !issuer.certificate_authority.is_empty() {
        let found = tls::certificates(issuer.certificate_authority.as_bytes());
        if found.as_ref().map_or(true, Vec::is_empty) {
            errors.invalid(
                format!("{path}.certificateAuthority"),
                "<omitted>",
                "data does not contain any valid RSA or ECDSA certificates",
            );
        }
    }
    if !issuer.egress_selector_type.is_empty() {
        let (at, given) = (format!("{path}.egressSelectorType"), &issuer.egress_selector_type);
        errors.invalid(at, given, "connections are made directly: there is no egress selector");
    }
}

fn check_url(url: &str, path: &str, errors: &mut FieldErrors) {
    if url.is_empty() {
        return errors.required(path, "URL is required");
    }
    let parsed: Result<http::Uri, _> = url.split('#').next().unwrap_or_default().parse();
    let Ok(parsed) = parsed else {
        return errors.invalid(path, url, "URL is not valid");
    };
    let has_user = parsed.authority().is_some_and(|authority| authority.as_str().contains('@'));
    for (is_wrong, why) in [
        (parsed.scheme_str() != Some("https"), "URL scheme must be https"),
        (has_user, "URL must not contain a username or password"),
        (parsed.query().is_some(), "URL must not contain a query"),
        (url.contains('#'), "URL must not contain a fragment"),
    ] {
        if is_wrong {
            errors.invalid(path, url, why);
        }
    }
}

fn issuer(jwt: Jwt, path: &str, errors: &mut FieldErrors) -> Option<Issuer> {
    let mappings = &jwt.claim_mappings;
    let mut required_claims: Vec<(String, String)> = Vec::new();
    let mut claim_rules = Vec::new();
    let mut seen = HashSet::new();
    for (index, rule) in jwt.claim_validation_rules.iter().enumerate() {
        let at = format!("{path}.claimValidationRules[{index}]");
        match (rule.claim.is_empty(), rule.expression.is_empty()) {
            (true, true) => errors.required(at, EITHER),
            (false, false) => errors.invalid(at, &rule.claim, BOTH),
            (false, true) => {
                if !rule.message.is_empty() {
                    errors.invalid(format!("{at}.message"), &rule.message, "message can't be set when claim is set");
                }
                if required_claims.iter().any(|(claim, _)| *claim == rule.claim) {
                    errors.duplicate(format!("{at}.claim"), &rule.claim);
                }
                required_claims.push((rule.claim.clone(), rule.required_value.clone()));
            }
            (true, false) => {
                if !rule.required_value.is_empty() {
                    let why = "requiredValue can't be set when expression is set";
                    errors.invalid(format!("{at}.requiredValue"), &rule.required_value, why);
                }
                let at = format!("{at}.expression");
                if !seen.insert(rule.expression.as_str()) {
                    errors.duplicate(&at, &rule.expression);
                }
                let program = compile(&CLAIMS, &rule.expression, &at, true, errors);
                claim_rules.extend(program.map(|program| (program, rule.message.clone())));
            }
        }
    }
    let at = format!("{path}.claimMappings");
    let username = source(&mappings.username, &format!("{at}.username"), true, errors);
    if mappings.username.claim.is_empty() && mappings.username.expression.is_empty() {
        errors.required(format!("{at}.username"), EITHER);
    }
    check_email(&jwt, &format!("{at}.username.expression"), errors);
    let groups = source(&mappings.groups, &format!("{at}.groups"), true, errors);
    let uid = source(&mappings.uid, &format!("{at}.uid"), false, errors);
    let mut extra: Vec<(String, Program)> = Vec::new();
    let mut keys = HashSet::new();
    for (index, entry) in mappings.extra.iter().enumerate() {
        let at = format!("{at}.extra[{index}]");
        check_key(&entry.key, &format!("{at}.key"), errors);
        if !entry.key.is_empty() && !keys.insert(entry.key.as_str()) {
            errors.duplicate(format!("{at}.key"), &entry.key);
        }
        let at = format!("{at}.valueExpression");
        if entry.value_expression.is_empty() {
            errors.required(at, "valueExpression is required");
            continue;
        }
        let program = compile(&CLAIMS, &entry.value_expression, &at, false, errors);
        extra.extend(program.map(|program| (entry.key.clone(), program)));
    }
    let mut user_rules = Vec::new();
    let mut seen = HashSet::new();
    for (index, rule) in jwt.user_validation_rules.iter().enumerate() {
        let at = format!("{path}.userValidationRules[{index}].expression");
        if rule.expression.is_empty() {
            errors.required(at, "expression is required");
            continue;
        }
        if !seen.insert(rule.expression.as_str()) {
            errors.duplicate(&at, &rule.expression);
        }
        let program = compile(&USER, &rule.expression, &at, true, errors);
        user_rules.extend(program.map(|program| (program, rule.message.clone())));
    }
    let authority = Some(jwt.issuer.certificate_authority).filter(|text| !text.is_empty());
    let rules = Rules {
        audiences: jwt.issuer.audiences,
        required_claims,
        claim_rules,
        username: username?,
        groups,
        uid,
        extra,
        user_rules,
    };
    Some(Issuer { url: jwt.issuer.url, discovery_url: jwt.issuer.discovery_url, authority, rules })
}

fn source(mapping: &Mapping, path: &str, has_prefix: bool, errors: &mut FieldErrors) -> Option<Source> {
    match (mapping.claim.is_empty(), mapping.expression.is_empty()) {
        (true, true) => {
            if let Some(prefix) = mapping.prefix.as_ref().filter(|prefix| !prefix.is_empty()) {
                errors.invalid(format!("{path}.prefix"), prefix, "non-empty prefix can't be set when claim is unset");
            }
            None
        }
        (false, false) => {
            errors.invalid(path, "", BOTH);
            None
        }
        (false, true) => {
            if has_prefix && mapping.prefix.is_none() {
                errors.required(format!("{path}.prefix"), NO_PREFIX);
            }
            let prefix = mapping.prefix.clone().unwrap_or_default();
            Some(Source::Claim { claim: mapping.claim.clone(), prefix })
        }
        (true, false) => {
            if let Some(prefix) = &mapping.prefix {
                errors.invalid(format!("{path}.prefix"), prefix, "prefix can't be set when expression is set");
            }
            let at = format!("{path}.expression");
            compile(&CLAIMS, &mapping.expression, &at, false, errors).map(Source::Expression)
        }
    }
}

/// An address that the issuer did not check proves nothing.
fn check_email(jwt: &Jwt, path: &str, errors: &mut FieldErrors) {
    let name = &jwt.claim_mappings.username.expression;
    let asks = |expression: &str, claim: &str| {
        let mentions = |(at, _): (usize, &str)| {
            !expression[at + claim.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
        };
        expression.match_indices(claim).any(mentions)
    };
    let rules = jwt.claim_validation_rules.iter().map(|rule| &rule.expression);
    let extra = jwt.claim_mappings.extra.iter().map(|extra| &extra.value_expression);
    let mut all = rules.chain(extra).chain([name]);
    let is_email = asks(name, "claims.email") || asks(name, "claims['email']") || asks(name, "claims[\"email\"]");
    if is_email && !all.any(|expression| expression.contains("email_verified")) {
        errors.invalid(path, name, EMAIL);
    }
}

fn check_key(key: &str, path: &str, errors: &mut FieldErrors) {
    if key.is_empty() {
        return errors.required(path, "key is required");
    }
    let domain = key.split_once('/').filter(|(_, rest)| !rest.is_empty()).map(|(domain, _)| domain);
    match domain {
        Some(domain) if api::validation::is_dns1123_subdomain(domain) => {
            let is_of = |owner: &str| domain == owner || domain.ends_with(&format!(".{owner}"));
            if is_of("k8s.io") || is_of("kubernetes.io") {
                errors.invalid(path, key, "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use");
            }
        }
        _ => errors.invalid(path, key, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
    if key.chars().any(char::is_uppercase) {
        errors.invalid(path, key, "key must be lowercase");
    }
}

fn compile(env: &Env, text: &str, path: &str, is_rule: bool, errors: &mut FieldErrors) -> Option<Program> {
    let compiled = match is_rule {
        true => env.compile_as(text, &[Type::Bool]).map_err(|error| error.to_string()),
        false => env.compile(text).map_err(|error| format!("compilation failed: {error}")),
    };
    compiled.map_err(|why| errors.invalid(path, text, why)).ok()
}

static CLAIMS: LazyLock<Env> = LazyLock::new(|| Env::default().with("claims", Type::map(Type::String, Type::Dyn)));

static USER: LazyLock<Env> = LazyLock::new(|| {
    let texts = || Type::list(Type::String);
    let user = structure(
        "kubernetes.UserInfo",
        &[
            ("username", Type::String),
            ("uid", Type::String),
            ("groups", texts()),
            ("extra", Type::map(Type::String, texts())),
        ],
    );
    Env::default().with("user", user)
});

/// The configuration in a file.
pub(super) fn load(path: &std::path::Path, disallowed: &[String]) -> anyhow::Result<Configuration> {
    let named = || format!("authentication configuration {}", path.display());
    parse(&std::fs::read(path).with_context(named)?, disallowed).with_context(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "issuer: {url: 'https://i', audiences: [c]}";

    fn configuration(text: &str) -> Result<Configuration, String> {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";
        parse(format!("{head}{text}").as_bytes(), &["https://own".to_owned()]).map_err(|error| error.to_string())
    }

    fn user(jwt: &str, claims: Value) -> Result<UserInfo, String> {
        let configuration = configuration(&format!("jwt: [{{{ISSUER}, {jwt}}}]"))?;
        let mut claims = claims;
        claims["aud"] = "c".into();
        claims["exp"] = 100.into();
        let text = format!("{}.AAAA", jwt::signing_input("ES256", "k", &claims));
        configuration.issuers[0].rules.user(&Token::parse(&text).unwrap(), 100).map_err(|error| error.to_string())
    }

    #[test]
    fn claims_become_users_by_expressions() {
        let by_name = "claimMappings: {username: {expression: \"'x:' + claims.name\"}";
        for (jwt, claims, expected) in [
            (format!("{by_name}}}"), json!({"name": "ann"}), Some(json!(["x:ann", "", [], {}]))),
            (format!("{by_name}}}"), json!({"other": "ann"}), None),
            ("claimMappings: {username: {expression: claims.name}}".into(), json!({"name": ""}), None),
            ("claimMappings: {username: {expression: claims.name}}".into(), json!({"name": ["ann"]}), None),
            (
                "claimMappings: {username: {claim: sub, prefix: 'p:'}}".into(),
                json!({"sub": "a"}),
                Some(json!(["p:a", "", [], {}])),
            ),
            (
                format!(
                    "{by_name}, groups: {{expression: \"claims.roles.map(r, 'r:' + r)\"}}, uid: {{claim: id}}, \
                         extra: [{{key: e.org/t, valueExpression: claims.?tenant.orValue('')}}]}}"
                ),
                json!({"name": "n", "roles": ["a", "b"], "id": "7", "tenant": "t"}),
                Some(json!(["x:n", "7", ["r:a", "r:b"], {"e.org/t": ["t"]}])),
            ),
            (
                format!(
                    "{by_name}, groups: {{expression: claims.role}}, extra: [{{key: e.org/t, valueExpression: claims.?t.orValue('')}}]}}"
                ),
                json!({"name": "n", "role": "one"}),
                Some(json!(["x:n", "", ["one"], {}])),
            ),
            (format!("{by_name}, groups: {{expression: claims.role}}}}"), json!({"name": "n", "role": [1]}), None),
            (
                format!("{by_name}}}, claimValidationRules: [{{claim: hd, requiredValue: e.org}}]"),
                json!({"name": "n"}),
                None,
            ),
            (
                format!("{by_name}}}, claimValidationRules: [{{expression: \"claims.hd == 'e'\"}}]"),
                json!({"name": "n", "hd": "f"}),
                None,
            ),
            (
                format!("{by_name}}}, claimValidationRules: [{{expression: \"claims.hd == 'e'\"}}]"),
                json!({"name": "n", "hd": "e"}),
                Some(json!(["x:n", "", [], {}])),
            ),
            (
                format!(
                    "{by_name}}}, userValidationRules: [{{expression: \"!user.username.startsWith('x:system:')\"}}]"
                ),
                json!({"name": "system:admin"}),
                None,
            ),
        ] {
            let found = user(&jwt, claims.clone());
            let shown = found.as_ref().ok().map(|user| json!([user.name, user.uid, user.groups, user.extra]));
            assert_eq!(shown, expected, "{jwt} {claims} {:?}", found.err());
        }
    }

    #[test]
    fn mistakes_get_the_words_of_upstream() {
        let name = "claimMappings: {username: {claim: sub, prefix: ''}}";
        let jwt = |issuer: &str, rest: &str| format!("jwt: [{{issuer: {{{issuer}}}, {rest}}}]");
        let good = "url: 'https://i', audiences: [c]";
        for (text, expected) in [
            (
                jwt("url: 'http://i', audiences: [c]", name),
                "jwt[0].issuer.url: Invalid value: \"http://i\": URL scheme must be https",
            ),
            (jwt("audiences: [c]", name), "jwt[0].issuer.url: Required value: URL is required"),
            (
                jwt("url: 'https://own', audiences: [c]", name),
                "URL must not overlap with disallowed issuers: [https://own]",
            ),
            (jwt("url: 'https://u:p@i', audiences: [c]", name), "URL must not contain a username or password"),
            (jwt("url: 'https://i?q=1', audiences: [c]", name), "URL must not contain a query"),
            (jwt("url: 'https://i#f', audiences: [c]", name), "URL must not contain a fragment"),
            (
                jwt("url: 'https://i'", name),
                "jwt[0].issuer.audiences: Required value: at least one jwt audience is required",
            ),
            (
                jwt("url: 'https://i', audiences: [a, b]", name),
                "audienceMatchPolicy must be MatchAny for multiple audiences",
            ),
            (
                jwt("url: 'https://i', audiences: [a], certificateAuthority: x", name),
                "issuer.certificateAuthority: Invalid value: \"<omitted>\"",
            ),
            (
                jwt("url: 'https://i', audiences: [a], discoveryURL: 'https://i/'", name),
                "discoveryURL must be different from URL",
            ),
            (
                jwt(good, "claimMappings: {}"),
                "jwt[0].claimMappings.username: Required value: claim or expression is required",
            ),
            (
                jwt(good, "claimMappings: {username: {claim: sub}}"),
                "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set",
            ),
            (
                jwt(good, "claimMappings: {username: {claim: sub, expression: claims.sub}}"),
                "claim and expression can't both be set",
            ),
            (
                jwt(good, "claimMappings: {username: {expression: claims.email}}"),
                "claims.email_verified must be used in",
            ),
            (jwt(good, "claimMappings: {username: {expression: nobody.sub}}"), "compilation failed: "),
            (jwt(good, &format!("{name}, claimValidationRules: [{{expression: '1'}}]")), "must evaluate to bool"),
            (
                jwt(good, &format!("{name}, claimValidationRules: [{{}}]")),
                "jwt[0].claimValidationRules[0]: Required value: claim or expression is required",
            ),
            (
                jwt(good, &format!("{name}, userValidationRules: [{{}}]")),
                "userValidationRules[0].expression: Required value: expression is required",
            ),
            (
                jwt(good, "claimMappings: {username: {claim: s, prefix: ''}, extra: [{key: a, valueExpression: '1'}]}"),
                "must be a domain-prefixed path",
            ),
            (
                jwt(
                    good,
                    "claimMappings: {username: {claim: s, prefix: ''}, extra: [{key: x.k8s.io/a, valueExpression: '1'}]}",
                ),
                "are reserved for Kubernetes use",
            ),
            (
                "anonymous: {enabled: false, conditions: [{path: /livez}]}".into(),
                "enabled should be set to true when conditions are defined",
            ),
        ] {
            let error = configuration(&text).err().unwrap_or_default();
            assert!(error.contains(expected), "{text}\n{error}");
        }
        let twice = format!("jwt: [{{{ISSUER}, {name}}}, {{{ISSUER}, {name}}}]");
        assert!(configuration(&twice).err().unwrap().contains("jwt[1].issuer.url: Duplicate value: \"https://i\""));
        assert!(configuration("jwt: []\nnobody: 1").is_err());
    }

    #[test]
    fn security_anonymous_access_is_for_what_is_listed() {
        let anonymous = |text: &str| configuration(text).unwrap().anonymous;
        assert_eq!(anonymous("jwt: []"), None);
        assert_eq!(anonymous("anonymous: {enabled: true}"), Some(Anonymous::Anyone));
        assert_eq!(anonymous("anonymous: {enabled: false}"), Some(Anonymous::Nobody));
        let listed = anonymous("anonymous: {enabled: true, conditions: [{path: /livez}, {path: /readyz}]}").unwrap();
        for (path, expected) in
            [("/livez", true), ("/readyz", true), ("/livez/ping", false), ("/api", false), ("", false)]
        {
            assert_eq!(listed.allows(path), expected, "{path}");
        }
    }
}
