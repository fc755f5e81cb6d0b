//! Signatures of `cluster-info`: a JWS (HS256) without its content, keyed by a token's secret.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

/// What stands before a token's id in the key of its signature.
pub const PREFIX: &str = "jws-kubeconfig-";

pub fn sign(content: &str, id: &str, secret: &str) -> String {
    // The order of the fields is part of what is signed.
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let signature = hmac::sign(&key(secret), message(&header, content).as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Whether whoever signed knows the token's secret, and meant this content.
pub fn verify(content: &str, id: &str, secret: &str, signature: &str) -> bool {
    let parts = || {
        let (header, signature) = signature.split_once("..")?;
        let fields: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        let is_known = fields["alg"] == "HS256" && fields["kid"] == id;
        is_known.then_some((header, URL_SAFE_NO_PAD.decode(signature).ok()?))
    };
    let Some((header, signature)) = parts() else { return false };
    hmac::verify(&key(secret), message(header, content).as_bytes(), &signature).is_ok()
}

fn key(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
}

fn message(header: &str, content: &str) -> String {
    format!("{header}.{}", URL_SAFE_NO_PAD.encode(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_secret_can_sign() {
        let signature = sign("content", "abcdef", "0123456789abcdef");
        assert!(verify("content", "abcdef", "0123456789abcdef", &signature));
        let unsigned = format!("{}..", URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"abcdef"}"#));
        for (content, id, secret, signature) in [
            ("another", "abcdef", "0123456789abcdef", signature.as_str()),
            ("content", "fedcba", "0123456789abcdef", &signature),
            ("content", "abcdef", "fedcba9876543210", &signature),
            ("content", "abcdef", "0123456789abcdef", "x..y"),
            ("content", "abcdef", "0123456789abcdef", ""),
            ("content", "abcdef", "0123456789abcdef", &unsigned),
        ] {
            assert!(!verify(content, id, secret, signature), "{content} {id} {signature}");
        }
    }
}
