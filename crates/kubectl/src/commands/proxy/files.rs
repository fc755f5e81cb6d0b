//! Static files for `--www`, as Go's `http.FileServer` serves them: index pages, directory listings, redirects.

use std::path::Path;

use api::sort::CompactSort as _;
use bytes::Bytes;
use client::Body;
use http::{HeaderValue, Response, StatusCode, header};

use super::{plain, text};

/// `rest` is the request's path below the prefix.
pub(super) fn serve(dir: &Path, path: &str, rest: &str) -> Response<Body> {
    let rest = api::percent::decode(rest, false);
    // Nothing above the directory: names that climb are simply not there, however they are spelled.
    if rest.split('/').any(|part| part == "..") {
        return text(StatusCode::BAD_REQUEST, "invalid URL path\n");
    }
    let file = dir.join(rest.trim_start_matches('/'));
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
    names.compact_sort();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_files_above_the_directory_are_not_served() {
        let dir = tempfile::tempdir().unwrap();
        let www = dir.path().join("www");
        std::fs::create_dir(&www).unwrap();
        std::fs::write(www.join("a b.txt"), "ours").unwrap();
        std::fs::write(dir.path().join("secret"), "theirs").unwrap();
        for (rest, expected) in [
            ("a%20b.txt", StatusCode::OK),
            ("missing", StatusCode::NOT_FOUND),
            ("../secret", StatusCode::BAD_REQUEST),
            ("%2e%2e/secret", StatusCode::BAD_REQUEST),
            ("..%2fsecret", StatusCode::BAD_REQUEST),
            ("%2E./secret", StatusCode::BAD_REQUEST),
        ] {
            assert_eq!(serve(&www, &format!("/static/{rest}"), rest).status(), expected, "{rest}");
        }
    }
}
