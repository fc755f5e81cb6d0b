//! Signing the tokens that Secrets hold: JWTs without an end, valid as long as their Secret exists.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;

use crate::private_key::pkcs8;

/// The key of `--service-account-private-key-file`: RSA, or ECDSA on P-256.
pub(super) struct TokenSigner {
    key: Key,
}

enum Key {
    Rsa(Box<RsaKeyPair>),
    Ecdsa(Box<EcdsaKeyPair>),
}

impl TokenSigner {
    pub(super) fn from_pem(pem: &str) -> anyhow::Result<Self> {
        let parsed = PrivateKeyDer::from_pem_slice(pem.as_bytes())?;
        let rejected = |error| anyhow::anyhow!("service account key: {error}");
        let ecdsa = |der: &[u8]| {
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &SystemRandom::new())
                .map(|key| Key::Ecdsa(Box::new(key)))
        };
        let key = match &parsed {
            PrivateKeyDer::Pkcs1(der) => {
                Key::Rsa(Box::new(RsaKeyPair::from_der(der.secret_pkcs1_der()).map_err(rejected)?))
            }
            PrivateKeyDer::Pkcs8(der) => match RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()) {
                Ok(key) => Key::Rsa(Box::new(key)),
                Err(_) => ecdsa(der.secret_pkcs8_der()).map_err(rejected)?,
            },
            PrivateKeyDer::Sec1(_) => ecdsa(&pkcs8(&parsed).unwrap_or_default()).map_err(rejected)?,
            _ => anyhow::bail!("service account key: neither RSA nor ECDSA"),
        };
        Ok(Self { key })
    }

    /// The token of `account` that lives in `secret`.
    pub(super) fn sign(&self, account: &ServiceAccount, secret: &Secret) -> anyhow::Result<String> {
        let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
        let name = account.metadata.name.as_deref().unwrap_or_default();
        let claims = json!({
            "iss": "kubernetes/serviceaccount",
            "kubernetes.io/serviceaccount/namespace": namespace,
            "kubernetes.io/serviceaccount/secret.name": secret.metadata.name,
            "kubernetes.io/serviceaccount/service-account.name": name,
            "kubernetes.io/serviceaccount/service-account.uid": account.metadata.uid,
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
        });
        let algorithm = match self.key {
            Key::Rsa(_) => "RS256",
            Key::Ecdsa(_) => "ES256",
        };
        let encode = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(json!({ "alg": algorithm })), encode(claims));
        let (random, failed) = (SystemRandom::new(), |_| anyhow::anyhow!("signing a token failed"));
        let signature = match &self.key {
            Key::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).map_err(failed)?;
                signature
            }
            Key::Ecdsa(key) => key.sign(&random, signed.as_bytes()).map_err(failed)?.as_ref().to_vec(),
        };
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::*;

    #[test]
    fn a_token_names_its_account_and_secret() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let signer = TokenSigner::from_pem(&pair.serialize_pem()).unwrap();
        let (mut account, mut secret) = (ServiceAccount::default(), Secret::default());
        account.metadata.name = Some("robot".into());
        account.metadata.uid = Some("u".into());
        secret.metadata.namespace = Some("ns".into());
        secret.metadata.name = Some("robot-token".into());
        let token = signer.sign(&account, &secret).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, pair.public_key_raw())
            .verify(signed.as_bytes(), &signature)
            .expect("the signature fits the key");
        let claims = URL_SAFE_NO_PAD.decode(signed.split_once('.').unwrap().1).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(claims["sub"], "system:serviceaccount:ns:robot");
        assert_eq!(claims["kubernetes.io/serviceaccount/secret.name"], "robot-token");
        assert!(TokenSigner::from_pem("nothing").is_err());
    }
}
