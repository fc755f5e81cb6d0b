//! `-f`: files, directories, globs, URLs and stdin, in JSON or (multi-document) YAML, with lists taken apart.

use std::path::Path;

use api::sort::CompactSort as _;
use api::yaml::Rules;
use serde_json::Value;

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::go_errors::go_io_error;
use crate::manifests::{Manifest, flatten};

/// How errors name standard input.
pub(crate) const STDIN: &str = "STDIN";

const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// One file, URL or standard input: its documents up to the first that cannot be read, which ends it.
pub(crate) struct Stream {
    pub(crate) source: String,
    pub(crate) documents: Vec<Value>,
    pub(crate) failure: Option<Failure>,
}

impl Stream {
    fn read(text: &str, source: &str) -> Stream {
        let (documents, failure) = api::documents::read_all(text, Rules::Full);
        let failure = failure.map(|e| Failure::message(format!("error parsing {source}: {e}")));
        Stream { source: source.to_owned(), documents, failure }
    }
}

/// Every object of the files, or the first failure.
pub(crate) async fn read_manifests(cx: &Context) -> Result<Vec<Manifest>> {
    let mut out = Vec::new();
    for Stream { source, documents, failure } in read_streams(cx).await? {
        for document in documents {
            flatten(document, &source, &mut out)?;
        }
        failure.map_or(Ok(()), Err)?;
    }
    Ok(out)
}

/// Everything that `-f`, `-k` and `-R` name. A path that is not there fails all of it, before anything is read.
pub(crate) async fn read_streams(cx: &Context) -> Result<Vec<Stream>> {
    let files = cx.flags.list("filename");
    let kustomize = if cx.flags.has_flag("kustomize") { cx.flags.string("kustomize") } else { String::new() };
    let recursive = cx.flags.has_flag("recursive") && cx.flags.bool("recursive");
    if !files.is_empty() && !kustomize.is_empty() {
        return Err(Failure::message("only one of -f or -k can be specified"));
    }
    if !kustomize.is_empty() {
        if recursive {
            return Err(Failure::message("the -k flag can't be used with -f or -R"));
        }
        let text = crate::kustomize::build(Path::new(&kustomize), crate::kustomize::LoadRestrictor::RootOnly)
            .map_err(|error| Failure::message(error.to_string()))?;
        return Ok(vec![Stream::read(&text, &kustomize)]);
    }
    if files.iter().filter(|f| *f == "-").count() > 1 {
        return Err(Failure::message("standard input cannot be used for multiple arguments"));
    }
    let (mut places, mut failures) = (Vec::new(), Vec::new());
    for file in &files {
        match places_of(file, recursive) {
            Ok(found) => places.extend(found),
            Err(e) => failures.push(e),
        }
    }
    Failure::all(failures)?;
    let mut out = Vec::new();
    for place in places {
        out.push(match read_place(cx, &place).await {
            Ok(text) => Stream::read(&text, if place == "-" { STDIN } else { &place }),
            Err(e) => Stream { source: place, documents: Vec::new(), failure: Some(e) },
        });
    }
    Ok(out)
}

fn is_url(file: &str) -> bool {
    file.starts_with("http://") || file.starts_with("https://")
}

/// The files that one `-f` stands for; URLs and standard input stand for themselves.
fn places_of(file: &str, recursive: bool) -> Result<Vec<String>> {
    if file == "-" || is_url(file) {
        return Ok(vec![file.to_owned()]);
    }
    let mut paths = vec![file.to_owned()];
    if !Path::new(file).exists() && file.contains(['*', '?', '[']) {
        paths = glob(file);
    }
    let mut out = Vec::new();
    for path in paths {
        out.extend(expand(&path, recursive)?);
    }
    if out.is_empty() {
        return Err(Failure::message(format!(
            "error reading [{file}]: recognized file extensions are [.json .yaml .yml]"
        )));
    }
    Ok(out)
}

async fn read_place(cx: &Context, place: &str) -> Result<String> {
    let bytes = match place {
        "-" => cx.read_stdin()?,
        url if is_url(url) => return read_url(url).await,
        path => std::fs::read(path).map_err(|e| Failure::message(go_io_error("open", path, &e)))?,
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A directory's manifests in name order; below it too with `-R`.
fn expand(path: &str, recursive: bool) -> Result<Vec<String>> {
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Failure::message(format!("the path \"{path}\" does not exist")),
        _ => Failure::message(format!("the path \"{path}\" cannot be accessed: {}", go_io_error("stat", path, &e))),
    })?;
    if !meta.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut names: Vec<_> = std::fs::read_dir(path)?.filter_map(|e| Some(e.ok()?.path())).collect();
    names.compact_sort();
    let mut out = Vec::new();
    for entry in names {
        let text = entry.to_string_lossy().into_owned();
        if entry.is_dir() {
            if recursive {
                out.extend(expand(&text, true)?);
            }
        } else if entry.extension().is_some_and(|e| EXTENSIONS.iter().any(|x| e == *x)) {
            out.push(text);
        }
    }
    Ok(out)
}

/// Globs in the last path element, which is what shells leave to us when quoted.
fn glob(pattern: &str) -> Vec<String> {
    let (dir, name) = pattern.rsplit_once('/').map_or((".", pattern), |(d, n)| (d, n));
    let mut out: Vec<String> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|e| e.ok())
        .filter(|e| wildcard(name.as_bytes(), e.file_name().as_encoded_bytes()))
        .map(|e| {
            if pattern.contains('/') {
                format!("{dir}/{}", e.file_name().to_string_lossy())
            } else {
                e.file_name().to_string_lossy().into_owned()
            }
        })
        .collect();
    out.compact_sort();
    if out.is_empty() { vec![pattern.to_owned()] } else { out }
}

fn wildcard(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.first(), text.first()) {
        (None, None) => true,
        (Some(b'*'), _) => wildcard(&pattern[1..], text) || (!text.is_empty() && wildcard(pattern, &text[1..])),
        (Some(b'?'), Some(_)) => wildcard(&pattern[1..], &text[1..]),
        (Some(b'['), Some(c)) => match pattern.iter().position(|b| *b == b']') {
            Some(end) => pattern[1..end].contains(c) && wildcard(&pattern[end + 1..], &text[1..]),
            None => false,
        },
        (Some(p), Some(t)) if p == t => wildcard(&pattern[1..], &text[1..]),
        _ => false,
    }
}

pub(crate) async fn read_url(url: &str) -> Result<String> {
    use client::kubeconfig::{AuthInfo, Cluster, Kubeconfig, Overrides};
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let (host, path) = rest.split_once('/').map_or((rest, String::new()), |(h, p)| (h, p.to_owned()));
    let cluster = Cluster {
        server: Some(format!("{scheme}://{host}")),
        certificate_authority: Some("/etc/ssl/certs/ca-certificates.crt".to_owned()).filter(|p| Path::new(p).exists()),
        ..Cluster::default()
    };
    let config = Kubeconfig::single("url", cluster, AuthInfo::default(), None);
    let failed = |why: String| Failure::message(format!("unable to read URL \"{url}\", {why}"));
    let client = client::Client::from_kubeconfig(&config, &Overrides::default()).map_err(|e| failed(e.to_string()))?;
    let request =
        http::Request::get(format!("/{path}")).body(bytes::Bytes::new()).map_err(|e| failed(e.to_string()))?;
    let response = client.send(request).await.map_err(|e| match e {
        client::Error::Transport { source, .. } if source.to_string().to_lowercase().contains("connection refused") => {
            Failure::Connect { host: host.to_owned(), cause: source.to_string(), refused: true, config: String::new() }
        }
        other => failed(other.to_string()),
    })?;
    let status = response.status();
    if !status.is_success() {
        return Err(failed(format!(
            "server reported {} {}, status code={}",
            status.as_u16(),
            status.canonical_reason().unwrap_or(""),
            status.as_u16()
        )));
    }
    let body = http_body_util::BodyExt::collect(response.into_body()).await.map_err(|e| failed(e.to_string()))?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match() {
        for (pattern, text, expected) in
            [("*.yaml", "a.yaml", true), ("?.yaml", "ab.yaml", false), ("[ab].yaml", "b.yaml", true)]
        {
            assert_eq!(wildcard(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
