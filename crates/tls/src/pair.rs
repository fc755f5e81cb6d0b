//! A client's certificate and its key: two files, which somebody may be exchanging one after the other.

use std::time::Duration;

use rustls::InconsistentKeys;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;

/// How often, and how long apart, files are read again that do not belong together.
const EXCHANGE_READS: usize = 20;
const EXCHANGE_PAUSE: Duration = Duration::from_millis(5);

/// Certificate chain and key in PEM.
pub type Pair = (Vec<u8>, Vec<u8>);

/// What `read` finds in files, read again until the key belongs to the certificate or has had its time to.
pub fn read_pair<E>(read: impl Fn() -> Result<Option<Pair>, E>) -> Result<Option<Pair>, E> {
    let mut found = read()?;
    for _ in 0..EXCHANGE_READS {
        if found.as_ref().is_none_or(is_pair) {
            break;
        }
        std::thread::sleep(EXCHANGE_PAUSE);
        found = read()?;
    }
    Ok(found)
}

/// Whether the key is that of the certificate. What cannot be read is told of where it is used.
pub fn is_pair((chain, key): &Pair) -> bool {
    let (Ok(chain), Ok(key)) = (crate::certificates(chain), PrivateKeyDer::from_pem_slice(key)) else { return true };
    let made = CertifiedKey::from_der(chain, key, &crate::provider());
    !matches!(made, Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)))
}
