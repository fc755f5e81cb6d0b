//! Tokens and the public keys that verify them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::{Value, json};

/// A token taken apart, its signature not yet checked.
pub struct Token<'t> {
    pub algorithm: String,
    pub key_id: String,
    pub claims: Value,
    signed: &'t [u8],
    signature: Vec<u8>,
}

impl<'t> Token<'t> {
    /// `None` if it does not look like a token at all.
    pub fn parse(text: &'t str) -> Option<Self> {
        let parts: Vec<&str> = text.splitn(4, '.').collect();
        let [header, claims, signature] = parts.as_slice() else { return None };
        let decode = |part: &str| {
            URL_SAFE_NO_PAD.decode(part).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok())
        };
        let (header_value, claims_value) = (decode(header)?, decode(claims)?);
        let field = |name: &str| header_value[name].as_str().unwrap_or_default().to_owned();
        Some(Self {
            algorithm: field("alg"),
            key_id: field("kid"),
            claims: claims_value,
            signed: &text.as_bytes()[..header.len() + 1 + claims.len()],
            signature: URL_SAFE_NO_PAD.decode(signature).ok()?,
        })
    }

    pub fn text(&self, claim: &str) -> &str {
        self.claims[claim].as_str().unwrap_or_default()
    }

    /// Seconds since the epoch; fractions are cut.
    pub fn time(&self, claim: &str) -> Option<i64> {
        self.claims[claim].as_i64().or_else(|| self.claims[claim].as_f64().map(|seconds| seconds as i64))
    }

    /// The audiences, given as one string or a list.
    pub fn audiences(&self) -> Vec<&str> {
        match &self.claims["aud"] {
            Value::String(one) => vec![one],
            Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether one of the keys signed it. A token that names its key is only checked against that one.
    pub fn is_signed_by(&self, keys: &[Key]) -> bool {
        keys.iter()
            .filter(|key| self.key_id.is_empty() || key.id.is_empty() || key.id == self.key_id)
            .any(|key| key.verify(&self.algorithm, self.signed, &self.signature))
    }

    /// Whether the key it names is among these.
    pub fn key_is_known(&self, keys: &[Key]) -> bool {
        keys.iter().any(|key| key.id == self.key_id)
    }
}

/// A public key and its name.
#[derive(Clone)]
pub struct Key {
    pub id: String,
    pub material: Material,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Material {
    /// Modulus and exponent, big-endian, without leading zeros.
    Rsa(Vec<u8>, Vec<u8>),
    /// Uncompressed points.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Key {
    fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        let rsa = |parameters: &'static signature::RsaParameters| {
            let Material::Rsa(n, e) = &self.material else { return false };
            RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
        };
        let curve = |algorithm: &'static dyn signature::VerificationAlgorithm, point: &[u8]| {
            UnparsedPublicKey::new(algorithm, point).verify(message, signature).is_ok()
        };
        match (algorithm, &self.material) {
            ("RS256", Material::Rsa(..)) => rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            ("RS384", Material::Rsa(..)) => rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            ("RS512", Material::Rsa(..)) => rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            ("PS256", Material::Rsa(..)) => rsa(&signature::RSA_PSS_2048_8192_SHA256),
            ("PS384", Material::Rsa(..)) => rsa(&signature::RSA_PSS_2048_8192_SHA384),
            ("PS512", Material::Rsa(..)) => rsa(&signature::RSA_PSS_2048_8192_SHA512),
            ("ES256", Material::P256(point)) => curve(&signature::ECDSA_P256_SHA256_FIXED, point),
            ("ES384", Material::P384(point)) => curve(&signature::ECDSA_P384_SHA384_FIXED, point),
            ("EdDSA", Material::Ed25519(point)) => curve(&signature::ED25519, point),
            // Any other pairing, `none` and a public key taken for a shared secret above all, is no signature.
            _ => false,
        }
    }

    /// The key as a key set shows it.
    pub fn jwk(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let curve = |name: &str, algorithm: &str, point: &[u8]| {
            let (x, y) = point.get(1..).unwrap_or_default().split_at(point.len().saturating_sub(1) / 2);
            json!({"use": "sig", "kty": "EC", "kid": self.id, "crv": name, "alg": algorithm, "x": encode(x), "y": encode(y)})
        };
        match &self.material {
            Material::Rsa(n, e) => {
                json!({"use": "sig", "kty": "RSA", "kid": self.id, "alg": "RS256", "n": encode(n), "e": encode(e)})
            }
            Material::P256(point) => curve("P-256", "ES256", point),
            Material::P384(point) => curve("P-384", "ES384", point),
            Material::Ed25519(point) => {
                json!({"use": "sig", "kty": "OKP", "kid": self.id, "crv": "Ed25519", "alg": "EdDSA", "x": encode(point)})
            }
        }
    }

    /// A key of an issuer's key set; `None` for kinds that are not for signatures or not known here.
    pub fn from_jwk(jwk: &Value) -> Option<Self> {
        if jwk["use"].as_str().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(jwk[name].as_str()?.trim_end_matches('=')).ok();
        let point = |size: usize| {
            let (x, y) = (bytes("x")?, bytes("y")?);
            (x.len() == size && y.len() == size).then(|| [&[4], &x[..], &y[..]].concat())
        };
        let material = match (jwk["kty"].as_str()?, jwk["crv"].as_str().unwrap_or_default()) {
            ("RSA", _) => {
                let trimmed = |bytes: Vec<u8>| bytes.into_iter().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
                Material::Rsa(trimmed(bytes("n")?), trimmed(bytes("e")?))
            }
            ("EC", "P-256") => Material::P256(point(32)?),
            ("EC", "P-384") => Material::P384(point(48)?),
            ("OKP", "Ed25519") => Material::Ed25519(bytes("x")?),
            _ => return None,
        };
        Some(Self { id: jwk["kid"].as_str().unwrap_or_default().to_owned(), material })
    }
}

/// Header and claims as they are signed.
pub fn signing_input(algorithm: &str, key_id: &str, claims: &Value) -> String {
    let header = json!({"alg": algorithm, "kid": key_id});
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};

    #[test]
    fn keys_survive_a_key_set_and_verify() {
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.as_ref(), &random).unwrap();
        let key = Key { id: "k".into(), material: Material::P256(pair.public_key().as_ref().to_vec()) };
        let copy = Key::from_jwk(&key.jwk()).unwrap();
        assert!(copy.material == key.material && copy.id == "k");
        let input = signing_input("ES256", "k", &json!({"sub": "s", "aud": ["a", "b"], "exp": 5.7}));
        let signature = pair.sign(&random, input.as_bytes()).unwrap();
        let text = format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature));
        let token = Token::parse(&text).unwrap();
        assert!(token.is_signed_by(std::slice::from_ref(&copy)));
        assert_eq!((token.text("sub"), token.audiences(), token.time("exp")), ("s", vec!["a", "b"], Some(5)));
        // Another name for the key, another algorithm, no algorithm.
        assert!(!token.is_signed_by(&[Key { id: "other".into(), ..copy.clone() }]));
        for algorithm in ["none", "HS256", "RS256", "ES384", ""] {
            let changed = text.replacen(
                text.split('.').next().unwrap(),
                &URL_SAFE_NO_PAD.encode(json!({"alg": algorithm}).to_string()),
                1,
            );
            assert!(!Token::parse(&changed).unwrap().is_signed_by(std::slice::from_ref(&copy)), "{algorithm}");
        }
        for text in ["", "a.b", "a.b.c.d", "!.!.!"] {
            assert!(Token::parse(text).is_none(), "{text}");
        }
    }
}
