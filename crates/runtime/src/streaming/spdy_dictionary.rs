//! The dictionary that SPDY/3 header compression begins with (SPDY protocol, draft 3, section 2.6.10.1): common header
//! names and values, each with its length, then a run of longer texts.

#[rustfmt::skip]
const WORDS: &[&str] = &[
    "options", "head", "post", "put", "delete", "trace", "accept", "accept-charset", "accept-encoding",
    "accept-language", "accept-ranges", "age", "allow", "authorization", "cache-control", "connection",
    "content-base", "content-encoding", "content-language", "content-length", "content-location", "content-md5",
    "content-range", "content-type", "date", "etag", "expect", "expires", "from", "host", "if-match",
    "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified", "location",
    "max-forwards", "pragma", "proxy-authenticate", "proxy-authorization", "range", "referer", "retry-after",
    "server", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "vary", "via", "warning",
    "www-authenticate", "method", "get", "status", "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie",
    "keep-alive", "origin",
];

#[rustfmt::skip]
const TAIL: &[&str] = &[
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 No",
    "n-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403",
    " Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Fe",
    "b Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunke",
    "d,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/",
    "javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.",
];

/// The dictionary's bytes.
pub(super) fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in WORDS {
        bytes.extend((word.len() as u32).to_be_bytes());
        bytes.extend(word.as_bytes());
    }
    TAIL.iter().for_each(|text| bytes.extend(text.as_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    #[test]
    fn dictionary_is_the_standard_one() {
        let bytes = super::dictionary();
        assert_eq!(bytes.len(), 1423);
        // zlib names a dictionary by its Adler-32; this is the one that streams of SPDY/3 ask for.
        let (mut a, mut b) = (1u32, 0u32);
        for byte in bytes {
            a = (a + u32::from(byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!(b << 16 | a, 0xe3c6a7c2);
    }
}
