//! The parameters of `pods/log` (`ValidatePodLogOptions`, v1.36). What should be a number and is none is for the kubelet to
//! refuse.

use api::field::FieldErrors;
use api::{GroupKind, Status};

use crate::request_info::Query;

pub(super) fn check(pod: &str, query: &Query) -> Result<(), Status> {
    let number = |name: &str| query.get(name).and_then(|text| text.parse::<i64>().ok());
    let mut errors = FieldErrors::default();
    if let Some(lines) = number("tailLines").filter(|lines| *lines < 0) {
        errors.invalid("tailLines", lines, "must be greater than or equal to 0");
    }
    if let Some(bytes) = number("limitBytes").filter(|bytes| *bytes < 1) {
        errors.invalid("limitBytes", bytes, "must be greater than 0");
    }
    if query.get("sinceSeconds").is_some() && query.get("sinceTime").is_some() {
        errors.forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified");
    } else if let Some(seconds) = number("sinceSeconds").filter(|seconds| *seconds < 1) {
        errors.invalid("sinceSeconds", seconds, "must be greater than 0");
    }
    if let Some(stream) = query.get("stream").filter(|stream| *stream != "All") {
        // A stream that nobody knows would read as an empty log.
        if !matches!(stream, "Stdout" | "Stderr") {
            errors.not_supported("stream", stream, &["All", "Stderr", "Stdout"]);
        }
        if query.get("tailLines").is_some() {
            errors.forbidden("", "`tailLines` and specific `stream` are mutually exclusive for now");
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&GroupKind::new("", "PodLogOptions"), pod, errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_asked_for_in_words_that_have_a_meaning() {
        for fine in ["", "tailLines=0&stream=All", "stream=Stderr&limitBytes=1", "sinceSeconds=1", "tailLines=many"] {
            assert!(check("p", &Query::parse(fine)).is_ok(), "{fine}");
        }
        for (wrong, words) in [
            ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
            ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z", "at most one of `sinceTime` or `sinceSeconds`"),
            ("stream=stdout", "stream: Unsupported value: \"stdout\": supported values: \"All\", \"Stderr\""),
            ("stream=Stdout&tailLines=5", "`tailLines` and specific `stream` are mutually exclusive"),
        ] {
            let refused = check("p", &Query::parse(wrong)).unwrap_err();
            assert_eq!(refused.code, 422, "{wrong}");
            assert!(refused.message.contains(words), "{wrong}: {}", refused.message);
        }
    }
}
