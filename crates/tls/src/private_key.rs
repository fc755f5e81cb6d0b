//! Private keys in the forms that tools write them in: the libraries that sign read only PKCS#8.

use rustls_pki_types::PrivateKeyDer;

use crate::der::element;

/// AlgorithmIdentifier of RSA.
const RSA: &[u8] = &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
/// The object identifiers of elliptic curves and of the two of them that are in use.
const EC: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];

/// The key as PKCS#8; none if it is of a kind that nobody signs with here.
pub fn pkcs8(key: &PrivateKeyDer<'_>) -> Option<Vec<u8>> {
    match key {
        PrivateKeyDer::Pkcs8(der) => Some(der.secret_pkcs8_der().to_vec()),
        PrivateKeyDer::Pkcs1(der) => Some(wrapped(RSA, der.secret_pkcs1_der())),
        PrivateKeyDer::Sec1(der) => {
            let der = der.secret_sec1_der();
            let is_on = |curve: &&&[u8]| der.windows(curve.len()).any(|part| part == **curve);
            // One that does not say has the length of the first.
            let curve = [P256, P384].iter().find(is_on).copied().unwrap_or(P256);
            Some(wrapped(&element(0x30, &[EC, curve].concat()), der))
        }
        _ => None,
    }
}

fn wrapped(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    element(0x30, &[&[0x02, 0x01, 0x00], algorithm, &element(0x04, key)].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};

    /// What stands in the wrapping, and how long the parts before it are.
    fn inner(pkcs8: &[u8]) -> &[u8] {
        let body = |der: &'_ [u8]| -> (usize, usize) {
            match der[1] {
                short if short < 0x80 => (2, short.into()),
                0x81 => (3, der[2].into()),
                _ => (4, usize::from(der[2]) << 8 | usize::from(der[3])),
            }
        };
        let (start, _) = body(pkcs8);
        let rest = &pkcs8[start + 3..];
        let (start, length) = body(rest);
        let rest = &rest[start + length..];
        let (start, length) = body(rest);
        &rest[start..start + length]
    }

    #[test]
    fn keys_of_all_forms_become_one() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let der = pair.serialize_der();
        let read = PrivateKeyDer::from_pem_slice(pair.serialize_pem().as_bytes()).unwrap();
        assert_eq!(pkcs8(&read).unwrap(), der);
        let sec1 = inner(&der).to_vec();
        let wrapped = pkcs8(&PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(sec1))).unwrap();
        assert_eq!(wrapped, der);
        // Long enough for lengths of two bytes.
        let rsa = vec![7; 1190];
        let wrapped = pkcs8(&PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(rsa.clone()))).unwrap();
        assert_eq!(inner(&wrapped), rsa);
        assert_eq!(&wrapped[..7], [0x30, 0x82, 0x04, 0xbc, 0x02, 0x01, 0x00]);
        let again = pkcs8(&PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(wrapped.clone()))).unwrap();
        assert_eq!(again, wrapped);
    }
}
