//! Reaching the server through a proxy: `proxy-url` of a kubeconfig's cluster, else `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`.
//!
//! HTTP proxies are asked to CONNECT, SOCKS5 proxies to do the same in their way; what follows is TLS to the server as ever.

use api::cidr::Cidr;
use http::Uri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{BoxError, Error};

/// A proxy and how to speak to it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Proxy {
    socks: bool,
    host: String,
    port: u16,
    /// User and password.
    login: Option<(String, String)>,
}

impl Proxy {
    /// The proxy for a server, if there is one. An explicit one is used whatever the environment says.
    pub(super) fn choose(explicit: Option<&str>, server: &Uri) -> Result<Option<Proxy>, Error> {
        if let Some(url) = explicit.filter(|url| !url.is_empty()) {
            return Proxy::parse(url).map(Some);
        }
        let variable = |name: &str| {
            let value = std::env::var(name).or_else(|_| std::env::var(name.to_lowercase()));
            value.ok().filter(|value| !value.is_empty())
        };
        let plain = server.scheme_str() == Some("http");
        let Some(url) = variable(if plain { "HTTP_PROXY" } else { "HTTPS_PROXY" }) else { return Ok(None) };
        let port = server.port_u16().unwrap_or(if plain { 80 } else { 443 });
        let host = server.host().unwrap_or_default();
        if is_exempt(host, port, variable("NO_PROXY").as_deref().unwrap_or_default()) {
            return Ok(None);
        }
        Proxy::parse(&url).map(Some)
    }

    fn parse(url: &str) -> Result<Proxy, Error> {
        let refuse = |why: &str| Error::config(format!("invalid proxy URL {url:?}: {why}"));
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let (socks, default_port) = match scheme {
            "http" => (false, 80),
            "socks5" | "socks5h" => (true, 1080),
            _ => return Err(refuse("unsupported scheme, must be http or socks5")),
        };
        let rest = rest.split('/').next().unwrap_or_default();
        let (login, address) = match rest.rsplit_once('@') {
            Some((login, address)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                (Some((user.to_owned(), password.to_owned())), address)
            }
            None => (None, rest),
        };
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| refuse("invalid port"))?),
            _ => (address, default_port),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(refuse("no host"));
        }
        Ok(Proxy { socks, host: host.to_owned(), port, login })
    }

    /// A connection to `host`, made by the proxy.
    pub(super) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, BoxError> {
        let mut stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| format!("proxyconnect tcp: dial tcp {}:{}: {error}", self.host, self.port))?;
        if self.socks {
            self.greet_socks(&mut stream, host, port).await?
        } else {
            self.greet_http(&mut stream, host, port).await?
        }
        Ok(stream)
    }

    async fn greet_http(&self, stream: &mut TcpStream, host: &str, port: u16) -> Result<(), BoxError> {
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some((user, password)) = &self.login {
            use base64::Engine;
            let login = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            request.push_str(&format!("Proxy-Authorization: Basic {login}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        // Byte by byte: whatever follows the answer belongs to the server.
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() > 16 << 10 {
                return Err("proxy sent an endless answer to CONNECT".into());
            }
            answer.push(stream.read_u8().await?);
        }
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.lines().next().unwrap_or_default();
        match status.split(' ').nth(1) {
            Some("200") => Ok(()),
            _ => Err(status.split_once(' ').map_or(status, |(_, reason)| reason).to_owned().into()),
        }
    }

    /// RFC 1928, with RFC 1929 for the login. Names are resolved by the proxy.
    async fn greet_socks(&self, stream: &mut TcpStream, host: &str, port: u16) -> Result<(), BoxError> {
        let method = if self.login.is_some() { 2 } else { 0 };
        stream.write_all(&[5, 1, method]).await?;
        let mut chosen = [0; 2];
        stream.read_exact(&mut chosen).await?;
        if chosen != [5, method] {
            return Err("socks connect: no acceptable authentication methods".into());
        }
        if let Some((user, password)) = &self.login {
            let mut login = vec![1, u8::try_from(user.len())?];
            login.extend_from_slice(user.as_bytes());
            login.push(u8::try_from(password.len())?);
            login.extend_from_slice(password.as_bytes());
            stream.write_all(&login).await?;
            let mut verdict = [0; 2];
            stream.read_exact(&mut verdict).await?;
            if verdict[1] != 0 {
                return Err("socks connect: username/password authentication failed".into());
            }
        }
        let mut request = vec![5, 1, 0, 3, u8::try_from(host.len())?];
        request.extend_from_slice(host.as_bytes());
        request.extend_from_slice(&port.to_be_bytes());
        stream.write_all(&request).await?;
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        if head[1] != 0 {
            return Err(format!("socks connect: the proxy refused with code {}", head[1]).into());
        }
        let address = match head[3] {
            1 => 4,
            4 => 16,
            _ => usize::from(stream.read_u8().await?),
        };
        let mut bound = vec![0; address + 2];
        stream.read_exact(&mut bound).await?;
        Ok(())
    }
}

/// `NO_PROXY`: names with what is below them, addresses, ranges, `*`. This machine is never proxied, as in Go.
fn is_exempt(host: &str, port: u16, list: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_lowercase();
    let address: Option<std::net::IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    list.split(',').map(|entry| entry.trim().to_lowercase()).filter(|entry| !entry.is_empty()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let (Ok(range), Some(address)) = (entry.parse::<Cidr>(), address) {
            return range.contains(address);
        }
        let (name, wanted) = match entry.rsplit_once(':') {
            Some((name, wanted)) if !name.contains(':') => (name, wanted.parse().ok()),
            _ => (entry.as_str(), None),
        };
        if wanted.is_some_and(|wanted: u16| wanted != port) {
            return false;
        }
        let below = name.trim_start_matches('*').trim_start_matches('.');
        (host == below && !name.starts_with('.')) || host.ends_with(&format!(".{below}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn urls_name_the_proxy() {
        let proxy = |socks, host: &str, port, login: Option<(&str, &str)>| Proxy {
            socks,
            host: host.to_owned(),
            port,
            login: login.map(|(u, p)| (u.to_owned(), p.to_owned())),
        };
        for (url, expected) in [
            ("http://proxy:3128", proxy(false, "proxy", 3128, None)),
            ("proxy", proxy(false, "proxy", 80, None)),
            ("http://u:p@proxy:8/", proxy(false, "proxy", 8, Some(("u", "p")))),
            ("socks5://[::1]:9", proxy(true, "::1", 9, None)),
            ("socks5://host", proxy(true, "host", 1080, None)),
        ] {
            assert_eq!(Proxy::parse(url).unwrap(), expected, "{url}");
        }
        assert!(Proxy::parse("ftp://x").is_err());
    }

    #[test]
    fn exemptions() {
        for (host, list, expected) in [
            ("k8s.example.com", "", false),
            ("localhost", "", true),
            ("127.0.0.1", "", true),
            ("k8s.example.com", "example.com", true),
            ("example.com", "example.com", true),
            ("example.com", ".example.com", false),
            ("k8s.example.com", ".example.com", true),
            ("k8s.example.com", "other.com, *", true),
            ("10.1.2.3", "10.0.0.0/8", true),
            ("11.1.2.3", "10.0.0.0/8", false),
            ("k8s.example.com", "k8s.example.com:6443", true),
            ("k8s.example.com", "k8s.example.com:1", false),
        ] {
            assert_eq!(is_exempt(host, 6443, list), expected, "{host} {list}");
        }
    }

    /// A proxy that checks what it is asked, then echoes.
    async fn scripted(steps: Vec<(Vec<u8>, Vec<u8>)>) -> (u16, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for (expected, answer) in steps {
                let mut got = vec![0; expected.len()];
                stream.read_exact(&mut got).await.unwrap();
                assert_eq!(got, expected);
                stream.write_all(&answer).await.unwrap();
            }
            stream.write_all(b"hello").await.unwrap();
        });
        (port, task)
    }

    #[tokio::test]
    async fn both_kinds_lead_to_the_server() {
        let http = vec![(
            b"CONNECT s:6443 HTTP/1.1\r\nHost: s:6443\r\nProxy-Authorization: Basic dTpw\r\n\r\n".to_vec(),
            b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n".to_vec(),
        )];
        let socks = vec![
            (vec![5, 1, 2], vec![5, 2]),
            (vec![1, 1, b'u', 1, b'p'], vec![1, 0]),
            (vec![5, 1, 0, 3, 1, b's', 0x19, 0x2b], vec![5, 0, 0, 1, 1, 2, 3, 4, 0, 1]),
        ];
        for (scheme, steps) in [("http", http), ("socks5", socks)] {
            let (port, task) = scripted(steps).await;
            let proxy = Proxy::parse(&format!("{scheme}://u:p@127.0.0.1:{port}")).unwrap();
            let mut stream = proxy.connect("s", 6443).await.unwrap();
            let mut greeting = [0; 5];
            stream.read_exact(&mut greeting).await.unwrap();
            assert_eq!(&greeting, b"hello", "{scheme}");
            task.await.unwrap();
        }
        let (port, _task) = scripted(vec![(b"CONNECT".to_vec(), b"HTTP/1.1 403 Forbidden\r\n\r\n".to_vec())]).await;
        let proxy = Proxy::parse(&format!("http://127.0.0.1:{port}")).unwrap();
        assert_eq!(proxy.connect("s", 1).await.unwrap_err().to_string(), "403 Forbidden");
    }
}
