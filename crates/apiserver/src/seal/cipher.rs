//! The ciphers, in the layout of upstream's: what is random comes first, then the sealed text.

use aes::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit, block_padding::NoPadding, block_padding::Pkcs7};
use aes::{Aes128, Aes192, Aes256};
use aes_gcm::aead::{Aead, Payload, consts::U12};
use aes_gcm::{AesGcm, KeyInit};
use crypto_secretbox::XSalsa20Poly1305;
use ring::hkdf;
use ring::rand::{SecureRandom, SystemRandom};

use super::SealError;

const BLOCK: usize = 16;
const GCM_NONCE: usize = 12;
const BOX_NONCE: usize = 24;
/// Of a seed, and of what a key is derived with.
pub(super) const SEED: usize = 32;
const INFO: usize = 32;

/// One key and what it is for.
pub(super) enum Cipher {
    Cbc(Box<[u8]>),
    Gcm(Gcm),
    Secretbox(Box<XSalsa20Poly1305>),
}

impl Cipher {
    /// AES-CBC with PKCS #7 padding: secret, but not protected against changes.
    pub(super) fn cbc(key: &[u8]) -> Option<Self> {
        matches!(key.len(), 16 | 24 | 32).then(|| Self::Cbc(key.into()))
    }

    pub(super) fn gcm(key: &[u8]) -> Option<Self> {
        Gcm::new(key).map(Self::Gcm)
    }

    pub(super) fn secretbox(key: &[u8]) -> Option<Self> {
        XSalsa20Poly1305::new_from_slice(key).ok().map(|key| Self::Secretbox(Box::new(key)))
    }

    /// `context` is what a value is bound to: its key in the store. Only GCM binds.
    pub(super) fn seal(&self, plain: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
        match self {
            Self::Cbc(key) => {
                let iv: [u8; BLOCK] = random()?;
                Ok([&iv[..], &cbc_encrypt(key, &iv, plain)?].concat())
            }
            Self::Gcm(key) => key.seal(plain, context),
            Self::Secretbox(key) => {
                let nonce: [u8; BOX_NONCE] = random()?;
                let sealed = key.encrypt(&nonce.into(), plain).map_err(|_| SealError::Forged)?;
                Ok([&nonce[..], &sealed].concat())
            }
        }
    }

    pub(super) fn open(&self, sealed: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
        match self {
            Self::Cbc(key) => {
                let (iv, text) = sealed.split_first_chunk::<BLOCK>().ok_or(SealError::Short)?;
                if !text.len().is_multiple_of(BLOCK) {
                    return Err(SealError::Uneven);
                }
                unpad(cbc_decrypt(key, iv, text)?)
            }
            Self::Gcm(key) => key.open(sealed, context),
            Self::Secretbox(key) => {
                let (nonce, text) = sealed.split_first_chunk::<BOX_NONCE>().ok_or(SealError::Short)?;
                key.decrypt(&(*nonce).into(), text).map_err(|_| SealError::Forged)
            }
        }
    }
}

/// AES-GCM; a value is bound to its context.
pub(super) enum Gcm {
    Aes128(Box<AesGcm<Aes128, U12>>),
    Aes192(Box<AesGcm<Aes192, U12>>),
    Aes256(Box<AesGcm<Aes256, U12>>),
}

impl Gcm {
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        match key.len() {
            16 => AesGcm::new_from_slice(key).ok().map(|key| Self::Aes128(Box::new(key))),
            24 => AesGcm::new_from_slice(key).ok().map(|key| Self::Aes192(Box::new(key))),
            32 => AesGcm::new_from_slice(key).ok().map(|key| Self::Aes256(Box::new(key))),
            _ => None,
        }
    }

    fn seal(&self, plain: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
        let nonce: [u8; GCM_NONCE] = random()?;
        let payload = Payload { msg: plain, aad: context };
        let sealed = match self {
            Self::Aes128(key) => key.encrypt(&nonce.into(), payload),
            Self::Aes192(key) => key.encrypt(&nonce.into(), payload),
            Self::Aes256(key) => key.encrypt(&nonce.into(), payload),
        };
        Ok([&nonce[..], &sealed.map_err(|_| SealError::Forged)?].concat())
    }

    pub(super) fn open(&self, sealed: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
        let (nonce, text) = sealed.split_first_chunk::<GCM_NONCE>().ok_or(SealError::Short)?;
        let (nonce, payload) = ((*nonce).into(), Payload { msg: text, aad: context });
        let opened = match self {
            Self::Aes128(key) => key.decrypt(&nonce, payload),
            Self::Aes192(key) => key.decrypt(&nonce, payload),
            Self::Aes256(key) => key.decrypt(&nonce, payload),
        };
        opened.map_err(|_| SealError::Forged)
    }
}

/// A key per value, derived from a seed and random bytes that are stored with it: a seed never wears out, as one key
/// with random nonces of twelve bytes would.
pub(super) struct ExtendedNonce(hkdf::Prk);

impl ExtendedNonce {
    pub(super) fn new(seed: &[u8]) -> Result<Self, SealError> {
        if seed.len() < SEED {
            return Err(SealError::Envelope(format!("invalid seed length {} used for key generation", seed.len())));
        }
        Ok(Self(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, seed)))
    }

    fn derive(&self, info: &[u8]) -> Result<Gcm, SealError> {
        let mut key = [0; 32];
        let info = [info];
        let expanded = self.0.expand(&info, hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut key));
        expanded
            .ok()
            .and_then(|()| Gcm::new(&key))
            .ok_or_else(|| SealError::Envelope("failed to derive a key from the seed".to_owned()))
    }

    pub(super) fn seal(&self, plain: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
        let info: [u8; INFO] = random()?;
        Ok([&info[..], &self.derive(&info)?.seal(plain, context)?].concat())
    }

    pub(super) fn open(&self, sealed: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
        let (info, rest) = sealed.split_first_chunk::<INFO>().ok_or(SealError::Short)?;
        self.derive(info)?.open(rest, context)
    }
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], SealError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| SealError::Random)?;
    Ok(bytes)
}

fn cbc_encrypt(key: &[u8], iv: &[u8; BLOCK], plain: &[u8]) -> Result<Vec<u8>, SealError> {
    macro_rules! run {
        ($aes:ty) => {
            cbc::Encryptor::<$aes>::new_from_slices(key, iv).map(|cipher| cipher.encrypt_padded_vec_mut::<Pkcs7>(plain))
        };
    }
    let sealed = match key.len() {
        16 => run!(Aes128),
        24 => run!(Aes192),
        _ => run!(Aes256),
    };
    sealed.map_err(|_| SealError::Short)
}

fn cbc_decrypt(key: &[u8], iv: &[u8; BLOCK], text: &[u8]) -> Result<Vec<u8>, SealError> {
    macro_rules! run {
        ($aes:ty) => {
            cbc::Decryptor::<$aes>::new_from_slices(key, iv)
                .map(|cipher| cipher.decrypt_padded_vec_mut::<NoPadding>(text))
        };
    }
    let opened = match key.len() {
        16 => run!(Aes128),
        24 => run!(Aes192),
        _ => run!(Aes256),
    };
    opened.map_err(|_| SealError::Short)?.map_err(|_| SealError::Uneven)
}

/// The same answer for every kind of bad padding, as upstream gives.
fn unpad(mut padded: Vec<u8>) -> Result<Vec<u8>, SealError> {
    let count = padded.last().copied().map_or(0, usize::from);
    let start = padded.len().checked_sub(count).filter(|_| (1..=BLOCK).contains(&count)).ok_or(SealError::Padding)?;
    if padded[start..].iter().any(|byte| usize::from(*byte) != count) {
        return Err(SealError::Padding);
    }
    padded.truncate(start);
    Ok(padded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn all() -> Vec<(&'static str, Cipher, Cipher)> {
        let key = |byte: u8, length| vec![byte; length];
        let mut ciphers =
            vec![("secretbox", Cipher::secretbox(&key(1, 32)).unwrap(), Cipher::secretbox(&key(2, 32)).unwrap())];
        for length in [16, 24, 32] {
            ciphers.push(("cbc", Cipher::cbc(&key(1, length)).unwrap(), Cipher::cbc(&key(2, length)).unwrap()));
            ciphers.push(("gcm", Cipher::gcm(&key(1, length)).unwrap(), Cipher::gcm(&key(2, length)).unwrap()));
        }
        ciphers
    }

    #[test]
    fn what_is_sealed_can_be_opened_with_the_same_key_only() {
        for (name, cipher, other) in all() {
            for plain in [&b""[..], b"x", b"0123456789abcdef", &[7; 1000]] {
                let sealed = cipher.seal(plain, b"/registry/a").unwrap();
                assert_eq!(cipher.open(&sealed, b"/registry/a").unwrap(), plain, "{name}");
                assert_ne!(cipher.seal(plain, b"/registry/a").unwrap(), sealed, "{name}: nothing is random");
                // Without authentication another key may give bytes that look padded, but never these.
                assert_ne!(other.open(&sealed, b"/registry/a").ok().as_deref().unwrap_or(b"-"), plain, "{name}");
            }
        }
        let seed = ExtendedNonce::new(&[1; 32]).unwrap();
        let sealed = seed.seal(b"plain", b"k").unwrap();
        assert_eq!(seed.open(&sealed, b"k").unwrap(), b"plain");
        assert!(ExtendedNonce::new(&[2; 32]).unwrap().open(&sealed, b"k").is_err());
        assert!(ExtendedNonce::new(&[2; 31]).is_err());
    }

    #[test]
    fn security_changed_and_cut_values_are_refused() {
        for (name, cipher, _) in all() {
            let sealed = cipher.seal(b"a secret of some length", b"/registry/a").unwrap();
            for length in 0..sealed.len() {
                let opened = cipher.open(&sealed[..length], b"/registry/a");
                assert!(opened.is_err() || name == "cbc", "{name}: cut to {length}");
                assert_ne!(opened.ok().as_deref(), Some(&b"a secret of some length"[..]));
            }
            if name == "cbc" {
                continue;
            }
            for at in 0..sealed.len() {
                let mut changed = sealed.clone();
                changed[at] ^= 1;
                assert!(cipher.open(&changed, b"/registry/a").is_err(), "{name}: byte {at} changed");
            }
        }
    }

    #[test]
    fn security_values_cannot_be_moved_to_other_keys() {
        let gcm = Cipher::gcm(&[1; 32]).unwrap();
        let sealed = gcm.seal(b"plain", b"/registry/secrets/a/b").unwrap();
        assert!(gcm.open(&sealed, b"/registry/secrets/a/c").is_err());
        let seed = ExtendedNonce::new(&[1; 32]).unwrap();
        let sealed = seed.seal(b"plain", b"/registry/secrets/a/b").unwrap();
        assert!(seed.open(&sealed, b"/registry/secrets/a/c").is_err());
    }

    /// AES-CBC by NIST SP 800-38A F.2.1 with a block of padding, AES-GCM by another implementation, secretbox by NaCl's
    /// own test, and the derivation of keys by RFC 5869.
    #[test]
    fn fixed_values_open() {
        for (cipher, context, sealed, plain) in VECTORS {
            assert_eq!(cipher().open(&hex(sealed), context.as_bytes()).unwrap(), hex(plain));
        }
        let prk = hex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
        let mut derived = [0; 32];
        let info = hex("f0f1f2f3f4f5f6f7f8f9");
        let info = [&info[..]];
        let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &prk);
        prk.expand(&info, hkdf::HKDF_SHA256).unwrap().fill(&mut derived).unwrap();
        assert_eq!(derived[..], hex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"));
        let seed: Vec<u8> = (0..32).collect();
        let sealed = hex(EXTENDED);
        assert_eq!(ExtendedNonce::new(&seed).unwrap().open(&sealed, b"/registry/secrets/a/b").unwrap(), b"plain");
    }

    type Vector = (fn() -> Cipher, &'static str, &'static str, &'static str);

    const VECTORS: &[Vector] = &[
        (
            || Cipher::cbc(&hex("2b7e151628aed2a6abf7158809cf4f3c")).unwrap(),
            "",
            "000102030405060708090a0b0c0d0e0f7649abac8119b246cee98e9b12e9197d5086cb9b507219ee95db113a917678b255e21d7100b988ffec32feeafaf23538",
            "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51",
        ),
        (
            || Cipher::gcm(&hex("000102030405060708090a0b0c0d0e0f")).unwrap(),
            "/registry/secrets/a/b",
            "000102030405060708090a0be300c6a7088acc3f450e45c7c1803c5e9ddbe561da",
            "706c61696e",
        ),
        (
            || Cipher::gcm(&hex("000102030405060708090a0b0c0d0e0f1011121314151617")).unwrap(),
            "/registry/secrets/a/b",
            "000102030405060708090a0b969543f2f7bcf49ed4e8f4a3802d6d127f46ce9e27",
            "706c61696e",
        ),
        (
            || Cipher::gcm(&hex("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")).unwrap(),
            "/registry/secrets/a/b",
            "000102030405060708090a0b376eb772abd70827c043a61a7e3c62a5866e0f8d21",
            "706c61696e",
        ),
        (
            || Cipher::secretbox(&hex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389")).unwrap(),
            "",
            "69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186ac0dfc17c98dce87b4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae90224368517acfeabd6bb3732bc0e9da99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5",
            "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c61296cdc3c01233561f41db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde048977eb48f59ffd4924ca1c60902e52f0a089bc76897040e082f937763848645e0705",
        ),
    ];
    const EXTENDED: &str = "6465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80818283000102030405060708090a0bdc1fb4b3cd76cdea8bfa11612a1e9d513316fa0380";
}
