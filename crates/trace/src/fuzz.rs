//! What a client may say in the headers of the trace, given to what reads and keeps it. A target in `fuzz/` runs this for
//! hours, the test here for a moment with texts that somebody damaged.

use crate::span::MAX_CAUSES;
use crate::{Causes, Recorder, Span, now};

/// The text of either header: few causes are named, and what a command says of itself takes its place in the ring.
pub fn headers(text: &str) {
    let causes = Causes::parse(text);
    assert!(causes.iter().count() <= MAX_CAUSES, "{text}");
    assert_eq!(Causes::parse(&causes.to_string()).to_string(), causes.to_string(), "{text}");
    let Ok(span) = serde_json::from_str::<Span>(text) else { return };
    let recorder = Recorder::new(1 << 16);
    recorder.record(&span.received(now()));
    for span in recorder.spans() {
        assert!(span.end() >= span.start && span.causes.len() <= MAX_CAUSES, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_damaged_headers_name_few_causes() {
        let span = serde_json::to_string(&Span::new(crate::Stage::Command, "kubectl", "pods/default/web")).unwrap();
        let corpus = ["rv7,rv9", "rv18446744073709551615", "0123456789abcdef, rv1,,", &span];
        testkit::mutate::texts(&corpus, 20_000).iter().for_each(|text| headers(text));
    }
}
