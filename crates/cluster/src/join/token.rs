//! Bootstrap tokens: `<id>.<secret>`, with which a machine introduces itself, kept as a Secret in `kube-system`.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use api::sort::CompactSort as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rand::Rng;

pub(crate) const NAMESPACE: &str = "kube-system";
pub(crate) const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const NAME_PREFIX: &str = "bootstrap-token-";
/// Who comes with a token made for nodes.
pub(crate) const DEFAULT_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
const ALPHABET: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) id: String,
    pub(crate) secret: String,
}

/// Never the secret: what is formatted for debugging ends in logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.…", self.id)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.id, self.secret)
    }
}

impl FromStr for Token {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Token> {
        let is_part = |part: &str, length| part.len() == length && part.bytes().all(|byte| ALPHABET.contains(&byte));
        match text.split_once('.') {
            Some((id, secret)) if is_part(id, ID_LENGTH) && is_part(secret, SECRET_LENGTH) => {
                Ok(Token { id: id.to_owned(), secret: secret.to_owned() })
            }
            // The text is not repeated: it may be almost a secret.
            _ => bail!("a token has the form abcdef.0123456789abcdef: 6 and 16 lower-case letters and digits"),
        }
    }
}

impl Token {
    pub(crate) fn generate() -> Token {
        let mut random = rand::rng();
        let mut part = |length: usize| -> String {
            (0..length).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
        };
        Token { id: part(ID_LENGTH), secret: part(SECRET_LENGTH) }
    }

    pub(crate) fn secret_name(id: &str) -> String {
        format!("{NAME_PREFIX}{id}")
    }

    /// The id in a token, or the id itself.
    pub(crate) fn id_of(text: &str) -> Result<String> {
        if text.len() == ID_LENGTH && text.bytes().all(|byte| ALPHABET.contains(&byte)) {
            return Ok(text.to_owned());
        }
        text.parse::<Token>().map(|token| token.id)
    }
}

/// What a token is for, and until when.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Purpose {
    /// Words such as `signing` and `authentication`.
    pub(crate) usages: Vec<String>,
    pub(crate) groups: Vec<String>,
    pub(crate) description: Option<String>,
    pub(crate) expires: Option<Timestamp>,
}

pub(crate) fn to_secret(token: &Token, purpose: &Purpose) -> Secret {
    let mut fields = vec![("token-id".to_owned(), token.id.clone()), ("token-secret".to_owned(), token.secret.clone())];
    fields.extend(purpose.usages.iter().map(|usage| (format!("usage-bootstrap-{usage}"), "true".to_owned())));
    if !purpose.groups.is_empty() {
        fields.push(("auth-extra-groups".to_owned(), purpose.groups.join(",")));
    }
    fields.extend(purpose.description.iter().map(|text| ("description".to_owned(), text.clone())));
    let expires = purpose.expires.map(api::time::rfc3339);
    fields.extend(expires.map(|end| ("expiration".to_owned(), end)));
    Secret {
        metadata: ObjectMeta {
            name: Some(Token::secret_name(&token.id)),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some(fields.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect()),
        ..Secret::default()
    }
}

/// None for a Secret that holds no token, whatever its type says.
pub(crate) fn from_secret(secret: &Secret) -> Option<(Token, Purpose)> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| data.get(key).and_then(|value| String::from_utf8(value.0.clone()).ok());
    let token: Token = format!("{}.{}", text("token-id")?, text("token-secret")?).parse().ok()?;
    let is_set = |key: &&String| text(key).as_deref() == Some("true");
    let usages = data.keys().filter(is_set).filter_map(|key| key.strip_prefix("usage-bootstrap-")).map(str::to_owned);
    let mut usages: Vec<String> = usages.collect();
    usages.compact_sort();
    let groups = text("auth-extra-groups").unwrap_or_default();
    let purpose = Purpose {
        usages,
        groups: groups.split(',').filter(|group| !group.is_empty()).map(str::to_owned).collect(),
        description: text("description").filter(|text| !text.is_empty()),
        expires: text("expiration").and_then(|end| end.parse().ok()),
    };
    Some((token, purpose))
}

/// A text that says no lifetime.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadLifetime {
    #[error("a token lasts for some time, or for ever with 0")]
    NotPositive,
    #[error(transparent)]
    Text(#[from] jiff::Error),
}

/// How long a token lasts, as `24h0m0s`; nothing for ever.
pub(crate) fn parse_lifetime(text: &str) -> Result<Option<SignedDuration>, BadLifetime> {
    if text == "0" {
        return Ok(None);
    }
    let lifetime = text.parse::<SignedDuration>()?;
    if lifetime.is_positive() { Ok(Some(lifetime)) } else { Err(BadLifetime::NotPositive) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_made_and_read() {
        let token = Token::generate();
        assert_eq!(token.to_string().parse::<Token>().unwrap(), token);
        assert_ne!(Token::generate(), token);
        assert!(!format!("{token:?}").contains(&token.secret));
        for (text, id) in [("abcdef", Some("abcdef")), ("abcdef.0123456789abcdef", Some("abcdef")), ("Abcdef", None)] {
            assert_eq!(Token::id_of(text).ok().as_deref(), id, "{text}");
        }
        for text in ["", "abcdef", "abcdef.short", "abcdefg.0123456789abcdef", "ABCDEF.0123456789abcdef"] {
            let error = text.parse::<Token>().unwrap_err().to_string();
            assert!(text.is_empty() || text == "abcdef" || !error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_secret_keeps_what_a_token_is_for() {
        let token: Token = "abcdef.0123456789abcdef".parse().unwrap();
        let purpose = Purpose {
            usages: vec!["authentication".into(), "signing".into()],
            groups: vec![DEFAULT_GROUP.into()],
            description: Some("for the new machine".into()),
            expires: Some("2030-01-02T03:04:05Z".parse().unwrap()),
        };
        let secret = to_secret(&token, &purpose);
        assert_eq!(secret.metadata.name.as_deref(), Some("bootstrap-token-abcdef"));
        assert_eq!(from_secret(&secret), Some((token, purpose)));
        assert_eq!(from_secret(&Secret::default()), None);
    }

    #[test]
    fn lifetimes_are_written_as_go_does() {
        for (text, seconds) in [("24h0m0s", Some(86_400)), ("30m", Some(1800)), ("1h30m", Some(5400))] {
            assert_eq!(parse_lifetime(text).unwrap().map(|lifetime| lifetime.as_secs()), seconds, "{text}");
        }
        assert_eq!(parse_lifetime("0").unwrap(), None);
        for text in ["", "-1h", "soon", "0s"] {
            assert!(parse_lifetime(text).is_err(), "{text}");
        }
    }
}
