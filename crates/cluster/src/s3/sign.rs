//! Signatures of requests to S3 (AWS Signature Version 4): pure.

use api::sort::CompactSort as _;
use jiff::Timestamp;
use ring::digest::{SHA256, digest};
use ring::hmac;

/// Who asks. Never printed.
#[derive(Clone)]
pub(crate) struct Credentials {
    pub access_key: String,
    pub secret_key: String,
    pub session_token: Option<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

/// A request, as far as it is signed.
pub(super) struct Signed<'r> {
    pub method: &'r str,
    pub host: &'r str,
    /// With everything escaped that has to be.
    pub path: &'r str,
    /// Names and values as they are.
    pub query: &'r [(&'r str, String)],
    /// In lower case.
    pub headers: &'r [(&'r str, String)],
    pub payload: &'r [u8],
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    api::hex::encode(digest(&SHA256, bytes))
}

/// Escaped as S3 escapes: everything but letters, digits and a few signs. Slashes stay in paths.
pub(super) fn escape(text: &str, keeps_slashes: bool) -> String {
    api::percent::encode_except(text, |byte| api::percent::is_unreserved(byte) || (keeps_slashes && byte == b'/'))
}

/// A query as it is sent and signed, in order.
pub(super) fn query(pairs: &[(&str, String)]) -> String {
    let mut all: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{}={}", escape(name, false), escape(value, false))).collect();
    all.compact_sort();
    all.join("&")
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

/// The headers to send besides: date, digest, token, and the signature over everything.
pub(super) fn sign(
    request: &Signed<'_>,
    credentials: &Credentials,
    region: &str,
    now: Timestamp,
) -> Vec<(String, String)> {
    let (moment, day) = (now.strftime("%Y%m%dT%H%M%SZ").to_string(), now.strftime("%Y%m%d").to_string());
    let digest = sha256(request.payload);
    let own = [("x-amz-content-sha256", digest.clone()), ("x-amz-date", moment.clone())];
    let token = credentials.session_token.iter().map(|token| ("x-amz-security-token", token.clone()));
    let added: Vec<(&str, String)> = own.into_iter().chain(token).collect();
    let mut headers: Vec<(&str, &str)> = vec![("host", request.host)];
    headers.extend(request.headers.iter().chain(&added).map(|(name, value)| (*name, value.trim())));
    headers.compact_sort();
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let canonical = [request.method, request.path, &query(request.query), &lines, &names, &digest].join("\n");
    let scope = format!("{day}/{region}/s3/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{moment}\n{scope}\n{}", sha256(canonical.as_bytes()));
    let key = ["s3", "aws4_request"]
        .into_iter()
        .fold(mac(&mac(format!("AWS4{}", credentials.secret_key).as_bytes(), &day), region), |key, part| {
            mac(&key, part)
        });
    let signature = api::hex::encode(mac(&key, &text));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        credentials.access_key
    );
    let mut all: Vec<(String, String)> = added.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    all.push(("authorization".to_owned(), authorization));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(
        method: &str,
        path: &str,
        query: &[(&str, String)],
        headers: &[(&str, String)],
        payload: &[u8],
    ) -> String {
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
        };
        let request = Signed { method, host: "examplebucket.s3.amazonaws.com", path, query, headers, payload };
        let at = "2013-05-24T00:00:00Z".parse().unwrap();
        let headers = sign(&request, &credentials, "us-east-1", at);
        headers.last().unwrap().1.rsplit_once('=').unwrap().1.to_owned()
    }

    /// The examples of Amazon's documentation.
    #[test]
    fn requests_are_signed_as_documented() {
        let text = |text: &str| text.to_owned();
        assert_eq!(
            signature("GET", "/test.txt", &[], &[("range", text("bytes=0-9"))], b""),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let put =
            [("date", text("Fri, 24 May 2013 00:00:00 GMT")), ("x-amz-storage-class", text("REDUCED_REDUNDANCY"))];
        assert_eq!(
            signature("PUT", &escape("/test$file.text", true), &[], &put, b"Welcome to Amazon S3."),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        );
        assert_eq!(
            signature("GET", "/", &[("lifecycle", String::new())], &[], b""),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
        assert_eq!(
            signature("GET", "/", &[("max-keys", text("2")), ("prefix", text("J"))], &[], b""),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    #[test]
    fn security_credentials_are_not_printed() {
        let credentials =
            Credentials { access_key: "key".into(), secret_key: "secret".into(), session_token: Some("token".into()) };
        assert_eq!(format!("{credentials:?}"), "Credentials");
    }
}
