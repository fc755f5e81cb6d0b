//! `cox status | head -1`: a command whose reader has left ends at once and says nothing, as a program does that SIGPIPE ends.
//! The signal itself stays ignored, for it would also end servers whose clients hang up.

/// What a shell shows of a program that SIGPIPE has ended.
const EXIT_CODE: i32 = 128 + 13;

/// The macros that print panic when they cannot; where a reader has left, that is no error.
pub(crate) fn end_quietly() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(is_closed_pipe) {
            std::process::exit(EXIT_CODE);
        }
        report(panic);
    }));
}

fn is_closed_pipe(message: &str) -> bool {
    message.starts_with("failed printing to std") && message.contains("Broken pipe")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_left_is_no_error() {
        for (message, expected) in [
            ("failed printing to stdout: Broken pipe (os error 32)", true),
            ("failed printing to stderr: Broken pipe (os error 32)", true),
            ("failed printing to stdout: No space left on device (os error 28)", false),
            ("index out of bounds", false),
        ] {
            assert_eq!(is_closed_pipe(message), expected, "{message}");
        }
    }
}
