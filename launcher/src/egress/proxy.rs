//! The proxy: accepts a connection, reads one request head, checks the target, dials it and copies bytes.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::request::{self, MAX_HEAD, Plain, Request};
use super::upstream::{Kind, Upstream};
use super::{EgressRules, Target};

const HEAD_DEADLINE: Duration = Duration::from_secs(30);
const DIAL_DEADLINE: Duration = Duration::from_secs(20);
/// More than a browser opens through one proxy, less than the descriptor limit of a process.
const MAX_CONNECTIONS: usize = 256;

/// The network as the proxy uses it; tests replace it with a fake.
pub trait Network: Send + Sync + 'static {
    fn resolve(&self, target: &Target) -> impl Future<Output = io::Result<Vec<SocketAddr>>> + Send;
    fn dial(&self, address: SocketAddr) -> impl Future<Output = io::Result<TcpStream>> + Send;
    fn own_addresses(&self) -> io::Result<BTreeSet<IpAddr>>;
}

/// The host's resolver, its sockets and its interfaces.
#[derive(Debug, Default)]
pub struct HostNetwork;

impl Network for HostNetwork {
    async fn resolve(&self, target: &Target) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((target.host.as_str(), target.port)).await?.collect())
    }

    async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }

    fn own_addresses(&self) -> io::Result<BTreeSet<IpAddr>> {
        let mut own = BTreeSet::new();
        for interface in nix::ifaddrs::getifaddrs()? {
            let Some(address) = interface.address else {
                continue;
            };
            if let Some(v4) = address.as_sockaddr_in() {
                own.insert(v4.ip().into());
            } else if let Some(v6) = address.as_sockaddr_in6() {
                own.insert(v6.ip().into());
            }
        }
        Ok(own)
    }
}

/// The rules and the network of a proxy.
#[derive(Debug)]
pub struct Proxy<N> {
    pub rules: EgressRules,
    pub network: N,
    /// The proxy that the user set, if any.
    pub upstream: Option<Upstream>,
}

/// Accepts connections forever. The listener is usually in another network namespace than the dialled sockets.
pub async fn serve<N: Network>(listener: TcpListener, proxy: Arc<Proxy<N>>) -> io::Result<()> {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            // An aborted connection or a temporary lack of descriptors must not end the service.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let proxy = Arc::clone(&proxy);
        tokio::spawn(async move {
            let _slot = slot;
            // An error ends only this connection, and both peers see that.
            let _ = proxy.handle(client).await;
        });
    }
}

/// An error response of the proxy.
struct Refusal {
    status: &'static str,
    message: String,
}

impl<N: Network> Proxy<N> {
    async fn handle(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let (request, body) = match timeout(HEAD_DEADLINE, read_request(&mut client)).await {
            Ok(Ok(Ok(read))) => read,
            Ok(Ok(Err(refusal))) => return answer(&mut client, &refusal).await,
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        };
        let (target, encrypted) = match &request {
            Request::Tunnel { target, .. } => (target, true),
            Request::Plain(plain) => (&plain.target, false),
        };
        let upstream = self.upstream.as_ref().filter(|proxy| !proxy.is_bypassed(target, encrypted));
        let connected = match upstream {
            None => self.connect(target).await.map(|(server, _)| server),
            Some(upstream) => match self.connect_upstream(upstream, target).await {
                Ok((proxy, host)) if upstream.kind == Kind::Http => {
                    return through_http(client, proxy, &request, &host, &body).await;
                }
                Ok((mut proxy, host)) => match timeout(DIAL_DEADLINE, socks5(&mut proxy, &host)).await {
                    Ok(Ok(())) => Ok(proxy),
                    Ok(Err(error)) => Err(bad_gateway(format!("the upstream proxy: {error}"))),
                    Err(_) => Err(bad_gateway("the upstream proxy did not answer in time".into())),
                },
                Err(refusal) => Err(refusal),
            },
        };
        let mut server = match connected {
            Ok(server) => server,
            Err(refusal) => return answer(&mut client, &refusal).await,
        };
        server.set_nodelay(true)?;
        match &request {
            Request::Tunnel { .. } => client.write_all(ESTABLISHED).await?,
            Request::Plain(plain) => server.write_all(&plain.head()).await?,
        }
        server.write_all(&body).await?;
        tokio::io::copy_bidirectional(&mut client, &mut server).await?;
        Ok(())
    }

    /// Connects to the upstream proxy, and returns what to ask it for: the checked target. A proxy in the Internet
    /// resolves names itself. A proxy in the machine's own networks reaches what the browser must not, so it gets an
    /// address that was checked here.
    async fn connect_upstream(
        &self,
        upstream: &Upstream,
        target: &Target,
    ) -> Result<(TcpStream, Target), Refusal> {
        self.rules.check_name(target).map_err(denied)?;
        self.rules.check_literal(target, &self.own_addresses()?).map_err(denied)?;
        let (proxy, address) = self.connect(&upstream.target).await.map_err(|refusal| Refusal {
            message: format!("the upstream proxy: {}", refusal.message),
            ..refusal
        })?;
        proxy.set_nodelay(true).map_err(|error| bad_gateway(error.to_string()))?;
        if !Upstream::is_local(address.ip()) {
            return Ok((proxy, target.clone()));
        }
        let checked = self.addresses(target).await?[0];
        Ok((proxy, Target { host: checked.ip().to_string(), port: checked.port() }))
    }

    /// Fails closed: without this list the host's own addresses would be reachable.
    fn own_addresses(&self) -> Result<BTreeSet<IpAddr>, Refusal> {
        let own = self.network.own_addresses();
        own.map_err(|error| bad_gateway(format!("the host's addresses cannot be listed: {error}")))
    }

    /// Resolves a name once and returns its permitted addresses, at least one.
    async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Refusal> {
        let failed = bad_gateway;
        self.rules.check_name(target).map_err(denied)?;
        let addresses = match timeout(DIAL_DEADLINE, self.network.resolve(target)).await {
            Ok(Ok(addresses)) if !addresses.is_empty() => addresses,
            Ok(Ok(_)) => return Err(failed(format!("{} has no address", target.host))),
            Ok(Err(error)) => {
                return Err(failed(format!("{} cannot be resolved: {error}", target.host)));
            }
            Err(_) => return Err(failed(format!("{} was not resolved in time", target.host))),
        };
        self.rules.check_addresses(target, &addresses, &self.own_addresses()?).map_err(denied)
    }

    /// Resolves once, checks all addresses and dials a checked one, which is returned too.
    async fn connect(&self, target: &Target) -> Result<(TcpStream, SocketAddr), Refusal> {
        let mut last = String::new();
        for address in self.addresses(target).await? {
            match timeout(DIAL_DEADLINE, self.network.dial(address)).await {
                Ok(Ok(server)) => return Ok((server, address)),
                Ok(Err(error)) => last = format!("{address}: {error}"),
                Err(_) => last = format!("{address}: no connection within {} s", DIAL_DEADLINE.as_secs()),
            }
        }
        Err(bad_gateway(format!("{target} cannot be reached ({last})")))
    }
}

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

fn denied(denial: super::Denial) -> Refusal {
    Refusal { status: "403 Forbidden", message: denial.to_string() }
}

fn bad_gateway(message: String) -> Refusal {
    Refusal { status: "502 Bad Gateway", message }
}

/// Passes one request on through an HTTP proxy. The browser must not be able to send a second one for another target on
/// the same connection, because that one would not be checked.
async fn through_http(
    mut client: TcpStream,
    mut proxy: TcpStream,
    request: &Request,
    host: &Target,
    body: &[u8],
) -> io::Result<()> {
    match request {
        Request::Tunnel { authorization, .. } => {
            proxy.write_all(&request::connect_head(host, authorization.as_deref())).await?;
            let (head, rest) = match timeout(HEAD_DEADLINE, read_response(&mut proxy)).await {
                Ok(Ok(read)) => read,
                Ok(Err(error)) => {
                    return answer(&mut client, &bad_gateway(format!("the upstream proxy: {error}"))).await;
                }
                Err(_) => {
                    let message = "the upstream proxy did not answer in time".to_owned();
                    return answer(&mut client, &bad_gateway(message)).await;
                }
            };
            let Some(refused) = head else {
                client.write_all(ESTABLISHED).await?;
                client.write_all(&rest).await?;
                proxy.write_all(body).await?;
                tokio::io::copy_bidirectional(&mut client, &mut proxy).await?;
                return Ok(());
            };
            client.write_all(&refused).await?;
            client.shutdown().await
        }
        Request::Plain(plain) => {
            let Some(length) = plain.body else {
                let message = "a request without a clear length does not go through an upstream proxy".into();
                return answer(&mut client, &Refusal { status: "411 Length Required", message }).await;
            };
            pass_plain(client, proxy, plain, host, body, length).await
        }
    }
}

/// Passes a plain request with exactly `length` bytes of body, and then only the answer.
async fn pass_plain(
    mut client: TcpStream,
    mut proxy: TcpStream,
    plain: &Plain,
    host: &Target,
    body: &[u8],
    length: u64,
) -> io::Result<()> {
    proxy.write_all(&plain.head_for_proxy(host)).await?;
    let known = usize::try_from(length).unwrap_or(usize::MAX).min(body.len());
    proxy.write_all(&body[..known]).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_proxy, mut to_proxy) = proxy.split();
    let mut rest = (&mut from_client).take(length - known as u64);
    let sending = async {
        tokio::io::copy(&mut rest, &mut to_proxy).await?;
        // The proxy's answer is the end.
        std::future::pending::<io::Result<()>>().await
    };
    let receiving = async {
        tokio::io::copy(&mut from_proxy, &mut to_client).await?;
        to_client.shutdown().await
    };
    tokio::select! {
        result = sending => result,
        result = receiving => result,
    }
}

/// Reads the answer to `CONNECT`: the bytes that follow it, and for a refusal a head for the browser. The browser gets the
/// proxy's status and its challenge for credentials, and has to connect again.
async fn read_response(proxy: &mut TcpStream) -> io::Result<(Option<Vec<u8>>, Vec<u8>)> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if proxy.read_buf(&mut bytes).await? == 0 {
            return Err(io::Error::other("it closed the connection"));
        }
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut headers);
        let length = match head.parse(&bytes).map_err(io::Error::other)? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial if bytes.len() < MAX_HEAD => continue,
            httparse::Status::Partial => return Err(io::Error::other("its answer is too long")),
        };
        let code = head.code.unwrap_or_default();
        if (200..300).contains(&code) {
            return Ok((None, bytes.split_off(length)));
        }
        let mut refusal = format!("HTTP/1.1 {code} {}\r\n", head.reason.unwrap_or_default()).into_bytes();
        for header in
            head.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("proxy-authenticate"))
        {
            refusal.extend_from_slice(&[b"Proxy-Authenticate: ", header.value, b"\r\n"].concat());
        }
        refusal
            .extend_from_slice(b"Content-Length: 0\r\nConnection: close\r\nProxy-Connection: close\r\n\r\n");
        return Ok((Some(refusal), Vec::new()));
    }
}

/// Asks a SOCKS5 proxy for a connection (RFC 1928), without credentials: Chromium has none for it.
async fn socks5(proxy: &mut TcpStream, host: &Target) -> io::Result<()> {
    proxy.write_all(&[5, 1, 0]).await?;
    let mut method = [0; 2];
    proxy.read_exact(&mut method).await?;
    if method != [5, 0] {
        return Err(io::Error::other("it is not a SOCKS5 proxy without credentials"));
    }
    let mut request = vec![5, 1, 0];
    match host.host.parse() {
        Ok(IpAddr::V4(address)) => {
            request.push(1);
            request.extend_from_slice(&address.octets());
        }
        Ok(IpAddr::V6(address)) => {
            request.push(4);
            request.extend_from_slice(&address.octets());
        }
        Err(_) => {
            request.extend_from_slice(&[3, u8::try_from(host.host.len()).map_err(io::Error::other)?]);
            request.extend_from_slice(host.host.as_bytes());
        }
    }
    request.extend_from_slice(&host.port.to_be_bytes());
    proxy.write_all(&request).await?;
    let mut reply = [0; 4];
    proxy.read_exact(&mut reply).await?;
    if reply[..2] != [5, 0] {
        return Err(io::Error::other(format!("it refused {host} (SOCKS5 reply {})", reply[1])));
    }
    // The address that follows is the proxy's own.
    let length = match reply[3] {
        1 => 4,
        4 => 16,
        3 => usize::from(proxy.read_u8().await?),
        _ => return Err(io::Error::other("its reply is not valid")),
    };
    proxy.read_exact(&mut vec![0; length + 2]).await?;
    Ok(())
}

/// Reads the request head and any bytes that follow it.
async fn read_request(client: &mut TcpStream) -> io::Result<Result<(Request, Vec<u8>), Refusal>> {
    let mut bytes = Vec::with_capacity(2048);
    loop {
        // The end of a head may have begun in the bytes that were there before.
        let searched = bytes.len().saturating_sub(3);
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // A browser that sends single bytes must not make the whole head be parsed for each of them.
        if bytes.len() < MAX_HEAD && !has_empty_line(&bytes[searched..]) {
            continue;
        }
        match request::parse(&bytes[..bytes.len().min(MAX_HEAD)]) {
            Ok(None) => {}
            Ok(Some((request, head))) => return Ok(Ok((request, bytes.split_off(head)))),
            Err(error) => {
                return Ok(Err(Refusal { status: "400 Bad Request", message: error.to_string() }));
            }
        }
    }
}

fn has_empty_line(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair == b"\n\n") || bytes.windows(3).any(|three| three == b"\n\r\n")
}

async fn answer(client: &mut TcpStream, refusal: &Refusal) -> io::Result<()> {
    let Refusal { status, message } = refusal;
    let body = format!("egress proxy: {message}\n");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await?;
    client.write_all(body.as_bytes()).await?;
    client.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::Mutex;

    /// Returns scripted addresses, one set per lookup; records every dial and connects it to one local server.
    #[derive(Default)]
    struct Scripted {
        answers: Mutex<HashMap<String, Vec<Vec<SocketAddr>>>>,
        dialled: Mutex<Vec<SocketAddr>>,
        server: Option<SocketAddr>,
    }

    impl Network for Scripted {
        async fn resolve(&self, target: &Target) -> io::Result<Vec<SocketAddr>> {
            if let Ok(address) = target.host.parse::<IpAddr>() {
                return Ok(vec![SocketAddr::new(address, target.port)]);
            }
            let mut answers = self.answers.lock().expect("lock");
            let script = answers.get_mut(&target.host).ok_or(io::ErrorKind::NotFound)?;
            Ok(script.remove(0))
        }

        async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
            self.dialled.lock().expect("lock").push(address);
            TcpStream::connect(self.server.expect("a server for tests that get through")).await
        }

        fn own_addresses(&self) -> io::Result<BTreeSet<IpAddr>> {
            Ok(BTreeSet::from(["93.184.216.34".parse().expect("address")]))
        }
    }

    /// Replies with "got: " and the received bytes.
    async fn echo_server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    let length = stream.read(&mut buffer).await.expect("read");
                    stream.write_all(b"got: ").await.expect("write");
                    stream.write_all(&buffer[..length]).await.expect("write");
                });
            }
        });
        address
    }

    async fn start(rules: EgressRules, network: Scripted) -> (SocketAddr, Arc<Proxy<Scripted>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let proxy = Arc::new(Proxy { rules, network, upstream: None });
        tokio::spawn(serve(listener, Arc::clone(&proxy)));
        (address, proxy)
    }

    async fn ask(proxy: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(proxy).await.expect("connect");
        stream.write_all(request.as_bytes()).await.expect("write");
        stream.shutdown().await.expect("shutdown");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        answer
    }

    #[tokio::test]
    async fn denied_targets_get_an_error_and_are_never_dialled() {
        let (address, proxy) = start(EgressRules::default(), Scripted::default()).await;
        for target in [
            "127.0.0.1:22",
            "169.254.169.254:80",
            "10.0.0.1:443",
            "[::1]:80",
            "[::ffff:10.0.0.1]:80",
            "93.184.216.34:80",
            "localhost:80",
            "metadata.google.internal:80",
            "168.63.129.16:80",
            "0.0.0.0:22",
            "[fd00:ec2::254]:80",
        ] {
            let answer = ask(address, &format!("CONNECT {target} HTTP/1.1\r\n\r\n")).await;
            assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("denied"), "{target}: {answer}");
            let answer = ask(address, &format!("GET http://{target}/ HTTP/1.1\r\n\r\n")).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
        }
        assert_eq!(*proxy.network.dialled.lock().expect("lock"), []);
    }

    #[tokio::test]
    async fn a_rebinding_name_is_checked_by_the_dialled_address() {
        let public: SocketAddr = "1.1.1.1:80".parse().expect("address");
        let private: SocketAddr = "192.168.1.1:80".parse().expect("address");
        let network = Scripted { server: Some(echo_server().await), ..Scripted::default() };
        network
            .answers
            .lock()
            .expect("lock")
            .insert("rebind.example".into(), vec![vec![public], vec![private]]);
        let (address, proxy) = start(EgressRules::default(), network).await;
        let request = "GET http://rebind.example/x HTTP/1.1\r\nHost: rebind.example\r\n\r\n";
        assert!(ask(address, request).await.starts_with("got: GET /x HTTP/1.1\r\nHost: rebind.example\r\n"));
        assert!(ask(address, request).await.starts_with("HTTP/1.1 403 "));
        assert_eq!(*proxy.network.dialled.lock().expect("lock"), [public]);
        // One lookup per connection.
        assert!(proxy.network.answers.lock().expect("lock")["rebind.example"].is_empty());
    }

    #[tokio::test]
    async fn a_tunnel_carries_bytes_both_ways() {
        let network = Scripted { server: Some(echo_server().await), ..Scripted::default() };
        let (address, _proxy) = start(EgressRules::default(), network).await;
        let answer = ask(address, "CONNECT 1.1.1.1:443 HTTP/1.1\r\n\r\nhello").await;
        assert_eq!(answer, "HTTP/1.1 200 Connection established\r\n\r\ngot: hello");
    }

    #[tokio::test]
    async fn an_allowed_local_server_is_reached_through_the_real_network() {
        let server = echo_server().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let rules = EgressRules::new(vec![server.to_string().parse().expect("allow")]);
        tokio::spawn(serve(listener, Arc::new(Proxy { rules, network: HostNetwork, upstream: None })));
        let answer = ask(address, &format!("GET http://{server}/ HTTP/1.1\r\n\r\n")).await;
        assert!(answer.starts_with("got: GET / HTTP/1.1\r\n"), "{answer}");
        let other = ask(address, &format!("GET http://127.0.0.1:{}/ HTTP/1.1\r\n\r\n", address.port())).await;
        assert!(other.starts_with("HTTP/1.1 403 "), "{other}");
    }

    #[tokio::test]
    async fn a_request_may_arrive_byte_by_byte_and_an_endless_one_is_refused() {
        let network = Scripted { server: Some(echo_server().await), ..Scripted::default() };
        let (address, _proxy) = start(EgressRules::default(), network).await;
        let mut stream = TcpStream::connect(address).await.expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        for byte in b"GET http://1.1.1.1/ HTTP/1.1\r\nHost: 1.1.1.1\r\n\r\n" {
            stream.write_all(&[*byte]).await.expect("write");
            tokio::task::yield_now().await;
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        assert!(answer.starts_with("got: GET / HTTP/1.1\r\n"), "{answer}");

        let mut stream = TcpStream::connect(address).await.expect("connect");
        let endless = "GET http://1.1.1.1/ HTTP/1.1\r\n".to_owned() + &"a: b\r\n".repeat(MAX_HEAD);
        // The proxy answers and closes before it has read everything.
        let _ = stream.write_all(endless.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    }

    #[tokio::test]
    async fn invalid_requests_get_an_error_and_are_not_forwarded() {
        let (address, proxy) = start(EgressRules::default(), Scripted::default()).await;
        assert!(ask(address, "\0\0\0\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 400 "));
        assert_eq!(*proxy.network.dialled.lock().expect("lock"), []);
    }

    /// A proxy with an upstream at `server`, whose answer to everything is `reply`, and what the upstream received.
    async fn with_upstream(
        server: &str,
        reply: &'static [u8],
    ) -> (SocketAddr, Arc<Mutex<Vec<u8>>>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let received = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&received);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let log = Arc::clone(&log);
                tokio::spawn(async move {
                    let mut chunk = [0; 4096];
                    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
                        log.lock().expect("lock").extend_from_slice(&chunk[..length]);
                        if chunk[..length].ends_with(b"\n") {
                            let _ = stream.write_all(reply).await;
                        }
                        if reply.starts_with(b"HTTP/1.1 204") {
                            return;
                        }
                    }
                });
            }
        });
        let network = Scripted { server: Some(address), ..Scripted::default() };
        network.answers.lock().expect("lock").insert(
            "site.example".into(),
            vec![
                vec!["1.2.3.4:443".parse().expect("address")],
                vec!["10.0.0.1:443".parse().expect("address")],
            ],
        );
        let proxy = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let own = proxy.local_addr().expect("address");
        let allow = vec!["10.9.9.9:8080".parse().expect("allow")];
        let upstream = Upstream::from_switches(server, "bypassed.example").expect("valid");
        tokio::spawn(serve(proxy, Arc::new(Proxy { rules: EgressRules::new(allow), network, upstream })));
        (own, received, address)
    }

    fn text(bytes: &Mutex<Vec<u8>>) -> String {
        String::from_utf8_lossy(&bytes.lock().expect("lock")).into_owned()
    }

    #[tokio::test]
    async fn a_public_upstream_gets_the_name_and_the_credentials() {
        let (address, received, _) =
            with_upstream("http://1.1.1.1:8080", b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nhello").await;
        let request = "CONNECT site.example:443 HTTP/1.1\r\nProxy-Authorization: Basic eDp5\r\n\r\n";
        assert_eq!(ask(address, request).await, "HTTP/1.1 200 Connection established\r\n\r\nhello");
        let head = text(&received);
        assert!(head.starts_with("CONNECT site.example:443 HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("Proxy-Authorization: Basic eDp5\r\n"), "{head}");
        // The checks of names and addresses are the same as without it.
        for target in ["10.0.0.1:443", "localhost:443", "169.254.169.254:80", "93.184.216.34:80"] {
            let answer = ask(address, &format!("CONNECT {target} HTTP/1.1\r\n\r\n")).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
        }
    }

    #[tokio::test]
    async fn an_upstream_in_an_own_network_gets_a_checked_address() {
        let (address, received, _) = with_upstream("http://10.9.9.9:8080", b"HTTP/1.1 200 OK\r\n\r\n").await;
        let request = "CONNECT site.example:443 HTTP/1.1\r\n\r\n";
        ask(address, request).await;
        assert!(text(&received).starts_with("CONNECT 1.2.3.4:443 HTTP/1.1\r\n"), "{}", text(&received));
        // The name now has a private address.
        assert!(ask(address, request).await.starts_with("HTTP/1.1 403 "));
        let (address, received, _) = with_upstream("http://10.9.9.8:8080", b"").await;
        let answer = ask(address, request).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("the upstream proxy"), "{answer}");
        assert_eq!(text(&received), "", "an upstream that is not allowed");
    }

    #[tokio::test]
    async fn a_refused_tunnel_shows_the_challenge_and_ends() {
        let reply = b"HTTP/1.1 407 Auth\r\nProxy-Authenticate: Basic realm=\"x\"\r\nSecret: z\r\nContent-Length: 4\r\n\r\nbody";
        let (address, received, _) = with_upstream("http://1.1.1.1:8080", reply).await;
        // The second request is not checked by the proxy and must not reach the upstream.
        let request = "CONNECT site.example:443 HTTP/1.1\r\n\r\nCONNECT 10.0.0.1:22 HTTP/1.1\r\n\r\n";
        let answer = ask(address, request).await;
        assert!(
            answer.starts_with("HTTP/1.1 407 Auth\r\nProxy-Authenticate: Basic realm=\"x\"\r\n"),
            "{answer}"
        );
        assert!(!answer.contains("Secret") && answer.contains("Connection: close"), "{answer}");
        assert!(!text(&received).contains("10.0.0.1"), "{}", text(&received));
    }

    #[tokio::test]
    async fn a_second_plain_request_does_not_reach_the_upstream() {
        let (address, received, _) =
            with_upstream("http://1.1.1.1:8080", b"HTTP/1.1 204 No\r\nConnection: close\r\n\r\n").await;
        let smuggled = "GET http://10.0.0.1/ HTTP/1.1\r\n\r\n";
        let request = format!("GET http://site.example/a HTTP/1.1\r\nHost: site.example\r\n\r\n{smuggled}");
        assert!(ask(address, &request).await.starts_with("HTTP/1.1 204 No"));
        let head = text(&received);
        assert!(head.starts_with("GET http://site.example:80/a HTTP/1.1\r\n"), "{head}");
        assert!(!head.contains("10.0.0.1"), "{head}");
        let request = "POST http://site.example/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(ask(address, request).await.starts_with("HTTP/1.1 411 "));
    }

    #[tokio::test]
    async fn a_socks5_upstream_is_asked_for_the_name() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accept");
            let mut greeting = [0; 3];
            stream.read_exact(&mut greeting).await.expect("greeting");
            stream.write_all(&[5, 0]).await.expect("write");
            let mut request = [0; 4 + 1 + 12 + 2];
            stream.read_exact(&mut request).await.expect("request");
            stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.expect("write");
            stream.write_all(b"hello").await.expect("write");
            request.to_vec()
        });
        let network = Scripted { server: Some(address), ..Scripted::default() };
        let upstream = Upstream::from_switches("socks5://1.1.1.1", "").expect("valid");
        let proxy = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let own = proxy.local_addr().expect("address");
        tokio::spawn(serve(proxy, Arc::new(Proxy { rules: EgressRules::default(), network, upstream })));
        let answer = ask(own, "CONNECT site.example:443 HTTP/1.1\r\n\r\n").await;
        assert_eq!(answer, "HTTP/1.1 200 Connection established\r\n\r\nhello");
        assert_eq!(asked.await.expect("task"), b"\x05\x01\x00\x03\x0csite.example\x01\xbb");
    }
}
