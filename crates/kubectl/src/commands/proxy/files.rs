//! Static files for `--www`, as Go's `http.FileServer` serves them: index pages, directory listings, redirects.

use std::path::Path;

use bytes::Bytes;
use client::Body;
use http::{HeaderValue, Response, StatusCode, header};

use super::{plain, text};

/// `rest` is the request's path below the prefix.
pub(super) fn serve(dir: &Path, path: &str, rest: &str) -> Response<Body> {
    // Nothing above the directory: names that climb are simply not there.
    if rest.split('/').any(|part| part == "..") {
        return text(StatusCode::BAD_REQUEST, "invalid URL path\n");
    }
    let file = dir.join(percent_decoded(rest).trim_start_matches('/'));
    match std::fs::metadata(&file) {
        Ok(meta) if meta.is_dir() && !path.ends_with('/') => redirect(&format!("{path}/")),
        Ok(meta) if meta.is_dir() => match std::fs::read(file.join("index.html")) {
            Ok(page) => plain(StatusCode::OK, "text/html; charset=utf-8", page.into()),
            Err(_) => listing(&file),
        },
        Ok(_) => match std::fs::read(&file) {
            Ok(content) => plain(StatusCode::OK, content_type(&file), content.into()),
            Err(_) => text(StatusCode::FORBIDDEN, "403 Forbidden\n"),
        },
        Err(_) => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn percent_decoded(path: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = path.bytes();
    while let Some(b) = bytes.next() {
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
        match b {
            b'%' => match (digit(bytes.next()), digit(bytes.next())) {
                (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
                _ => out.push(b'%'),
            },
            b => out.push(b),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn redirect(to: &str) -> Response<Body> {
    let mut response = text(StatusCode::MOVED_PERMANENTLY, "");
    if let Ok(value) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

fn listing(dir: &Path) -> Response<Body> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|e| {
            let e = e.ok()?;
            let slash = if e.path().is_dir() { "/" } else { "" };
            Some(format!("{}{slash}", e.file_name().to_string_lossy()))
        })
        .collect();
    names.sort();
    let escape = |s: &str| s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
    let rows: String = names.iter().map(|n| format!("<a href=\"{0}\">{0}</a>\n", escape(n))).collect();
    plain(StatusCode::OK, "text/html; charset=utf-8", Bytes::from(format!("<pre>\n{rows}</pre>\n")))
}

fn content_type(file: &Path) -> &'static str {
    match file.extension().and_then(|e| e.to_str()).unwrap_or("") {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "txt" | "yaml" | "yml" | "md" | "" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
