//! CRI log files: `<RFC 3339 time> <stdout|stderr> <P|F> <text>`, one line each; `P` lines are parts
//! of a line that goes on.
//!
//! Flow: the runtime writes them -> here -> `server` (`kubectl logs`) and termination messages.

use std::io::{self, SeekFrom};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;

use crate::file_watch::{Change, FileWatch};

/// No line of a runtime is nearly as long, and no last words need as much of a log. Pods that can write where logs are may have longer ones.
const MAX_LINE: usize = 1 << 20;

/// One entry of a log file.
#[derive(Debug, PartialEq)]
pub(crate) struct Entry<'a> {
    pub(crate) time: &'a str,
    pub(crate) is_stderr: bool,
    pub(crate) is_partial: bool,
    pub(crate) text: &'a [u8],
}

/// Parses one line without its newline.
pub(crate) fn parse(line: &[u8]) -> Option<Entry<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let is_stderr = match parts.next()? {
        b"stdout" => false,
        b"stderr" => true,
        _ => return None,
    };
    let tags = parts.next()?;
    let is_partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    Some(Entry { time, is_stderr, is_partial, text: parts.next().unwrap_or_default() })
}

/// `kubectl logs` options that the kubelet understands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub(crate) follow: bool,
    pub(crate) timestamps: bool,
    pub(crate) tail: Option<usize>,
    pub(crate) limit_bytes: Option<usize>,
    pub(crate) since: Option<Timestamp>,
    /// `Stdout`, `Stderr` or all.
    pub(crate) stream: Option<String>,
}

/// Turns lines of a file into what the client sees. Pure; keeps the byte budget.
pub(crate) struct Renderer {
    options: Options,
    left: Option<usize>,
    starts_line: bool,
}

impl Renderer {
    pub(crate) fn new(options: Options) -> Self {
        let left = options.limit_bytes;
        Renderer { options, left, starts_line: true }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.left == Some(0)
    }

    pub(crate) fn render(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some(entry) = parse(line) else { return };
        match self.options.stream.as_deref() {
            Some("Stdout") if entry.is_stderr => return,
            Some("Stderr") if !entry.is_stderr => return,
            _ => {}
        }
        let is_old = |since: Timestamp| entry.time.parse::<Timestamp>().is_ok_and(|time| time < since);
        if self.options.since.is_some_and(is_old) {
            return;
        }
        let start = out.len();
        if self.options.timestamps && self.starts_line {
            out.extend_from_slice(entry.time.as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(entry.text);
        if !entry.is_partial {
            out.push(b'\n');
        }
        self.starts_line = !entry.is_partial;
        if let Some(left) = &mut self.left {
            let written = out.len() - start;
            if written > *left {
                out.truncate(start + *left);
            }
            *left -= written.min(*left);
        }
    }
}

/// Opens a log. It is below directories of its pod and container, which other pods may be able to write to: a link among them
/// would show anybody who may read logs whatever root can read, and a pipe would keep them waiting.
async fn open(path: &Path) -> io::Result<File> {
    let path = path.to_path_buf();
    let opened = tokio::task::spawn_blocking(move || open_plain(&path)).await.map_err(io::Error::other)?;
    opened.map(File::from_std)
}

fn open_plain(path: &Path) -> io::Result<std::fs::File> {
    // `<logs>/<pod>/<container>/<n>.log`: where all logs are is the administrator's business.
    let base = path.ancestors().nth(3).unwrap_or(Path::new("/"));
    let below = path.strip_prefix(base).map_err(io::Error::other)?;
    let root = nix::fcntl::open(base, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let no_links = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | no_links);
    let file = std::fs::File::from(openat2(root.as_fd(), below, how)?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// At most `limit` bytes from the start of a regular file. It may be a file of a pod's volume, where containers make pipes: whoever
/// waited for a writer there would wait for ever.
pub(crate) async fn read_start(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = tokio::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).await?;
    if !file.metadata().await?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut data = Vec::new();
    file.take(limit as u64).read_to_end(&mut data).await?;
    Ok(data)
}

/// The text of the last lines, within both limits.
pub(crate) async fn tail_text(path: &Path, lines: usize, bytes: usize) -> io::Result<String> {
    let mut file = open(path).await?;
    let end = file.metadata().await?.len();
    let start = tail_offset(&mut file, end, lines).await?.max(end.saturating_sub(MAX_LINE as u64));
    file.seek(SeekFrom::Start(start)).await?;
    let mut data = Vec::new();
    file.take(end - start).read_to_end(&mut data).await?;
    let mut renderer = Renderer::new(Options::default());
    let mut out = Vec::new();
    for line in data.split(|byte| *byte == b'\n') {
        renderer.render(line, &mut out);
    }
    let cut = out.len().saturating_sub(bytes);
    Ok(String::from_utf8_lossy(&out[cut..]).into_owned())
}

/// Where the last `lines` lines before `end` begin, found from there in blocks.
async fn tail_offset(file: &mut File, end: u64, lines: usize) -> io::Result<u64> {
    const BLOCK: u64 = 64 << 10;
    if lines == 0 {
        return Ok(end);
    }
    let mut seen = 0;
    let mut at = end;
    let mut block = Vec::new();
    while at > 0 {
        let from = at.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(from)).await?;
        block.resize((at - from) as usize, 0);
        file.read_exact(&mut block).await?;
        for (index, byte) in block.iter().enumerate().rev() {
            // The newline that ends the file ends the last line; it starts none.
            if *byte == b'\n' && from + index as u64 + 1 != end {
                seen += 1;
                if seen == lines {
                    return Ok(from + index as u64 + 1);
                }
            }
        }
        at = from;
    }
    Ok(0)
}

/// How often somebody looks whether the container of a followed log still runs, though its log was not closed.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How soon after its log was closed: a container ends a moment later for the runtime, and a rotated log closes too.
const CLOSED_CHECK_DELAY: Duration = Duration::from_millis(20);

/// Sends the log in chunks until its end, or with `follow` until `is_running` says the container has
/// ended and all was sent. A rotated file is followed to its successor.
pub(crate) async fn stream<F, Running>(
    path: PathBuf,
    options: Options,
    is_running: F,
    out: mpsc::Sender<Vec<u8>>,
) -> io::Result<()>
where
    F: Fn() -> Running,
    Running: Future<Output = bool>,
{
    use std::os::unix::fs::MetadataExt;
    // Before the first look at the file: nothing is written unnoticed.
    let watch = options.follow.then(|| FileWatch::new(&path));
    let mut file = open(&path).await?;
    let end = file.metadata().await?.len();
    let start = match options.tail {
        Some(lines) => tail_offset(&mut file, end, lines).await?,
        None => 0,
    };
    file.seek(SeekFrom::Start(start)).await?;
    // Without `follow` the answer is the log as it was when it was opened: lines that come meanwhile
    // would exceed `tail`, and those of a container that writes without pause would never end.
    let mut unread = if options.follow { u64::MAX } else { end - start };
    let mut renderer = Renderer::new(options);
    let mut pending: Vec<u8> = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let mut successor = None;
    let (mut ended, mut in_doubt, mut timeout) = (false, true, IDLE_CHECK_INTERVAL);
    loop {
        let room = buffer.len().min(usize::try_from(unread).unwrap_or(usize::MAX));
        let count = file.read(&mut buffer[..room]).await?;
        if count > 0 {
            unread -= count as u64;
            // What is left of a line that is too long to be one ends where it was cut.
            pending.truncate(MAX_LINE);
            let known = pending.len();
            pending.extend_from_slice(&buffer[..count]);
            let mut chunk = Vec::new();
            let complete = pending[known..].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| known + at + 1);
            for line in pending[..complete].split(|byte| *byte == b'\n') {
                renderer.render(line, &mut chunk);
            }
            pending.drain(..complete);
            if !chunk.is_empty() && out.send(chunk).await.is_err() {
                return Ok(());
            }
            if renderer.is_full() {
                return Ok(());
            }
            continue;
        }
        if let Some(next) = successor.take() {
            file = next;
            pending.clear();
            continue;
        }
        let Some(watch) = watch.as_ref().filter(|_| !ended) else { return Ok(()) };
        if let (Ok(there), Ok(ours)) = (tokio::fs::metadata(&path).await, file.metadata().await)
            && there.ino() != ours.ino()
        {
            // Nothing is added to the old one any more, but something may have been since it was read to its end.
            watch.add_file(&path);
            successor = open(&path).await.ok();
            continue;
        }
        if std::mem::take(&mut in_doubt) && !is_running().await {
            // One more read after the end: the last lines may have come in between.
            ended = true;
            continue;
        }
        tokio::select! {
            change = tokio::time::timeout(timeout, watch.changed()) => {
                in_doubt = change != Ok(Change::Written);
                timeout = match change {
                    Ok(Change::Written) => timeout,
                    Ok(Change::Closed) => CLOSED_CHECK_DELAY,
                    Err(_) => (2 * timeout).min(IDLE_CHECK_INTERVAL),
                };
            }
            () = out.closed() => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_written_while_the_log_is_read_are_not_part_of_the_answer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let line = "2026-11-15T03:00:00.000000001Z stdout F 0123456789\n";
        std::fs::write(&path, line.repeat(30_000)).unwrap();
        let (send, mut receive) = mpsc::channel(1);
        let options = Options { tail: Some(20_000), ..Options::default() };
        let reader = tokio::spawn(stream(path.clone(), options, || async { true }, send));
        let mut all = receive.recv().await.unwrap();
        let mut log = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut log, line.as_bytes()).unwrap();
        while let Some(chunk) = receive.recv().await {
            all.extend(chunk);
        }
        reader.await.unwrap().unwrap();
        assert_eq!(all.iter().filter(|byte| **byte == b'\n').count(), 20_000);
    }

    const LOG: &str = "2026-11-15T03:00:00.000000001Z stdout F first\n\
        2026-11-15T03:00:01.000000001Z stderr F oops\n\
        2026-11-15T03:00:02.000000001Z stdout P half-\n\
        2026-11-15T03:00:02.000000002Z stdout F whole\n";

    async fn read(options: Options) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, LOG).unwrap();
        let (send, mut receive) = mpsc::channel(16);
        stream(path, options, || async { false }, send).await.unwrap();
        let mut all = Vec::new();
        while let Some(chunk) = receive.recv().await {
            all.extend(chunk);
        }
        String::from_utf8(all).unwrap()
    }

    #[tokio::test]
    async fn options_shape_the_output() {
        let base = Options::default;
        for (options, expected) in [
            (base(), "first\noops\nhalf-whole\n"),
            (Options { tail: Some(2), ..base() }, "half-whole\n"),
            (Options { tail: Some(0), ..base() }, ""),
            (Options { tail: Some(99), ..base() }, "first\noops\nhalf-whole\n"),
            (Options { limit_bytes: Some(8), ..base() }, "first\noo"),
            (Options { stream: Some("Stderr".into()), ..base() }, "oops\n"),
            (Options { since: Some("2026-11-15T03:00:01Z".parse().unwrap()), ..base() }, "oops\nhalf-whole\n"),
            (Options { follow: true, ..base() }, "first\noops\nhalf-whole\n"),
            (Options { timestamps: true, tail: Some(2), ..base() }, "2026-11-15T03:00:02.000000001Z half-whole\n"),
        ] {
            assert_eq!(read(options.clone()).await, expected, "{options:?}");
        }
    }

    /// Whoever follows reads every line once, whatever happens between its looks at the files.
    #[tokio::test]
    async fn rotation_loses_no_line() {
        use std::io::Write;
        use std::sync::atomic::{AtomicBool, Ordering};
        const FILES: usize = 20;
        const LINES: usize = 50;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = std::fs::File::create(&path).unwrap();
        let (send, mut receive) = mpsc::channel(1);
        let is_running = std::sync::Arc::new(AtomicBool::new(true));
        let running = is_running.clone();
        let options = Options { follow: true, ..Options::default() };
        let is_alive = move || {
            let running = running.clone();
            async move { running.load(Ordering::SeqCst) }
        };
        let follower = tokio::spawn(stream(path.clone(), options, is_alive, send));
        writeln!(log, "2026-11-15T03:00:00Z stdout F begun").unwrap();
        assert_eq!(receive.recv().await.unwrap(), b"begun\n");
        let mut seen = String::new();
        for file in 0..FILES {
            for line in 0..LINES {
                writeln!(log, "2026-11-15T03:00:00Z stdout F {file}-{line}").unwrap();
            }
            // As the kubelet and the runtime do: away with the old one, the last words into it, then the new one.
            std::fs::rename(&path, dir.path().join(format!("0.log.{file}"))).unwrap();
            writeln!(log, "2026-11-15T03:00:00Z stdout F {file}-last").unwrap();
            log = std::fs::File::create(&path).unwrap();
            writeln!(log, "2026-11-15T03:00:00Z stdout F {file}-new").unwrap();
            // The next one goes only when this one was found.
            while !seen.ends_with(&format!("{file}-new\n")) {
                seen.push_str(std::str::from_utf8(&receive.recv().await.unwrap()).unwrap());
            }
        }
        is_running.store(false, Ordering::SeqCst);
        drop(log);
        follower.await.unwrap().unwrap();
        let lines = |file: usize| {
            (0..LINES)
                .map(|line| line.to_string())
                .chain(["last".into(), "new".into()])
                .map(move |line| format!("{file}-{line}\n"))
        };
        assert!(seen == (0..FILES).flat_map(lines).collect::<String>(), "{seen}");
    }

    /// Pods that collect logs can write where they are.
    #[tokio::test]
    async fn security_links_among_logs_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let container = dir.path().join("logs/pod/container");
        std::fs::create_dir_all(&container).unwrap();
        std::fs::create_dir(dir.path().join("secrets")).unwrap();
        let secret = dir.path().join("secrets/0.log");
        std::fs::write(&secret, LOG).unwrap();
        assert!(tail_text(&secret, 80, 6).await.is_ok());
        let log = container.join("0.log");
        std::os::unix::fs::symlink(&secret, &log).unwrap();
        assert!(tail_text(&log, 80, 6).await.is_err());
        let (send, mut receive) = mpsc::channel(16);
        assert!(stream(log.clone(), Options::default(), || async { false }, send).await.is_err());
        assert_eq!(receive.recv().await, None);
        std::fs::remove_file(&log).unwrap();
        nix::unistd::mkfifo(&log, Mode::S_IRWXU).unwrap();
        assert!(tail_text(&log, 80, 6).await.is_err(), "nobody waits for a writer");
        std::fs::remove_dir_all(&container).unwrap();
        std::os::unix::fs::symlink(dir.path().join("secrets"), &container).unwrap();
        assert!(tail_text(&log, 80, 6).await.is_err());
    }

    /// A container may have a volume where its last words are expected, and in it a pipe that nobody writes to.
    #[tokio::test]
    async fn security_nobody_waits_for_the_last_words_of_a_container() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("message");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        assert_eq!(read_start(&path, 6).await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "whole\nrest").unwrap();
        assert_eq!(read_start(&path, 6).await.unwrap(), b"whole\n");
    }

    /// Whoever can write among logs, as pods that collect them, may leave lines without end.
    #[tokio::test]
    async fn security_lines_without_end_are_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let endless = format!("2026-11-15T03:00:00.000000001Z stdout F {}", "x".repeat(4 * MAX_LINE));
        std::fs::write(&path, format!("{endless}\n{LOG}")).unwrap();
        let (send, mut receive) = mpsc::channel(1);
        let reader = tokio::spawn(stream(path.clone(), Options::default(), || async { false }, send));
        let mut all = Vec::new();
        while let Some(chunk) = receive.recv().await {
            all.extend(chunk);
        }
        reader.await.unwrap().unwrap();
        assert!(all.len() < 2 * MAX_LINE, "{} bytes", all.len());
        assert!(all.starts_with(b"xxx") && all.ends_with(b"x\nfirst\noops\nhalf-whole\n"));
        std::fs::write(&path, endless).unwrap();
        assert_eq!(tail_text(&path, 80, 2 * MAX_LINE).await.unwrap(), "", "nothing there is the start of a line");
    }

    #[tokio::test]
    async fn tail_is_cut_by_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, LOG).unwrap();
        assert_eq!(tail_text(&path, 80, 6).await.unwrap(), "whole\n");
    }
}
