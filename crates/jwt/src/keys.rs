//! Keys for service-account tokens, from PEM files: one that signs (RSA or P-256) and those that verify.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};

use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use tls::der::element;

use crate::pem;
use crate::token::{Key, Material, signing_input};

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("key file {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("key file {}: {error}", path.display())]
    File { path: PathBuf, error: Box<KeyError> },
    #[error("key file {} holds no RSA or P-256 key", .0.display())]
    NoPublicKey(PathBuf),
    #[error("no private key found")]
    NoPrivateKey,
    #[error("neither an RSA nor a P-256 key: {0}")]
    Rejected(#[from] ring::error::KeyRejected),
    #[error("signing a token failed")]
    Signing,
}

fn read(path: &Path) -> Result<String, KeyError> {
    std::fs::read_to_string(path).map_err(|error| KeyError::Unreadable { path: path.to_owned(), error })
}

/// RSA, or ECDSA on P-256.
pub struct SigningKey {
    pair: Pair,
    /// The name of its public key in key sets and tokens.
    id: String,
}

enum Pair {
    Rsa(Box<RsaKeyPair>),
    Ecdsa(Box<EcdsaKeyPair>),
}

impl SigningKey {
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        private_key(&read(path)?).map_err(|error| KeyError::File { path: path.to_owned(), error: Box::new(error) })
    }

    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        private_key(text)
    }

    fn new(pair: Pair) -> Result<Self, KeyError> {
        let public = pair.public().ok_or(KeyError::NoPrivateKey)?;
        Ok(Self { pair, id: public.id })
    }

    /// The token with these claims.
    pub fn token(&self, claims: &Value) -> Result<String, KeyError> {
        let signed = signing_input(self.pair.algorithm(), &self.id, claims);
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(signed.as_bytes())?);
        Ok(format!("{signed}.{signature}"))
    }
}

impl Pair {
    fn algorithm(&self) -> &'static str {
        match self {
            Pair::Rsa(_) => "RS256",
            Pair::Ecdsa(_) => "ES256",
        }
    }

    fn public(&self) -> Option<Key> {
        match self {
            Pair::Rsa(key) => rsa(key.public().as_ref()),
            Pair::Ecdsa(key) => Some(ecdsa(key.public_key().as_ref())),
        }
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let random = SystemRandom::new();
        let failed = |_| KeyError::Signing;
        match self {
            Pair::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).map_err(failed)?;
                Ok(signature)
            }
            Pair::Ecdsa(key) => Ok(key.sign(&random, message).map_err(failed)?.as_ref().to_vec()),
        }
    }
}

/// The public keys of files that hold public keys, certificates or private keys.
pub fn load_public(files: &[PathBuf]) -> Result<Vec<Key>, KeyError> {
    let mut keys: Vec<Key> = Vec::new();
    for file in files {
        let found = public_keys(&read(file)?);
        if found.is_empty() {
            return Err(KeyError::NoPublicKey(file.clone()));
        }
        for key in found {
            if !keys.iter().any(|known| known.id == key.id) {
                keys.push(key);
            }
        }
    }
    Ok(keys)
}

const RSA_ALGORITHM: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
const P256_ALGORITHM: &[u8] = &[
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03,
    0x01, 0x07,
];

fn rsa(pkcs1: &[u8]) -> Option<Key> {
    let [n, e]: [Vec<u8>; 2] = der_integers(pkcs1).try_into().ok()?;
    Some(Key { id: key_id(RSA_ALGORITHM, pkcs1), material: Material::Rsa(n, e) })
}

fn ecdsa(point: &[u8]) -> Key {
    Key { id: key_id(P256_ALGORITHM, point), material: Material::P256(point.to_vec()) }
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
fn key_id(algorithm: &[u8], key: &[u8]) -> String {
    let mut bits = vec![0u8];
    bits.extend_from_slice(key);
    let mut body = algorithm.to_vec();
    body.extend(element(0x03, &bits));
    let spki = element(0x30, &body);
    URL_SAFE_NO_PAD.encode(ring::digest::digest(&ring::digest::SHA256, &spki))
}

fn private_key(text: &str) -> Result<SigningKey, KeyError> {
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).ok();
    let der = key.and_then(|key| tls::pkcs8(&key)).ok_or(KeyError::NoPrivateKey)?;
    let pair = RsaKeyPair::from_pkcs8(&der).map(|key| Pair::Rsa(Box::new(key))).or_else(|_| {
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &SystemRandom::new())
            .map(|key| Pair::Ecdsa(Box::new(key)))
    });
    SigningKey::new(pair?)
}

fn public_keys(text: &str) -> Vec<Key> {
    let mut keys = Vec::new();
    for (label, der) in pem::blocks(text) {
        match label.as_str() {
            "PUBLIC KEY" => keys.extend(from_spki(&der)),
            "RSA PUBLIC KEY" => keys.extend(rsa(&der)),
            "CERTIFICATE" => {
                if let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&der) {
                    keys.extend(from_spki(certificate.public_key().raw));
                }
            }
            _ => {}
        }
    }
    if keys.is_empty() {
        keys.extend(private_key(text).ok().and_then(|key| key.pair.public()));
    }
    keys
}

impl Key {
    /// A public key in its usual form (SubjectPublicKeyInfo), under the name that somebody else gives it.
    pub fn from_spki(id: &str, der: &[u8]) -> Option<Key> {
        use x509_parser::prelude::FromDer;
        let found = match from_spki(der) {
            Some(key) => key.material,
            None => {
                let (rest, info) = x509_parser::x509::SubjectPublicKeyInfo::from_der(der).ok()?;
                let point = info.subject_public_key.data.as_ref();
                (rest.is_empty() && point.first() == Some(&0x04) && point.len() == 97).then_some(())?;
                Material::P384(point.to_vec())
            }
        };
        Some(Key { id: id.to_owned(), material: found })
    }
}

fn from_spki(der: &[u8]) -> Option<Key> {
    use x509_parser::prelude::FromDer;
    let (_, info) = x509_parser::x509::SubjectPublicKeyInfo::from_der(der).ok()?;
    let key = info.subject_public_key.data.as_ref();
    match key.first()? {
        0x30 => rsa(key),
        0x04 if key.len() == 65 => Some(ecdsa(key)),
        _ => None,
    }
}
