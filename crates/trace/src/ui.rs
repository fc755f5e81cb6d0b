//! The page: files that the API server hands out as they are.

/// Path below `/cox/ui/`, media type, content.
pub const FILES: &[(&str, &str, &str)] = &[
    ("", "text/html; charset=utf-8", include_str!("../ui/index.html")),
    ("style.css", "text/css; charset=utf-8", include_str!("../ui/style.css")),
    ("app.js", "text/javascript; charset=utf-8", include_str!("../ui/app.js")),
    ("history.js", "text/javascript; charset=utf-8", include_str!("../ui/history.js")),
    ("walk.js", "text/javascript; charset=utf-8", include_str!("../ui/walk.js")),
];
