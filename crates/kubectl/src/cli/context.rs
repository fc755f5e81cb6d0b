//! What a running command has at hand: its words, its streams, and, made only when asked for, the kubeconfig, the
//! connection and discovery. A command that needs none of them pays for none.

use std::cell::{OnceCell, RefCell};
use std::io::{BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::Client;
use client::kubeconfig::{Kubeconfig, Overrides, Resolved};

use super::Invocation;
use crate::command_span::CommandSpan;
use crate::failure::{Failure, Result};
use crate::mapping::Discovery;
use crate::plugin_policy::PluginPolicy;

pub(crate) struct Context {
    pub(crate) flags: Invocation,
    out: RefCell<Box<dyn Write>>,
    err: RefCell<Box<dyn Write>>,
    kubeconfig: OnceCell<Kubeconfig>,
    client: OnceCell<Client>,
    discovery: OnceCell<Discovery>,
    pub(crate) warnings: RefCell<Vec<String>>,
    plugin_policy: PluginPolicy,
    /// What the server is told about this command.
    pub(crate) command_span: CommandSpan,
}

/// Where writes go with `--dry-run`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DryRun {
    None,
    Client,
    Server,
}

impl Context {
    pub(crate) fn new(flags: Invocation, plugin_policy: PluginPolicy) -> Context {
        let cx = Context::with_streams(
            flags,
            Box::new(BufWriter::with_capacity(64 << 10, std::io::stdout())),
            Box::new(std::io::stderr()),
        );
        Context { plugin_policy, ..cx }
    }

    pub(crate) fn with_streams(flags: Invocation, out: Box<dyn Write>, err: Box<dyn Write>) -> Context {
        let command_span = CommandSpan::new(&flags.path);
        Context {
            flags,
            out: RefCell::new(out),
            err: RefCell::new(err),
            kubeconfig: OnceCell::new(),
            client: OnceCell::new(),
            discovery: OnceCell::new(),
            warnings: RefCell::new(Vec::new()),
            plugin_policy: PluginPolicy::default(),
            command_span,
        }
    }

    pub(crate) fn args(&self) -> &[String] {
        &self.flags.args
    }

    pub(crate) fn print(&self, text: &str) -> Result<()> {
        Ok(self.out.borrow_mut().write_all(text.as_bytes())?)
    }

    pub(crate) fn println(&self, text: impl AsRef<str>) -> Result<()> {
        self.print(text.as_ref())?;
        self.print("\n")
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> Result<()> {
        Ok(self.out.borrow_mut().write_all(bytes)?)
    }

    pub(crate) fn flush(&self) -> Result<()> {
        Ok(self.out.borrow_mut().flush()?)
    }

    /// To stderr; a closed stderr is nobody's problem.
    pub(crate) fn eprintln(&self, text: impl AsRef<str>) {
        // Keep the order people see when both streams are one terminal.
        let _ = self.out.borrow_mut().flush();
        let _ = writeln!(self.err.borrow_mut(), "{}", text.as_ref());
    }

    pub(crate) fn eprint(&self, text: &str) {
        let _ = self.out.borrow_mut().flush();
        let _ = self.err.borrow_mut().write_all(text.as_bytes());
    }

    /// `Warning: …` on stderr, yellow on a terminal, each text once.
    pub(crate) fn warn(&self, text: &str) {
        if self.warnings.borrow().iter().any(|w| w == text) {
            return;
        }
        self.warnings.borrow_mut().push(text.to_owned());
        if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
            self.eprintln(format!("\x1b[33;1mWarning:\x1b[0m {text}"));
        } else {
            self.eprintln(format!("Warning: {text}"));
        }
    }

    pub(crate) fn read_stdin(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn usage(&self, message: impl std::fmt::Display) -> Failure {
        Failure::usage(&self.flags.path, message)
    }

    pub(crate) fn kubeconfig_path(&self) -> Option<PathBuf> {
        Some(self.flags.string("kubeconfig")).filter(|p| !p.is_empty()).map(PathBuf::from)
    }

    pub(crate) fn kubeconfig(&self) -> Result<&Kubeconfig> {
        if let Some(config) = self.kubeconfig.get() {
            return Ok(config);
        }
        let explicit = self.kubeconfig_path();
        if let Some(path) = &explicit
            && !path.exists()
        {
            return Err(Failure::message(format!("stat {}: no such file or directory", path.display())));
        }
        let mut config = Kubeconfig::load(explicit.as_deref()).map_err(|e| Failure::message(format!("error {e}")))?;
        for path in Kubeconfig::paths(explicit.as_deref()).iter().filter(|p| p.exists()) {
            self.trace(6, "loader.go:407", &format!("Config loaded from file:  {}", path.display()));
        }
        // A pod without any kubeconfig speaks with its service account.
        if explicit.is_none()
            && config.clusters.is_empty()
            && config.contexts.is_empty()
            && self.flags.string("server").is_empty()
            && let Ok(in_cluster) = Kubeconfig::in_cluster()
        {
            config = in_cluster;
        }
        Ok(self.kubeconfig.get_or_init(|| config))
    }

    pub(crate) fn overrides(&self) -> Overrides {
        // `create rolebinding --user` is not the kubeconfig's user: a command's own flag hides the global one.
        let own = |name: &str| self.flags.command.own_flags().any(|f| f.name == name);
        let text = |name: &str| Some(self.flags.string(name)).filter(|v| !v.is_empty() && !own(name));
        Overrides {
            context: text("context"),
            cluster: text("cluster"),
            user: text("user"),
            namespace: text("namespace"),
            server: text("server"),
            certificate_authority: text("certificate-authority"),
            insecure_skip_tls_verify: self.flags.bool("insecure-skip-tls-verify").then_some(true),
            tls_server_name: text("tls-server-name"),
            client_certificate: text("client-certificate"),
            client_key: text("client-key"),
            token: text("token"),
            username: text("username"),
            password: text("password"),
            impersonate_user: text("as"),
            impersonate_uid: text("as-uid"),
            impersonate_groups: self.flags.list("as-group"),
            stdin_used_by: self.reads_stdin().then_some("stdin resource manifest reader"),
        }
    }

    /// Whether the command's own input comes from standard input.
    fn reads_stdin(&self) -> bool {
        let files = self.flags.has_flag("filename") && self.flags.list("filename").iter().any(|file| file == "-");
        files || self.flags.command.name == "env" && self.args().iter().any(|word| word == "-")
    }

    pub(crate) fn resolved(&self) -> Result<Resolved> {
        self.kubeconfig()?.resolve(&self.overrides()).map_err(|e| {
            let text = e.to_string();
            match text.starts_with("context was not found") {
                true => Failure::ExitWith(format!("Error in configuration: {text}"), 1),
                false => Failure::message(text),
            }
        })
    }

    /// The namespace in force, and whether `--namespace` named it.
    pub(crate) fn namespace(&self) -> Result<(String, bool)> {
        let flag = self.flags.string("namespace");
        if !flag.is_empty() {
            return Ok((flag, true));
        }
        Ok((self.resolved()?.namespace, false))
    }

    pub(crate) fn client(&self) -> Result<&Client> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let others = ["as-group", "as-user-extra"].iter().any(|flag| !self.flags.list(flag).is_empty());
        if self.flags.string("as").is_empty() && (others || !self.flags.string("as-uid").is_empty()) {
            return Err(Failure::message(format!(
                "requesting uid, groups or user-extra for {} without impersonating a user",
                self.user_name()?
            )));
        }
        if let Some(exec) = self.resolved()?.user.exec
            && let Err(why) = self.plugin_policy.check(&exec.command)
        {
            return Err(Failure::Connect {
                host: String::new(),
                cause: format!("getting credentials: {why}"),
                refused: false,
                config: String::new(),
            });
        }
        let client = Client::from_kubeconfig(self.kubeconfig()?, &self.overrides())
            .map_err(|e| Failure::message(e.to_string()))?
            .with_user_agent(&crate::user_agent())
            .map_err(|e| Failure::message(e.to_string()))?;
        self.command_span.lap(trace::Stage::Credentials);
        Ok(self.client.get_or_init(|| client))
    }

    /// The kubeconfig's name of the user in force.
    fn user_name(&self) -> Result<String> {
        let named = self.flags.string("user");
        if !named.is_empty() {
            return Ok(named);
        }
        let config = self.kubeconfig()?;
        let context = match self.flags.string("context") {
            c if c.is_empty() => config.current_context.clone(),
            c => c,
        };
        let found = config.contexts.iter().find(|c| c.name == context);
        Ok(found.map(|c| c.context.user.clone()).unwrap_or_default())
    }

    pub(crate) fn server(&self) -> Result<String> {
        Ok(self.resolved()?.cluster.server.unwrap_or_else(|| "http://localhost:8080".to_owned()))
    }

    pub(crate) fn discovery(&self) -> Result<&Discovery> {
        if let Some(discovery) = self.discovery.get() {
            return Ok(discovery);
        }
        let server = self.server()?;
        let cache = match self.flags.string("cache-dir") {
            dir if !dir.is_empty() => PathBuf::from(dir),
            _ => match std::env::var_os("KUBECACHEDIR").filter(|d| !d.is_empty()) {
                Some(dir) => PathBuf::from(dir),
                None => home().join(".kube/cache"),
            },
        };
        Ok(self.discovery.get_or_init(|| Discovery::new(&cache, &server)))
    }

    pub(crate) fn verbosity(&self) -> i64 {
        self.flags.int("v")
    }

    /// One klog line, for `-v`.
    pub(crate) fn trace(&self, level: i64, place: &str, text: &str) {
        if self.verbosity() >= level {
            self.klog('I', place, text);
        }
    }

    /// One line as upstream's log writes it, at any verbosity.
    pub(crate) fn klog(&self, severity: char, place: &str, text: &str) {
        self.eprintln(klog_line(severity, place, text));
    }

    pub(crate) fn request_timeout(&self) -> Result<Option<Duration>> {
        let text = self.flags.string("request-timeout");
        if text.is_empty() || text == "0" {
            return Ok(None);
        }
        if let Ok(seconds) = text.parse::<u64>() {
            return Ok(Some(Duration::from_secs(seconds)).filter(|d| !d.is_zero()));
        }
        let timeout = crate::duration::parse(&text).map_err(|_| {
            Failure::message("Invalid timeout value. Timeout must be a single integer in seconds, or an integer followed by a corresponding time unit (e.g. 1s | 2m | 3h)")
        })?;
        Ok(Some(timeout).filter(|d| !d.is_zero()))
    }

    /// `--dry-run`, with the meaning of its old spellings.
    pub(crate) fn dry_run(&self) -> Result<DryRun> {
        let value = self.flags.string("dry-run");
        match value.as_str() {
            "none" | "" | "false" => Ok(DryRun::None),
            "client" => Ok(DryRun::Client),
            "server" => Ok(DryRun::Server),
            "unchanged" | "true" => {
                self.warn(if value == "unchanged" {
                    "--dry-run is deprecated and can be replaced with --dry-run=client."
                } else {
                    "--dry-run=true is deprecated (boolean value) and can be replaced with --dry-run=client."
                });
                Ok(DryRun::Client)
            }
            other => Err(Failure::message(format!(
                "Invalid dry-run value ({other}). Must be \"none\", \"server\", or \"client\"."
            ))),
        }
    }

    /// The change cause that `--record` writes.
    pub(crate) fn change_cause(&self) -> String {
        let mut words = vec!["kubectl".to_owned()];
        words.extend(self.flags.program_args.iter().cloned());
        words.join(" ")
    }
}

pub(crate) fn with_dry_run(operation: &str, dry_run: DryRun) -> String {
    match dry_run {
        DryRun::None => operation.to_owned(),
        DryRun::Client => format!("{operation} (dry run)"),
        DryRun::Server => format!("{operation} (server dry run)"),
    }
}

/// One line as klog writes it.
pub(crate) fn klog_line(severity: char, place: &str, text: &str) -> String {
    let now = jiff::Zoned::now();
    format!(
        "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:>7} {place}] {text}",
        now.month(),
        now.day(),
        now.hour(),
        now.minute(),
        now.second(),
        now.subsec_nanosecond() / 1000,
        std::process::id(),
    )
}

pub(crate) fn home() -> PathBuf {
    std::env::var_os("HOME").map_or_else(|| Path::new("/").to_owned(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Context {
        /// `kubectl get` with this client, printing to nobody.
        pub(crate) fn for_tests(client: Client) -> Context {
            let flags = match crate::cli::parse(&crate::commands::ROOT, vec!["get".to_owned()]) {
                Ok(crate::cli::Parsed::Run(flags)) => flags,
                _ => unreachable!("get is a command"),
            };
            let cx = Context::with_streams(flags, Box::new(std::io::sink()), Box::new(std::io::sink()));
            cx.client.set(client).unwrap_or_else(|_| unreachable!("it has none yet"));
            cx
        }
    }
}
