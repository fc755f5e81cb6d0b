//! I/O errors in the words of Go.

/// An I/O error in Go's words.
pub(crate) fn go_io_error(operation: &str, path: &str, error: &std::io::Error) -> String {
    format!("{operation} {path}: {}", go_error_text(error))
}

/// The words of Go's `syscall.Errno`.
pub(crate) fn go_error_text(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        std::io::ErrorKind::IsADirectory => "is a directory".to_owned(),
        std::io::ErrorKind::AddrInUse => "address already in use".to_owned(),
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}
