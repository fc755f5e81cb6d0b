//! Copies in a bucket of an S3 endpoint: put, listed, fetched and removed, each request signed.
//!
//! A copy that is larger than a part is put in parts, which become one object at the end or none. Answers are bounded, and
//! requests have a deadline.

mod flags;
mod sign;

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::sort::CompactSort as _;
use bytes::Bytes;
use client::kubeconfig::{Cluster, Context as KubeContext, Kubeconfig, NamedCluster, NamedContext, Overrides};
use client::{Body, Client, Clock};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;

pub(crate) use flags::{Place, S3Flags};
use sign::{Signed, escape, query, sign};

/// Of an object that is put in several requests; S3 has up to ten thousand.
const PART: usize = 16 << 20;
const MAX_PARTS: u64 = 10_000;
/// For one request, with a part on its way.
const TIMEOUT: Duration = Duration::from_secs(300);
/// A page of a list, or an answer that says what is wrong.
const MAX_ANSWER: usize = 4 << 20;
/// Pages of a list, of a thousand names each.
const MAX_PAGES: usize = 100;

/// A bucket that is open.
pub(crate) struct Bucket {
    place: Place,
    client: Client,
    clock: Clock,
}

/// The texts in elements of a name, however deep.
fn elements<'x>(xml: &'x str, name: &str) -> Vec<&'x str> {
    let (start, end) = (format!("<{name}>"), format!("</{name}>"));
    let parts = xml.split(start.as_str()).skip(1);
    parts.filter_map(|part| part.split(end.as_str()).next()).collect()
}

fn unescape(text: &str) -> String {
    let pairs = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

impl Bucket {
    pub(crate) fn open(place: &Place) -> Result<Bucket> {
        let authority = place.authority.as_ref().map(|path| path.display().to_string());
        let cluster =
            Cluster { server: Some(place.server.clone()), certificate_authority: authority, ..Cluster::default() };
        let name = "s3".to_owned();
        let config = Kubeconfig {
            clusters: vec![NamedCluster { name: name.clone(), cluster }],
            contexts: vec![NamedContext {
                name: name.clone(),
                context: KubeContext { cluster: name.clone(), ..KubeContext::default() },
            }],
            current_context: name,
            ..Kubeconfig::default()
        };
        let client = Client::from_kubeconfig(&config, &Overrides::default())?;
        Ok(Bucket { place: place.clone(), client, clock: Clock::default() })
    }

    async fn send(&self, method: &str, key: &str, pairs: &[(&str, String)], payload: Bytes) -> Result<Response<Body>> {
        let path = format!("{}{}", self.place.path, escape(key, true));
        let signed =
            Signed { method, host: &self.place.host, path: &path, query: pairs, headers: &[], payload: &payload };
        let headers = sign(&signed, &self.place.credentials()?, &self.place.region, self.clock.now());
        let uri = if pairs.is_empty() { path.clone() } else { format!("{path}?{}", query(pairs)) };
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let sent = tokio::time::timeout(TIMEOUT, self.client.send(request.body(payload)?)).await;
        let response = sent.with_context(|| format!("{} does not answer", self.place))??;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refused(response).await)
    }

    /// What a refusal says, without what it was asked.
    async fn refused(&self, response: Response<Body>) -> anyhow::Error {
        let status = response.status();
        let text = self.text(response).await.unwrap_or_default();
        let said = |name: &str| elements(&text, name).first().map(|text| unescape(text)).unwrap_or_default();
        // A wrong signature is answered with all that was signed; none of it is needed.
        anyhow::anyhow!("{} answered {status} {} {}", self.place, said("Code"), said("Message"))
    }

    async fn text(&self, response: Response<Body>) -> Result<String> {
        let (mut body, mut read) = (response.into_body(), Vec::new());
        while let Some(bytes) = self.next(&mut body).await? {
            if read.len() + bytes.len() > MAX_ANSWER {
                bail!("{} answers without end", self.place);
            }
            read.extend_from_slice(&bytes);
        }
        Ok(String::from_utf8_lossy(&read).into_owned())
    }

    /// The next piece of an answer; none at its end.
    async fn next(&self, body: &mut Body) -> Result<Option<Bytes>> {
        loop {
            let frame = tokio::time::timeout(TIMEOUT, body.frame()).await;
            let Some(frame) = frame.with_context(|| format!("the answer of {} does not go on", self.place))? else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| anyhow::anyhow!("{}: {error}", self.place))?;
            // What is behind the body does not matter.
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
    }

    /// Names of objects that begin so, in order.
    pub(crate) async fn list(&self, beginning: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut after: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut pairs = vec![("list-type", "2".to_owned()), ("prefix", beginning.to_owned())];
            pairs.extend(after.take().map(|token| ("continuation-token", token)));
            let text = self.text(self.send("GET", "", &pairs, Bytes::new()).await?).await?;
            if !text.contains("<ListBucketResult") {
                bail!("{} answers with something else than a list", self.place);
            }
            names.extend(elements(&text, "Key").iter().map(|name| unescape(name)));
            after = elements(&text, "NextContinuationToken").first().map(|token| unescape(token));
            if after.is_none() && elements(&text, "IsTruncated").first() == Some(&"true") {
                bail!("{} answers with a part of a list, and does not say how it goes on", self.place);
            }
            if after.is_none() {
                names.compact_sort();
                return Ok(names);
            }
        }
        bail!("{} has too many objects that begin with {beginning}", self.place)
    }

    pub(crate) async fn put(&self, key: &str, file: &Path) -> Result<()> {
        self.put_by(key, file, PART).await.with_context(|| format!("putting {key}"))
    }

    async fn put_by(&self, key: &str, file: &Path, part: usize) -> Result<()> {
        let size = std::fs::metadata(file).with_context(|| file.display().to_string())?.len();
        let mut file = File::open(file).with_context(|| file.display().to_string())?;
        if size <= part as u64 {
            return self.send("PUT", key, &[], next_part(&mut file, part)?).await.map(drop);
        }
        if size.div_ceil(part as u64) > MAX_PARTS {
            bail!("it is too large: {size} bytes");
        }
        let begun = self.text(self.send("POST", key, &[("uploads", String::new())], Bytes::new()).await?).await?;
        let id = elements(&begun, "UploadId").first().map(|id| unescape(id)).context("no upload was begun")?;
        let put = self.put_parts(key, &id, &mut file, part).await;
        if put.is_err() {
            // Or its parts would be kept, and paid for, for ever.
            let ended = self.send("DELETE", key, &[("uploadId", id)], Bytes::new()).await;
            if let Err(error) = ended {
                tracing::warn!("{key}: parts that were put are still there: {error:#}");
            }
        }
        put
    }

    async fn put_parts(&self, key: &str, id: &str, file: &mut File, part: usize) -> Result<()> {
        let mut done = String::new();
        for number in 1.. {
            let bytes = next_part(file, part)?;
            if bytes.is_empty() {
                break;
            }
            let pairs = [("partNumber", number.to_string()), ("uploadId", id.to_owned())];
            let response = self.send("PUT", key, &pairs, bytes).await?;
            let tag =
                response.headers().get("etag").and_then(|tag| tag.to_str().ok()).context("a part without a tag")?;
            let tag = tag.replace('&', "&amp;").replace('<', "&lt;");
            done.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"));
        }
        let done = format!("<CompleteMultipartUpload>{done}</CompleteMultipartUpload>");
        let response = self.send("POST", key, &[("uploadId", id.to_owned())], done.into()).await?;
        // Said too late for another status.
        let text = self.text(response).await?;
        match elements(&text, "Code").first() {
            Some(code) if text.contains("<Error>") => bail!("{} answered {}", self.place, unescape(code)),
            _ => Ok(()),
        }
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        self.send("DELETE", key, &[], Bytes::new()).await.map(drop).with_context(|| format!("removing {key}"))
    }

    /// Writes an object into a file that only its owner can read, and that must not exist.
    pub(crate) async fn fetch(&self, key: &str, path: &Path) -> Result<u64> {
        use std::os::unix::fs::OpenOptionsExt;
        let response = self.send("GET", key, &[], Bytes::new()).await?;
        if response.status() != StatusCode::OK {
            bail!("{} answered {} for {key}", self.place, response.status());
        }
        let open = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = open.with_context(|| path.display().to_string())?;
        let written = self.write(key, path, file, response).await;
        if written.is_err() {
            // Half a copy is none, and would be in the way of the next attempt.
            let removed = std::fs::remove_file(path);
            removed.unwrap_or_else(|error| tracing::warn!("{} is only a part of {key}: {error}", path.display()));
        }
        written
    }

    async fn write(&self, key: &str, path: &Path, mut file: File, response: Response<Body>) -> Result<u64> {
        let expected =
            response.headers().get("content-length").and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let (mut body, mut size) = (response.into_body(), 0);
        while let Some(bytes) = self.next(&mut body).await? {
            file.write_all(&bytes).with_context(|| path.display().to_string())?;
            size += bytes.len() as u64;
        }
        file.sync_all().with_context(|| path.display().to_string())?;
        if expected.is_some_and(|expected| expected != size) {
            bail!("{key} ended after {size} bytes");
        }
        Ok(size)
    }
}

/// As much as there is, a part at most.
fn next_part(file: &mut File, part: usize) -> Result<Bytes> {
    let mut bytes = Vec::new();
    file.take(part as u64).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use testkit::s3::{ACCESS_KEY, BUCKET, REGION, S3, SECRET_KEY};

    fn credentials(dir: &Path, secret: &str) -> PathBuf {
        let path = dir.join("credentials");
        std::fs::write(&path, format!("[default]\naws_access_key_id={ACCESS_KEY}\naws_secret_access_key={secret}\n"))
            .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn place(server: &S3, scheme: &str, dir: &Path) -> Place {
        let flags = S3Flags {
            backup_s3_endpoint: Some(format!("{scheme}://127.0.0.1:{}", server.port)),
            backup_s3_bucket: Some(BUCKET.into()),
            backup_s3_prefix: Some("clusters/a & b/".into()),
            backup_s3_region: Some(REGION.into()),
            backup_s3_credentials: Some(credentials(dir, SECRET_KEY)),
            ..S3Flags::default()
        };
        flags.place().unwrap().unwrap()
    }

    #[tokio::test]
    async fn objects_are_put_listed_fetched_and_removed() {
        let (server, dir) = (S3::start(3, None), tempfile::tempdir().unwrap());
        let place = place(&server, "http", dir.path());
        let bucket = Bucket::open(&place).unwrap();
        let file = dir.path().join("copy");
        let content: Vec<u8> = (0..2_500_000u32).map(|number| (number % 251) as u8).collect();
        std::fs::write(&file, &content).unwrap();
        // At once, and in parts of which the last is smaller.
        for (number, part) in [PART, 1_000_000, 1_250_000].into_iter().enumerate() {
            let key = format!("{}copy+{number}.snap", place.prefix);
            bucket.put_by(&key, &file, part).await.unwrap();
            let fetched = dir.path().join(format!("fetched-{number}"));
            assert_eq!(bucket.fetch(&key, &fetched).await.unwrap(), content.len() as u64);
            assert_eq!(std::fs::read(&fetched).unwrap(), content);
            assert_eq!(std::fs::metadata(&fetched).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(bucket.fetch(&key, &fetched).await.is_err(), "nothing is written over");
        }
        for number in 3..8 {
            bucket.put(&format!("{}copy+{number}.snap", place.prefix), &file).await.unwrap();
        }
        bucket.put("clusters/other", &file).await.unwrap();
        let names: Vec<String> = (0..8).map(|number| format!("{}copy+{number}.snap", place.prefix)).collect();
        assert_eq!(bucket.list(&place.prefix).await.unwrap(), names);
        bucket.delete(&names[0]).await.unwrap();
        assert_eq!(bucket.list(&place.prefix).await.unwrap(), names[1..]);
        let missing = bucket.fetch(&names[0], &dir.path().join("x")).await.unwrap_err().to_string();
        assert!(missing.contains("404 Not Found NoSuchKey"), "{missing}");
        assert!(!dir.path().join("x").exists());

        // Half a copy is none.
        bucket.put("clusters/cut-short", &file).await.unwrap();
        let cut = dir.path().join("cut");
        assert!(bucket.fetch("clusters/cut-short", &cut).await.is_err());
        assert!(!cut.exists());

        // An upload that fails half-way leaves nothing.
        std::fs::write(&file, [&content[..2_000_000], b"no part of this"].concat()).unwrap();
        let failed = bucket.put_by("clusters/half", &file, 1_000_000).await.unwrap_err().to_string();
        assert!(failed.contains("500"), "{failed}");
        assert_eq!(bucket.list("clusters/half").await.unwrap(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn security_only_the_right_key_and_the_right_server_will_do() {
        let dir = tempfile::tempdir().unwrap();
        let pair = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&pair).unwrap();
        let (crt, key) = (dir.path().join("s3.crt"), dir.path().join("s3.key"));
        std::fs::write(&crt, certificate.pem()).unwrap();
        std::fs::write(&key, pair.serialize_pem()).unwrap();
        let server = S3::start(3, Some((&crt, &key)));
        let unknown = place(&server, "https", dir.path());
        assert!(Bucket::open(&unknown).unwrap().list("").await.is_err(), "nobody vouches for this server");
        let known = Place { authority: Some(crt), ..unknown };
        assert_eq!(Bucket::open(&known).unwrap().list("").await.unwrap(), Vec::<String>::new());
        // Read for each request.
        credentials(dir.path(), "another/secret");
        let refused = format!("{:#}", Bucket::open(&known).unwrap().list("").await.unwrap_err());
        assert!(refused.contains("SignatureDoesNotMatch"), "{refused}");
        assert!(!refused.contains("another/secret") && !refused.contains(ACCESS_KEY), "{refused}");
    }
}
