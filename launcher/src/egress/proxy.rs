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

use super::request::{self, MAX_HEAD, Request};
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
        let target = match &request {
            Request::Tunnel(target) | Request::Plain { target, .. } => target,
        };
        let mut server = match self.connect(target).await {
            Ok(server) => server,
            Err(refusal) => return answer(&mut client, &refusal).await,
        };
        server.set_nodelay(true)?;
        match &request {
            Request::Tunnel(_) => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
            Request::Plain { head, .. } => server.write_all(head).await?,
        }
        server.write_all(&body).await?;
        tokio::io::copy_bidirectional(&mut client, &mut server).await?;
        Ok(())
    }

    /// Resolves once, checks all addresses and dials a checked one.
    async fn connect(&self, target: &Target) -> Result<TcpStream, Refusal> {
        let denied = |denial: super::Denial| Refusal { status: "403 Forbidden", message: denial.to_string() };
        let failed = |what: String| Refusal { status: "502 Bad Gateway", message: what };
        self.rules.check_name(target).map_err(denied)?;
        let addresses = match timeout(DIAL_DEADLINE, self.network.resolve(target)).await {
            Ok(Ok(addresses)) if !addresses.is_empty() => addresses,
            Ok(Ok(_)) => return Err(failed(format!("{} has no address", target.host))),
            Ok(Err(error)) => {
                return Err(failed(format!("{} cannot be resolved: {error}", target.host)));
            }
            Err(_) => return Err(failed(format!("{} was not resolved in time", target.host))),
        };
        // Fails closed: without this list the host's own addresses would be reachable.
        let own = self
            .network
            .own_addresses()
            .map_err(|error| failed(format!("the host's addresses cannot be listed: {error}")))?;
        let permitted = self.rules.check_addresses(target, &addresses, &own).map_err(denied)?;
        let mut last = String::new();
        for address in permitted {
            match timeout(DIAL_DEADLINE, self.network.dial(address)).await {
                Ok(Ok(server)) => return Ok(server),
                Ok(Err(error)) => last = format!("{address}: {error}"),
                Err(_) => last = format!("{address}: no connection within {} s", DIAL_DEADLINE.as_secs()),
            }
        }
        Err(failed(format!("{target} cannot be reached ({last})")))
    }
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
        let proxy = Arc::new(Proxy { rules, network });
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
        tokio::spawn(serve(listener, Arc::new(Proxy { rules, network: HostNetwork })));
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
}
