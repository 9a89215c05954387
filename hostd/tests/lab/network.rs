//! Servers and connections in network namespaces of the test.

use super::{LIMIT, PORT, PUBLIC};
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

/// Enter a network namespace for as long as the calling thread lives.
pub fn enter(namespace: &Path) {
    let namespace = File::open(namespace).unwrap_or_else(|error| panic!("{}: {error}", namespace.display()));
    setns(namespace, CloneFlags::CLONE_NEWNET).expect("entering a namespace");
}

/// A web server in a namespace of the test: `/redirect/ADDRESS` redirects to that address, `/cookies` shows the request's
/// cookies and sets one, and every other path is a page.
pub fn serve(namespace: impl AsRef<Path>, address: SocketAddr) {
    // `join` replaces the folder of `ip netns` if this is an absolute path.
    let namespace = Path::new("/run/netns").join(namespace);
    let (ready, listening) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        enter(&namespace);
        let listener = TcpListener::bind(address).expect("listening");
        ready.send(()).expect("the test waits");
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    listening.recv_timeout(LIMIT).expect("the server listens");
}

fn answer(mut stream: TcpStream) {
    let mut request = [0; 4096];
    let Ok(count) = stream.read(&mut request) else { return };
    let request = String::from_utf8_lossy(&request[..count]);
    let path = request.split_whitespace().nth(1).unwrap_or("/");
    let html = |headers: &str, page: &str| {
        let length = page.len();
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{page}"
        )
    };
    let reply = if let Some(target) = path.strip_prefix("/redirect/") {
        format!(
            "HTTP/1.1 302 Found\r\nLocation: http://{target}:{PORT}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
    } else if path.starts_with("/cookies") {
        let sent = request.lines().find_map(|line| line.strip_prefix("Cookie: ")).unwrap_or("none");
        html("Set-Cookie: visited=yes; Path=/\r\n", &format!("<!doctype html><title>cookies</title>{sent}"))
    } else {
        html(
            "",
            "<!doctype html><title>rendered</title><body style='background:#0a0'><h1>Hello from outside</h1>",
        )
    };
    let _ = stream.write_all(reply.as_bytes());
}

/// Whether a TCP connection from inside a namespace to an address succeeds.
pub fn reaches(namespace: &Path, address: IpAddr, port: u16, patience: Duration) -> bool {
    let namespace = namespace.to_owned();
    let attempt = std::thread::spawn(move || {
        enter(&namespace);
        TcpStream::connect_timeout(&SocketAddr::new(address, port), patience).is_ok()
    });
    attempt.join().expect("the attempt does not panic")
}

/// A resolver in a namespace of the test: names that begin with `rebind` have the address `rebind`, all others have
/// [`PUBLIC`].
pub fn resolve(namespace: &str, address: IpAddr, rebind: Ipv4Addr) {
    let namespace = Path::new("/run/netns").join(namespace);
    let (ready, listening) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        enter(&namespace);
        let socket = UdpSocket::bind((address, 53)).expect("listening");
        ready.send(()).expect("the test waits");
        let mut query = [0; 512];
        while let Ok((count, from)) = socket.recv_from(&mut query) {
            let query = &query[..count];
            // Header (12 bytes), labels up to a zero byte, type and class (4 bytes).
            let Some(end) = query.iter().skip(12).position(|byte| *byte == 0).map(|at| 12 + at + 5) else {
                continue;
            };
            let Some(question) = query.get(12..end) else { continue };
            let is_a = question[question.len() - 4..] == [0, 1, 0, 1];
            let address =
                if question[1..].starts_with(b"rebind") { rebind } else { PUBLIC.parse().expect("IPv4") };
            let mut reply = vec![query[0], query[1], 0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0];
            reply.extend_from_slice(question);
            if is_a {
                reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                reply.extend_from_slice(&address.octets());
            }
            let _ = socket.send_to(&reply, from);
        }
    });
    listening.recv_timeout(LIMIT).expect("the resolver listens");
}

/// Whether a resolver answers inside a namespace.
pub fn resolves(namespace: &Path, resolver: IpAddr) -> bool {
    let namespace = namespace.to_owned();
    let attempt = std::thread::spawn(move || {
        enter(&namespace);
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(700))).expect("a timeout");
        let query = b"\x01\x02\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04name\x00\x00\x01\x00\x01";
        socket.send_to(query, (resolver, 53)).is_ok() && socket.recv(&mut [0; 512]).is_ok()
    });
    attempt.join().expect("the attempt does not panic")
}
