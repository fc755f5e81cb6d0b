//! The providers of one resource, in order: the first writes, all of them read.

use std::sync::Arc;

use bytes::Bytes;

use super::cipher::Cipher;
use super::config::{Keys, ProviderConfiguration};
use super::kms::{Kms, TIMES};
use super::{SEALED, SealError};

pub(super) struct Providers(Vec<Provider>);

enum Provider {
    /// Plain text.
    Identity,
    Key {
        prefix: Box<[u8]>,
        cipher: Cipher,
    },
    Kms {
        prefix: Box<[u8]>,
        kms: Arc<Kms>,
    },
}

/// A value as it was before it was sealed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) plain: Bytes,
    /// A write would seal it otherwise.
    pub(super) stale: bool,
}

impl Providers {
    /// Appends the key services among them to `services`.
    pub(super) fn new(configured: &[ProviderConfiguration], services: &mut Vec<Arc<Kms>>) -> anyhow::Result<Self> {
        let mut providers = Vec::new();
        for provider in configured {
            let mut add = |name: &str, keys: &Keys, make: fn(&[u8]) -> Option<Cipher>| {
                for key in &keys.keys {
                    let cipher = key.bytes().and_then(|bytes| make(&bytes));
                    let cipher = cipher.ok_or_else(|| anyhow::anyhow!("key {:?} has a wrong length", key.name))?;
                    let prefix = format!("k8s:enc:{name}:v1:{}:", key.name).into_bytes().into();
                    providers.push(Provider::Key { prefix, cipher });
                }
                anyhow::Ok(())
            };
            if let Some(keys) = &provider.aesgcm {
                add("aesgcm", keys, Cipher::gcm)?;
            } else if let Some(keys) = &provider.aescbc {
                add("aescbc", keys, Cipher::cbc)?;
            } else if let Some(keys) = &provider.secretbox {
                add("secretbox", keys, Cipher::secretbox)?;
            } else if let Some(kms) = &provider.kms {
                kms.check_version()?;
                let timeout = kms.timeout().ok_or_else(|| anyhow::anyhow!("timeout should be a positive value"))?;
                let service = Arc::new(Kms::new(&kms.name, &kms.endpoint, timeout, TIMES));
                services.push(service.clone());
                let prefix = format!("k8s:enc:kms:v2:{}:", kms.name).into_bytes().into();
                providers.push(Provider::Kms { prefix, kms: service });
            } else {
                providers.push(Provider::Identity);
            }
        }
        Ok(Self(providers))
    }

    /// The value as it is to be stored under `key`; `None` leaves it as it is.
    pub(super) fn seal(&self, key: &str, plain: &[u8]) -> Result<Option<Bytes>, SealError> {
        let (prefix, sealed) = match self.0.first() {
            None | Some(Provider::Identity) => return Ok(None),
            Some(Provider::Key { prefix, cipher }) => (prefix, cipher.seal(plain, key.as_bytes())?),
            Some(Provider::Kms { prefix, kms }) => (prefix, kms.seal(plain, key.as_bytes())?),
        };
        Ok(Some([&prefix[..], &sealed].concat().into()))
    }

    /// The value that is stored under `key`. Several providers may have the same prefix, while a key is exchanged for
    /// another of the same name.
    pub(super) async fn open(&self, key: &str, stored: &Bytes) -> Result<Opened, SealError> {
        let mut failure = SealError::NoKey;
        for (index, provider) in self.0.iter().enumerate() {
            let opened = match provider {
                Provider::Identity if stored.starts_with(SEALED) => continue,
                Provider::Identity => return Ok(Opened { plain: stored.clone(), stale: index != 0 }),
                Provider::Key { prefix, cipher } => match stored.strip_prefix(&prefix[..]) {
                    Some(sealed) => cipher.open(sealed, key.as_bytes()).map(|plain| (plain, false)),
                    None => continue,
                },
                Provider::Kms { prefix, kms } => match stored.strip_prefix(&prefix[..]) {
                    Some(sealed) => kms.open(sealed, key.as_bytes()).await,
                    None => continue,
                },
            };
            match opened {
                Ok((plain, stale)) => return Ok(Opened { plain: plain.into(), stale: stale || index != 0 }),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// Where nothing is configured, nothing is sealed.
pub(super) fn open_plain(stored: &Bytes) -> Result<Opened, SealError> {
    if stored.starts_with(SEALED) {
        return Err(SealError::Encrypted);
    }
    Ok(Opened { plain: stored.clone(), stale: false })
}

#[cfg(test)]
mod tests {
    use super::super::config::Key;
    use super::*;

    fn keys(names: &[(&str, u8)]) -> Keys {
        use base64::Engine;
        let secret = |byte: u8| base64::engine::general_purpose::STANDARD.encode([byte; 32]);
        Keys { keys: names.iter().map(|(name, byte)| Key { name: (*name).into(), secret: secret(*byte) }).collect() }
    }

    fn gcm(names: &[(&str, u8)]) -> ProviderConfiguration {
        ProviderConfiguration { aesgcm: Some(keys(names)), ..Default::default() }
    }

    fn identity() -> ProviderConfiguration {
        ProviderConfiguration { identity: Some(serde_json::json!({})), ..Default::default() }
    }

    fn providers(configured: &[ProviderConfiguration]) -> Providers {
        Providers::new(configured, &mut Vec::new()).unwrap()
    }

    const KEY: &str = "/registry/secrets/a/b";

    #[tokio::test]
    async fn the_first_writes_and_all_read() {
        let plain = Bytes::from_static(b"{}");
        let cbc = ProviderConfiguration { aescbc: Some(keys(&[("c", 3)])), ..Default::default() };
        let secretbox = ProviderConfiguration { secretbox: Some(keys(&[("s", 4)])), ..Default::default() };
        let all = [gcm(&[("new", 2), ("old", 1)]), cbc.clone(), secretbox.clone(), identity()];
        let reader = providers(&all);
        for (writer, prefix, stale) in [
            (gcm(&[("new", 2)]), "k8s:enc:aesgcm:v1:new:", false),
            (gcm(&[("old", 1)]), "k8s:enc:aesgcm:v1:old:", true),
            (cbc, "k8s:enc:aescbc:v1:c:", true),
            (secretbox, "k8s:enc:secretbox:v1:s:", true),
        ] {
            let sealed = providers(&[writer]).seal(KEY, &plain).unwrap().unwrap();
            assert!(sealed.starts_with(prefix.as_bytes()));
            assert_eq!(reader.open(KEY, &sealed).await.unwrap(), Opened { plain: plain.clone(), stale });
        }
        assert_eq!(reader.open(KEY, &plain).await.unwrap(), Opened { plain: plain.clone(), stale: true });
        // On the way back to plain text.
        let back = providers(&[identity(), gcm(&[("new", 2)])]);
        assert_eq!(back.seal(KEY, &plain).unwrap(), None);
        assert_eq!(back.open(KEY, &plain).await.unwrap(), Opened { plain: plain.clone(), stale: false });
        let sealed = reader.seal(KEY, &plain).unwrap().unwrap();
        assert_eq!(back.open(KEY, &sealed).await.unwrap(), Opened { plain, stale: true });
    }

    #[tokio::test]
    async fn security_what_no_provider_reads_is_refused() {
        let plain = Bytes::from_static(b"{}");
        let sealed = providers(&[gcm(&[("a", 1)])]).seal(KEY, &plain).unwrap().unwrap();
        // Plain text where nobody allows it, a key that is not there, another key of the same name, another place.
        let strict = providers(&[gcm(&[("b", 1)])]);
        assert!(matches!(strict.open(KEY, &plain).await, Err(SealError::NoKey)));
        assert!(matches!(strict.open(KEY, &sealed).await, Err(SealError::NoKey)));
        assert!(matches!(providers(&[gcm(&[("a", 2)])]).open(KEY, &sealed).await, Err(SealError::Forged)));
        let right = providers(&[gcm(&[("a", 2)]), gcm(&[("a", 1)])]);
        assert!(right.open(KEY, &sealed).await.is_ok(), "the second key of the same name opens it");
        assert!(matches!(right.open("/registry/secrets/a/c", &sealed).await, Err(SealError::Forged)));
        assert!(matches!(providers(&[identity()]).open(KEY, &sealed).await, Err(SealError::NoKey)));
        assert!(matches!(open_plain(&sealed), Err(SealError::Encrypted)));
    }

    #[test]
    fn kms_v1_is_refused() {
        let kms = super::super::config::KmsConfiguration {
            name: "k".into(),
            endpoint: "unix:///k".into(),
            ..Default::default()
        };
        let configured = [ProviderConfiguration { kms: Some(kms), ..Default::default() }];
        let error = Providers::new(&configured, &mut Vec::new()).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("KMSv1 is deprecated"), "{error}");
    }
}
