//! The subject of a certificate request, as it was written: a certificate must name all the groups that were asked for,
//! and rcgen keeps one attribute of a kind.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, SigningKey};
use tls::der::element;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use super::error::Error;

/// A name, and the attributes of it that mean something here.
pub(super) struct Subject {
    der: Vec<u8>,
    pub(super) common_name: String,
    pub(super) organizations: Vec<String>,
}

impl Subject {
    /// An attribute may stand alone or with others in one part of the name.
    pub(super) fn of_name(name: &X509Name<'_>) -> Result<Self, Error> {
        let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().map(String::from);
        let all = |values: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
            values.into_iter().map(text).collect::<Result<Vec<_>, _>>()
        };
        Ok(Subject {
            der: name.as_raw().to_vec(),
            // As Go reads it, the last one counts.
            common_name: all(name.iter_common_name().collect())?.pop().unwrap_or_default(),
            organizations: all(name.iter_organization().collect())?,
        })
    }

    /// The certificate with this subject in place of its own, signed again; in PEM.
    pub(super) fn put_into(&self, certificate: &[u8], key: &KeyPair) -> Result<String, Error> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|error| Error::Certificate(error.to_string()))?;
        let signed: &[u8] = parsed.tbs_certificate.as_ref();
        let old = parsed.tbs_certificate.subject().as_raw();
        // Both are parts of `certificate`.
        let at = old.as_ptr() as usize - signed.as_ptr() as usize;
        let content = [&signed[header(signed)..at], self.der.as_slice(), &signed[at + old.len()..]].concat();
        let content = element(SEQUENCE, &content);
        let rest = &certificate[header(certificate) + signed.len()..];
        let algorithm = &rest[..header(rest) + length(rest)];
        let signature = key.sign(&content)?;
        let signature = element(BIT_STRING, &[&[0], signature.as_slice()].concat());
        let der = element(SEQUENCE, &[content.as_slice(), algorithm, signature.as_slice()].concat());
        Ok(pem(&der))
    }
}

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// How long tag and length of the element at the start are. It was parsed before: it is whole.
fn header(der: &[u8]) -> usize {
    match der[1] {
        0..=0x7f => 2,
        long => 2 + usize::from(long & 0x7f),
    }
}

/// How long the content of the element at the start is.
fn length(der: &[u8]) -> usize {
    match der[1] {
        short @ 0..=0x7f => short.into(),
        _ => der[2..header(der)].iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
    }
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = after;
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of a name, of these attributes: the last byte of their kind (2.5.4.x), and their text.
    fn part(attributes: &[(u8, &str)]) -> Vec<u8> {
        let attribute = |(kind, text): &(u8, &str)| {
            let kind = element(0x06, &[0x55, 0x04, *kind]);
            element(SEQUENCE, &[kind, element(0x0c, text.as_bytes())].concat())
        };
        element(0x31, &attributes.iter().flat_map(attribute).collect::<Vec<u8>>())
    }

    #[test]
    fn attributes_count_wherever_they_stand() {
        const COMMON_NAME: u8 = 3;
        const ORGANIZATION: u8 = 10;
        let der = element(
            SEQUENCE,
            &[
                part(&[(ORGANIZATION, "a"), (ORGANIZATION, "b"), (COMMON_NAME, "first")]),
                part(&[(ORGANIZATION, "c")]),
                part(&[(COMMON_NAME, "last")]),
            ]
            .concat(),
        );
        let (_, name) = X509Name::from_der(&der).unwrap();
        let subject = Subject::of_name(&name).unwrap();
        assert_eq!(
            (subject.common_name.as_str(), subject.organizations),
            ("last", ["a", "b", "c"].map(String::from).to_vec())
        );
    }
}
