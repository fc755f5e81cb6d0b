//! The pages below `/debug/pprof`, in the words of Go's `net/http/pprof`.

use std::time::Duration;

use crate::refusal::Refusal;
use crate::{cpu, heap, threads};

/// Seconds of a profile without a word, and at most.
const SECONDS: u64 = 30;
const HEAP_SECONDS: u64 = 5;
const MAX_SECONDS: u64 = 600;

/// What is offered, for people.
const INDEX: &str = "/debug/pprof/\n\nTypes of profiles available:\n\
    cmdline: the command line of this process\n\
    goroutine: threads by name and state; this process has no goroutines (?debug=1 for text)\n\
    heap: allocations of the next ?seconds=N (5), and what of them stays; also as allocs\n\
    profile: processor time of the next ?seconds=N (30)\n\
    symbol: whether profiles carry the names of functions\n\
    threadcreate: threads by name and state\n";

/// A page: its code, its type and what it says.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: u16,
    pub content_type: &'static str,
    pub body: Vec<u8>,
}

/// Answers `/debug/pprof/<page>`. Whoever asks has been let in already.
pub async fn serve(page: &str, query: &str) -> Answer {
    let value = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
    };
    let seconds = |default: u64| match value("seconds").map_or(Ok(default), str::parse::<u64>) {
        Ok(seconds @ 1..=MAX_SECONDS) => Ok(Duration::from_secs(seconds)),
        _ => Err(text(
            400,
            format!("invalid value for \"seconds\" - must be a positive integer, at most {MAX_SECONDS}\n"),
        )),
    };
    let is_text = value("debug").is_some_and(|level| level != "0");
    match page.trim_matches('/') {
        "" => text(200, INDEX.to_owned()),
        "cmdline" => text(200, std::env::args().collect::<Vec<_>>().join("\0")),
        // Profiles name their functions themselves.
        "symbol" => text(200, "num_symbols: 1\n".to_owned()),
        "goroutine" | "threadcreate" if is_text => text(200, threads::text()),
        "goroutine" => file(threads::profile("goroutine")),
        "threadcreate" => file(threads::profile("threadcreate")),
        "profile" => match seconds(SECONDS) {
            Ok(duration) => blocking(move |wanted| cpu::profile(duration, wanted)).await,
            Err(refused) => refused,
        },
        "heap" | "allocs" => match seconds(HEAP_SECONDS) {
            Ok(duration) => blocking(move |wanted| heap::profile(duration, wanted)).await,
            Err(refused) => refused,
        },
        "block" | "mutex" | "trace" => {
            text(404, "waits for locks are not recorded, and there is no scheduler of goroutines to trace\n".to_owned())
        }
        _ => text(404, "Unknown profile\n".to_owned()),
    }
}

/// On a thread of its own, which is not profiled. The work can ask whether its answer is still wanted.
async fn blocking(work: impl FnOnce(&dyn Fn() -> bool) -> Result<Vec<u8>, Refusal> + Send + 'static) -> Answer {
    let (sender, answer) = tokio::sync::oneshot::channel();
    let started = std::thread::Builder::new().name("profiler".into()).spawn(move || {
        let made = file(work(&|| !sender.is_closed()));
        drop(sender.send(made));
    });
    match started {
        Err(error) => text(500, format!("{error}\n")),
        Ok(_) => answer.await.unwrap_or_else(|_| file(Err(Refusal::GivenUp))),
    }
}

fn file(made: Result<Vec<u8>, Refusal>) -> Answer {
    match made {
        Ok(body) => Answer { code: 200, content_type: "application/octet-stream", body },
        Err(Refusal::Busy(why)) => text(500, format!("{why}\n")),
        Err(Refusal::Impossible(why)) => text(501, format!("{why}\n")),
        Err(Refusal::GivenUp) => text(500, "the profile was given up\n".to_owned()),
        Err(Refusal::Io(error)) => text(500, format!("{error}\n")),
    }
}

fn text(code: u16, body: String) -> Answer {
    Answer { code, content_type: "text/plain; charset=utf-8", body: body.into_bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_ends_when_its_client_has_gone() {
        let (ended, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let asked = blocking(move |wanted| {
            while wanted() {
                std::thread::sleep(Duration::from_millis(1));
            }
            ended.send(()).unwrap();
            Err(Refusal::GivenUp)
        });
        assert!(tokio::time::timeout(Duration::from_millis(50), asked).await.is_err());
        assert_eq!(tokio::time::timeout(Duration::from_secs(60), seen.recv()).await, Ok(Some(())));
    }

    #[tokio::test]
    async fn pages_answer_as_gos_do() {
        for (page, query, code) in [
            ("", "", 200),
            ("cmdline", "", 200),
            ("symbol", "", 200),
            ("goroutine", "debug=1", 200),
            ("threadcreate", "", 200),
            ("profile", "seconds=0", 400),
            ("profile", "seconds=soon", 400),
            ("heap", "seconds=100000", 400),
            ("mutex", "", 404),
            ("other", "", 404),
        ] {
            assert_eq!(serve(page, query).await.code, code, "{page}?{query}");
        }
    }
}
