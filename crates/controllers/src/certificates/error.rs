//! Why a request gets no certificate.

use rustls_pki_types::pem;
use x509_parser::error::X509Error;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Pem(#[from] pem::Error),
    /// Readers would find different requests in it.
    #[error("unable to parse csr: it must be exactly one PEM block")]
    Block,
    #[error("unable to parse csr: {0}")]
    Request(rcgen::Error),
    #[error("unable to parse csr: {0}")]
    Subject(String),
    #[error("unable to parse csr: {0}")]
    Malformed(&'static str),
    /// The signer does not grant this.
    #[error("{0}")]
    Refused(&'static str),
    /// Of the authority.
    #[error("neither RSA nor ECDSA")]
    KindOfKey,
    #[error(transparent)]
    Signing(#[from] rcgen::Error),
    #[error("the certificate cannot be read again: {0}")]
    Certificate(String),
}

impl From<X509Error> for Error {
    fn from(error: X509Error) -> Self {
        Error::Subject(error.to_string())
    }
}
