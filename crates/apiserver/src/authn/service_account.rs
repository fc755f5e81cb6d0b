//! Service-account tokens: JWTs signed by this server (RS256 or ES256), bound to objects and audiences.

use std::path::Path;

use anyhow::Context;
use api::UserInfo;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey,
};
use serde_json::{Value, json};

use super::Accepted;
use crate::state::State;

/// Issuer and key of new tokens.
pub(crate) struct TokenIssuer {
    key: SigningKey,
    kid: String,
    issuer: String,
    audiences: Vec<String>,
}

enum SigningKey {
    Rsa(RsaKeyPair),
    Ecdsa(EcdsaKeyPair),
}

/// What a token says.
pub(crate) struct TokenClaims {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) audiences: Vec<String>,
    pub(crate) issued: i64,
    pub(crate) expires: i64,
    /// Name and uid of the object the token is bound to.
    pub(crate) pod: Option<(String, String)>,
    pub(crate) node: Option<(String, String)>,
    pub(crate) secret: Option<(String, String)>,
}

impl TokenIssuer {
    pub(crate) fn load(key: &Path, issuer: &str, audiences: Vec<String>) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(key).with_context(|| format!("key file {}", key.display()))?;
        let key = private_key(&text).with_context(|| format!("key file {}", key.display()))?;
        let kid = key.public().kid;
        Ok(Self { key, kid, issuer: issuer.to_owned(), audiences })
    }

    pub(crate) fn audiences(&self) -> &[String] {
        &self.audiences
    }

    pub(crate) fn sign(&self, claims: &TokenClaims) -> anyhow::Result<String> {
        let algorithm = match self.key {
            SigningKey::Rsa(_) => "RS256",
            SigningKey::Ecdsa(_) => "ES256",
        };
        let header = json!({"alg": algorithm, "kid": self.kid});
        let bound = |reference: &Option<(String, String)>| {
            reference.as_ref().map(|(name, uid)| json!({"name": name, "uid": uid}))
        };
        let mut private = json!({
            "namespace": claims.namespace,
            "serviceaccount": {"name": claims.name, "uid": claims.uid},
        });
        for (key, reference) in [("pod", &claims.pod), ("node", &claims.node), ("secret", &claims.secret)] {
            if let Some(value) = bound(reference) {
                private[key] = value;
            }
        }
        let body = json!({
            "aud": claims.audiences,
            "exp": claims.expires,
            "iat": claims.issued,
            "nbf": claims.issued,
            "iss": self.issuer,
            "jti": uuid::Uuid::new_v4().to_string(),
            "kubernetes.io": private,
            "sub": format!("system:serviceaccount:{}:{}", claims.namespace, claims.name),
        });
        let signing =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(body.to_string()));
        let random = SystemRandom::new();
        let failed = |_| anyhow::anyhow!("signing a token failed");
        let signature = match &self.key {
            SigningKey::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, signing.as_bytes(), &mut signature).map_err(failed)?;
                signature
            }
            SigningKey::Ecdsa(key) => key.sign(&random, signing.as_bytes()).map_err(failed)?.as_ref().to_vec(),
        };
        Ok(format!("{signing}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

impl SigningKey {
    fn public(&self) -> PublicKey {
        match self {
            SigningKey::Rsa(key) => PublicKey::rsa(key.public().as_ref()),
            SigningKey::Ecdsa(key) => PublicKey::ecdsa(key.public_key().as_ref()),
        }
    }
}

/// Keys whose signatures are accepted.
pub(crate) struct PublicKeys {
    keys: Vec<PublicKey>,
    issuers: Vec<String>,
    audiences: Vec<String>,
}

#[derive(Clone)]
struct PublicKey {
    kid: String,
    /// PKCS#1 for RSA, the uncompressed point for P-256.
    bytes: Vec<u8>,
    rsa: bool,
}

const RSA_ALGORITHM: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
const P256_ALGORITHM: &[u8] = &[
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03,
    0x01, 0x07,
];

impl PublicKey {
    fn rsa(pkcs1: &[u8]) -> Self {
        Self { kid: kid(RSA_ALGORITHM, pkcs1), bytes: pkcs1.to_vec(), rsa: true }
    }

    fn ecdsa(point: &[u8]) -> Self {
        Self { kid: kid(P256_ALGORITHM, point), bytes: point.to_vec(), rsa: false }
    }

    fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        let verified = match (algorithm, self.rsa) {
            ("RS256", true) => {
                UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.bytes).verify(message, signature)
            }
            ("ES256", false) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.bytes).verify(message, signature)
            }
            // Any other pairing, `none` above all, is no signature.
            _ => return false,
        };
        verified.is_ok()
    }

    fn jwk(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        if !self.rsa {
            let (x, y) = self.bytes.get(1..33).zip(self.bytes.get(33..65)).unwrap_or_default();
            return json!({"use": "sig", "kty": "EC", "crv": "P-256", "kid": self.kid, "alg": "ES256", "x": encode(x), "y": encode(y)});
        }
        let integers = der_integers(&self.bytes);
        let number = |index: usize| encode(integers.get(index).map_or(&[][..], |bytes| bytes));
        json!({"use": "sig", "kty": "RSA", "kid": self.kid, "alg": "RS256", "n": number(0), "e": number(1)})
    }
}

/// The integers of a DER sequence, without leading zeros: modulus and exponent of a PKCS#1 key.
fn der_integers(der: &[u8]) -> Vec<Vec<u8>> {
    fn header(der: &[u8]) -> Option<(u8, usize, usize)> {
        let (tag, first) = (*der.first()?, *der.get(1)? as usize);
        if first < 0x80 {
            return Some((tag, 2, first));
        }
        let count = first & 0x7f;
        let length = der.get(2..2 + count)?.iter().fold(0usize, |length, byte| (length << 8) | *byte as usize);
        Some((tag, 2 + count, length))
    }
    let mut found = Vec::new();
    let Some((0x30, start, _)) = header(der) else { return found };
    let mut rest = &der[start..];
    while let Some((0x02, start, length)) = header(rest) {
        let Some(bytes) = rest.get(start..start + length) else { break };
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        found.push(bytes[zeros..].to_vec());
        rest = &rest[start + length..];
    }
    found
}

/// The key id upstream uses: base64 of the SHA-256 of the public key's SPKI form.
fn kid(algorithm: &[u8], key: &[u8]) -> String {
    let mut bits = vec![0u8];
    bits.extend_from_slice(key);
    let mut body = algorithm.to_vec();
    body.extend(der_value(0x03, &bits));
    let spki = der_value(0x30, &body);
    URL_SAFE_NO_PAD.encode(ring::digest::digest(&ring::digest::SHA256, &spki))
}

fn der_value(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match body.len() {
        length @ 0..0x80 => out.push(length as u8),
        length @ 0x80..0x100 => out.extend([0x81, length as u8]),
        length => out.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    out.extend_from_slice(body);
    out
}

fn private_key(text: &str) -> anyhow::Result<SigningKey> {
    for (label, der) in super::pem::blocks(text) {
        match label.as_str() {
            "RSA PRIVATE KEY" => return Ok(SigningKey::Rsa(RsaKeyPair::from_der(&der)?)),
            "PRIVATE KEY" => {
                if let Ok(key) = RsaKeyPair::from_pkcs8(&der) {
                    return Ok(SigningKey::Rsa(key));
                }
                let random = SystemRandom::new();
                return Ok(SigningKey::Ecdsa(EcdsaKeyPair::from_pkcs8(
                    &ECDSA_P256_SHA256_FIXED_SIGNING,
                    &der,
                    &random,
                )?));
            }
            "EC PRIVATE KEY" => {
                let random = SystemRandom::new();
                let pkcs8 = sec1_to_pkcs8(&der);
                return Ok(SigningKey::Ecdsa(EcdsaKeyPair::from_pkcs8(
                    &ECDSA_P256_SHA256_FIXED_SIGNING,
                    &pkcs8,
                    &random,
                )?));
            }
            _ => {}
        }
    }
    anyhow::bail!("no private key found")
}

/// Wraps a SEC1 key, since ring reads only PKCS#8.
fn sec1_to_pkcs8(sec1: &[u8]) -> Vec<u8> {
    let mut body = vec![0x02, 0x01, 0x00];
    body.extend_from_slice(P256_ALGORITHM);
    body.extend(der_value(0x04, sec1));
    der_value(0x30, &body)
}

fn public_keys(text: &str) -> Vec<PublicKey> {
    let mut keys = Vec::new();
    for (label, der) in super::pem::blocks(text) {
        match label.as_str() {
            "PUBLIC KEY" => keys.extend(from_spki(&der)),
            "RSA PUBLIC KEY" => keys.push(PublicKey::rsa(&der)),
            "CERTIFICATE" => {
                if let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&der) {
                    keys.extend(from_spki(certificate.public_key().raw));
                }
            }
            _ => {}
        }
    }
    if keys.is_empty() {
        keys.extend(private_key(text).ok().map(|key| key.public()));
    }
    keys
}

fn from_spki(der: &[u8]) -> Option<PublicKey> {
    use x509_parser::prelude::FromDer;
    let (_, info) = x509_parser::x509::SubjectPublicKeyInfo::from_der(der).ok()?;
    let key = info.subject_public_key.data.as_ref();
    match key.first()? {
        0x30 => Some(PublicKey::rsa(key)),
        0x04 if key.len() == 65 => Some(PublicKey::ecdsa(key)),
        _ => None,
    }
}

impl PublicKeys {
    /// Reads public keys, certificates or private keys from files.
    pub(crate) fn load(
        files: &[std::path::PathBuf],
        issuers: Vec<String>,
        audiences: Vec<String>,
    ) -> anyhow::Result<Self> {
        let mut keys: Vec<PublicKey> = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(file).with_context(|| format!("key file {}", file.display()))?;
            let found = public_keys(&text);
            anyhow::ensure!(!found.is_empty(), "key file {} holds no RSA or P-256 key", file.display());
            for key in found {
                if !keys.iter().any(|known| known.kid == key.kid) {
                    keys.push(key);
                }
            }
        }
        Ok(Self { keys, issuers, audiences })
    }

    /// The key set served at `/openid/v1/jwks`.
    pub(crate) fn jwks(&self) -> Value {
        json!({"keys": self.keys.iter().map(PublicKey::jwk).collect::<Vec<_>>()})
    }

    /// `Ok(None)` if the token is not one of ours at all.
    pub(crate) fn verify(&self, state: &State, token: &str, audiences: &[String]) -> Result<Option<Accepted>, String> {
        let Some((header, claims)) = self.check_signature(token)? else { return Ok(None) };
        let _ = header;
        let now = jiff::Timestamp::now().as_second();
        let number = |key: &str| claims[key].as_i64();
        if number("exp").is_some_and(|expires| now > expires) {
            return Err("service account token has expired".to_owned());
        }
        if number("nbf").is_some_and(|not_before| now + 60 < not_before) {
            return Err("service account token is not valid yet".to_owned());
        }
        let legacy = claims["iss"] == "kubernetes/serviceaccount";
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        let given: Vec<&str> = match &claims["aud"] {
            Value::String(one) => vec![one],
            Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
            // Legacy tokens name no audience and are meant for this server.
            _ if legacy => self.audiences.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        let accepted: Vec<String> = wanted.iter().filter(|wanted| given.contains(&wanted.as_str())).cloned().collect();
        if accepted.is_empty() {
            return Err(format!("token audiences {given:?} is invalid for the target audiences {wanted:?}"));
        }
        let user = if legacy { legacy_user(state, &claims)? } else { bound_user(state, &claims)? };
        Ok(Some((user, accepted)))
    }

    /// Header and claims of a token from one of our issuers with a good signature.
    fn check_signature(&self, token: &str) -> Result<Option<(Value, Value)>, String> {
        let parts: Vec<&str> = token.split('.').collect();
        let [header, claims, signature] = parts.as_slice() else { return Ok(None) };
        let decode = |part: &str| {
            URL_SAFE_NO_PAD.decode(part).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok())
        };
        let (Some(header_value), Some(claims_value), Ok(signature)) =
            (decode(header), decode(claims), URL_SAFE_NO_PAD.decode(signature))
        else {
            return Ok(None);
        };
        let issuer = claims_value["iss"].as_str().unwrap_or_default();
        if !self.issuers.iter().any(|known| known == issuer) && issuer != "kubernetes/serviceaccount" {
            return Ok(None);
        }
        let algorithm = header_value["alg"].as_str().unwrap_or_default();
        let kid = header_value["kid"].as_str().unwrap_or_default();
        let message = &token.as_bytes()[..header.len() + 1 + claims.len()];
        let good = self
            .keys
            .iter()
            .filter(|key| kid.is_empty() || key.kid == kid)
            .any(|key| key.verify(algorithm, message, &signature));
        if !good {
            return Err("invalid signature, no keys found".to_owned());
        }
        Ok(Some((header_value, claims_value)))
    }
}

fn account_user(state: &State, namespace: &str, name: &str, uid: &str) -> Result<UserInfo, String> {
    let account: Value = state
        .peek("serviceaccounts", &format!("{namespace}/{name}"))
        .ok_or_else(|| format!("serviceaccounts {name:?} not found"))?;
    if account["metadata"]["uid"] != uid {
        return Err(format!(
            "the service account UID ({}) does not match the claim ({uid})",
            account["metadata"]["uid"]
        ));
    }
    Ok(UserInfo::service_account(namespace, name, uid))
}

fn bound_user(state: &State, claims: &Value) -> Result<UserInfo, String> {
    let private = &claims["kubernetes.io"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let namespace = text(&private["namespace"]);
    let (name, uid) = (text(&private["serviceaccount"]["name"]), text(&private["serviceaccount"]["uid"]));
    if claims["sub"] != format!("system:serviceaccount:{namespace}:{name}") {
        return Err("token subject does not match its service account".to_owned());
    }
    let mut user = account_user(state, &namespace, &name, &uid)?;
    for (kind, prefix, key) in [
        ("pod", "pods", format!("{namespace}/{}", text(&private["pod"]["name"]))),
        ("secret", "secrets", format!("{namespace}/{}", text(&private["secret"]["name"]))),
        ("node", "minions", text(&private["node"]["name"])),
    ] {
        if !private[kind].is_object() {
            continue;
        }
        let (name, uid) = (text(&private[kind]["name"]), text(&private[kind]["uid"]));
        // A token bound to a pod also names its node for information; only a direct binding must hold.
        if kind != "node" || !private["pod"].is_object() {
            let object: Value = state.peek(prefix, &key).ok_or_else(|| format!("bound {kind} {name:?} not found"))?;
            if object["metadata"]["uid"] != uid {
                return Err(format!("the {kind} UID does not match the claim"));
            }
        }
        if kind != "secret" {
            let extra = &mut user.extra;
            extra.insert(format!("authentication.kubernetes.io/{kind}-name"), vec![name]);
            extra.insert(format!("authentication.kubernetes.io/{kind}-uid"), vec![uid]);
        }
    }
    if let Some(id) = claims["jti"].as_str() {
        user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]);
    }
    Ok(user)
}

fn legacy_user(state: &State, claims: &Value) -> Result<UserInfo, String> {
    let text =
        |key: &str| claims[format!("kubernetes.io/serviceaccount/{key}")].as_str().unwrap_or_default().to_owned();
    let (namespace, secret) = (text("namespace"), text("secret.name"));
    if state.peek::<Value>("secrets", &format!("{namespace}/{secret}")).is_none() {
        return Err("token has been invalidated".to_owned());
    }
    account_user(state, &namespace, &text("service-account.name"), &text("service-account.uid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ec_key() -> (SigningKey, PublicKeys) {
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.as_ref(), &random).unwrap();
        let key = SigningKey::Ecdsa(pair);
        let keys = PublicKeys { keys: vec![key.public()], issuers: vec!["i".into()], audiences: vec!["a".into()] };
        (key, keys)
    }

    #[test]
    fn signatures_are_checked() {
        let (key, keys) = ec_key();
        let kid = key.public().kid;
        let issuer = TokenIssuer { key, kid, issuer: "i".into(), audiences: vec!["a".into()] };
        let claims = TokenClaims {
            namespace: "n".into(),
            name: "s".into(),
            uid: "u".into(),
            audiences: vec!["a".into()],
            issued: 1,
            expires: 2,
            pod: None,
            node: None,
            secret: None,
        };
        let token = issuer.sign(&claims).unwrap();
        assert!(keys.check_signature(&token).unwrap().is_some());
        // Another key, a changed body, `alg: none`, another issuer, not a token.
        let (_, others) = ec_key();
        assert!(others.check_signature(&token).is_err());
        let parts: Vec<&str> = token.split('.').collect();
        let forged = URL_SAFE_NO_PAD.encode(r#"{"iss":"i","sub":"x"}"#);
        assert!(keys.check_signature(&format!("{}.{forged}.{}", parts[0], parts[2])).is_err());
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        assert!(keys.check_signature(&format!("{none}.{}.", parts[1])).is_err());
        let foreign = URL_SAFE_NO_PAD.encode(r#"{"iss":"other"}"#);
        assert!(keys.check_signature(&format!("{}.{foreign}.{}", parts[0], parts[2])).unwrap().is_none());
        assert!(keys.check_signature("opaque").unwrap().is_none());
    }
}
