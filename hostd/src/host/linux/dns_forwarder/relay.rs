//! The forwarder's process. It passes queries on and answers back, and reads nothing of either but the header.
//!
//! Clones are hostile: what one of them can have under way and send per second is bounded, and so are all of them together.

use super::FORWARD;
use crate::host::linux::jail::lock::SupervisorLock;
use crate::host::resolvers;
use ipnet::Ipv4Net;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid, setsid};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Queries of one clone, and of all, that wait for an answer at the same time.
const WAITING_PER_CLONE: u32 = 64;
const WAITING: u32 = 512;
/// Queries of one clone per second on average, and at once.
const RATE: f64 = 100.0;
const BURST: f64 = 500.0;
/// How long one of the machine's resolvers may take. The C library waits five seconds for all of them.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(2400);
/// How long a TCP connection of a clone may be open.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// A DNS header.
const HEADER: usize = 12;
/// No query of a browser is nearly as long.
const LONGEST_QUERY: usize = 1232;
/// Answers by UDP are at most what the query announces, which programs limit to 4096.
const LONGEST_DATAGRAM: usize = 4096;
/// Answers of the forwarder itself.
const SERVER_FAILURE: u8 = 2;
const REFUSED: u8 = 5;

/// Run as the forwarder, if these are its arguments.
pub(in crate::host::linux) fn main(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()? != *FORWARD {
        return None;
    }
    let file = PathBuf::from(arguments.next()?);
    let uid = arguments.next()?.to_str()?.parse().ok()?;
    let clones = arguments.next()?.to_str()?.parse().ok()?;
    let cgroup = arguments.next().map(PathBuf::from);
    Some(match forward(file, uid, clones, cgroup) {
        Ok(never) => match never {},
        Err(_) => ExitCode::FAILURE,
    })
}

fn forward(
    file: PathBuf,
    uid: u32,
    clones: Ipv4Net,
    cgroup: Option<PathBuf>,
) -> io::Result<std::convert::Infallible> {
    setsid()?;
    if let Some(cgroup) = cgroup {
        std::fs::write(cgroup.join("cgroup.procs"), "0")?;
    }
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let (udp, tcp) = (take(io::stdin())?, take(io::stdout())?);
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    let lock = OpenOptions::new().read(true).write(true).open(&file)?;
    // From here on it has no privileges and gets none: leaving user id 0 drops all capabilities.
    setgroups(&[])?;
    setresgid(Gid::from_raw(uid), Gid::from_raw(uid), Gid::from_raw(uid))?;
    setresuid(Uid::from_raw(uid), Uid::from_raw(uid), Uid::from_raw(uid))?;
    nix::sys::prctl::set_no_new_privs()?;
    setrlimit(Resource::RLIMIT_NOFILE, 2048, 2048)?;
    setrlimit(Resource::RLIMIT_FSIZE, 0, 0)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let udp = std::net::UdpSocket::from(udp);
        let tcp = std::net::TcpListener::from(tcp);
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        let relay = Relay { udp: UdpSocket::from_std(udp)?, clones, state: RefCell::default() };
        let (relay, tcp) = (Rc::new(relay), TcpListener::from_std(tcp)?);
        // The lock says that it serves.
        let _lock = SupervisorLock::take(lock)?;
        let datagrams = relay.clone().datagrams();
        let connections = relay.connections(&tcp);
        Ok(tokio::select! { never = datagrams => never, never = connections => never })
    })
}

fn take(stream: impl AsFd) -> io::Result<OwnedFd> {
    stream.as_fd().try_clone_to_owned()
}

struct Relay {
    udp: UdpSocket,
    clones: Ipv4Net,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    waiting: u32,
    clones: HashMap<Ipv4Addr, CloneState>,
}

struct CloneState {
    waiting: u32,
    /// Queries that it may send at once now, as of this moment.
    left: f64,
    at: Instant,
}

/// A query that waits for its answer. It is counted as long as this lives.
struct Waiting {
    relay: Rc<Relay>,
    clone: Ipv4Addr,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.relay.state.borrow_mut();
        state.waiting -= 1;
        if let Some(clone) = state.clones.get_mut(&self.clone) {
            clone.waiting -= 1;
        }
    }
}

/// Why a query is not passed on.
enum Denied {
    /// It is no query of a clone: no answer.
    Silently,
    /// It gets an answer with this code.
    With(u8),
}

impl Relay {
    async fn datagrams(self: Rc<Self>) -> std::convert::Infallible {
        let mut buffer = [0; LONGEST_DATAGRAM];
        loop {
            let Ok((length, from)) = self.udp.recv_from(&mut buffer).await else {
                // An ICMP error about an earlier answer; the next call waits again.
                tokio::task::yield_now().await;
                continue;
            };
            let query = &buffer[..length];
            match self.admit(query, from) {
                Ok(waiting) => {
                    let query = query.to_vec();
                    tokio::task::spawn_local(async move {
                        let answer = by_datagram(&query).await;
                        let answer = answer.unwrap_or_else(|| own_answer(&query, SERVER_FAILURE));
                        let _ = waiting.relay.udp.send_to(&answer, from).await;
                    });
                }
                Err(Denied::With(code)) => drop(self.udp.try_send_to(&own_answer(query, code), from)),
                Err(Denied::Silently) => {}
            }
        }
    }

    async fn connections(self: Rc<Self>, listener: &TcpListener) -> std::convert::Infallible {
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                // Out of descriptors, for example: others are closed soon.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let relay = self.clone();
            // An empty query is enough to count the connection.
            let Ok(waiting) = relay.count(from) else { continue };
            tokio::task::spawn_local(async move {
                let _ = tokio::time::timeout(CONNECTION_TIMEOUT, relay.connection(stream, from)).await;
                drop(waiting);
            });
        }
    }

    /// One TCP connection of a clone: each message has its length before it.
    async fn connection(self: Rc<Self>, mut clone: TcpStream, from: SocketAddr) -> io::Result<()> {
        loop {
            let length = usize::from(clone.read_u16().await?);
            if length > LONGEST_QUERY {
                return Ok(());
            }
            let mut query = vec![0; length];
            clone.read_exact(&mut query).await?;
            let answer = match self.admit(&query, from) {
                Ok(_waiting) => {
                    by_connection(&query).await.unwrap_or_else(|| own_answer(&query, SERVER_FAILURE))
                }
                Err(Denied::With(code)) => own_answer(&query, code),
                Err(Denied::Silently) => return Ok(()),
            };
            let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
            clone.write_all(&[&length.to_be_bytes()[..], &answer].concat()).await?;
        }
    }

    /// Whether this is a query of a clone, and within its limits.
    fn admit(self: &Rc<Self>, query: &[u8], from: SocketAddr) -> Result<Waiting, Denied> {
        if !is_query(query) {
            return Err(Denied::Silently);
        }
        self.count(from)
    }

    fn count(self: &Rc<Self>, from: SocketAddr) -> Result<Waiting, Denied> {
        let IpAddr::V4(clone) = from.ip() else { return Err(Denied::Silently) };
        // The packet filter lets only members through. Without its rules this is not a resolver for the rest of the network.
        if !self.clones.contains(&clone) {
            return Err(Denied::Silently);
        }
        let mut state = self.state.borrow_mut();
        let now = Instant::now();
        if state.clones.len() > usize::from(crate::slot::Slot::MAX) {
            // Addresses that are no slots.
            state.clones.retain(|_, clone| clone.waiting > 0);
        }
        let all = state.waiting;
        let counted = state.clones.entry(clone).or_insert(CloneState { waiting: 0, left: BURST, at: now });
        counted.left = (counted.left + now.duration_since(counted.at).as_secs_f64() * RATE).min(BURST);
        counted.at = now;
        if counted.left < 1.0 || counted.waiting >= WAITING_PER_CLONE || all >= WAITING {
            return Err(Denied::With(REFUSED));
        }
        counted.left -= 1.0;
        counted.waiting += 1;
        state.waiting += 1;
        Ok(Waiting { relay: self.clone(), clone })
    }
}

/// Whether this is an ordinary query with one question: no update, no notification, no answer.
fn is_query(message: &[u8]) -> bool {
    (HEADER + 5..=LONGEST_QUERY).contains(&message.len()) && message[2] & 0xf8 == 0 && message[4..6] == [0, 1]
}

/// An answer without records: the query itself with this code.
fn own_answer(query: &[u8], code: u8) -> Vec<u8> {
    let mut answer = query.to_vec();
    // An answer; recursion is available.
    answer[2] |= 0x80;
    answer[3] = 0x80 | code;
    answer
}

/// Whether this answers the query: the same number, and an answer.
fn answers(answer: &[u8], query: &[u8]) -> bool {
    answer.len() >= HEADER && answer[..2] == query[..2] && answer[2] & 0x80 != 0
}

fn any(server: &SocketAddr) -> SocketAddr {
    match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// The answer of the first resolver that has one.
async fn by_datagram(query: &[u8]) -> Option<Vec<u8>> {
    for server in resolvers::of_this_machine() {
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, async {
            // The kernel chooses a random port for each query and passes only datagrams of this server.
            let socket = UdpSocket::bind(any(&server)).await?;
            socket.connect(server).await?;
            socket.send(query).await?;
            let mut buffer = [0; LONGEST_DATAGRAM];
            loop {
                let length = socket.recv(&mut buffer).await?;
                if answers(&buffer[..length], query) {
                    return io::Result::Ok(buffer[..length].to_vec());
                }
            }
        });
        if let Ok(Ok(answer)) = asked.await {
            return Some(answer);
        }
    }
    None
}

async fn by_connection(query: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(query.len()).ok()?;
    for server in resolvers::of_this_machine() {
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, async {
            let mut stream = TcpStream::connect(server).await?;
            stream.write_all(&[&length.to_be_bytes()[..], query].concat()).await?;
            let mut answer = vec![0; usize::from(stream.read_u16().await?)];
            stream.read_exact(&mut answer).await?;
            io::Result::Ok(answer)
        });
        if let Ok(Ok(answer)) = asked.await
            && answers(&answer, query)
        {
            return Some(answer);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: &[u8] = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04name\x00\x00\x01\x00\x01";

    #[test]
    fn only_ordinary_queries_are_passed_on() {
        assert!(is_query(QUERY));
        let changed = |at: usize, to: u8| {
            let mut query = QUERY.to_vec();
            query[at] = to;
            query
        };
        assert!(!is_query(&changed(2, 0x81)), "an answer");
        assert!(!is_query(&changed(2, 0x28)), "an update");
        assert!(!is_query(&changed(2, 0x20)), "a notification");
        assert!(!is_query(&changed(5, 0)) && !is_query(&changed(5, 2)), "no question, two questions");
        assert!(!is_query(&QUERY[..12]) && !is_query(&[]) && !is_query(&[0; 2000]));
        assert!(!is_query(&[QUERY, &[0; LONGEST_QUERY]].concat()), "too long");
    }

    #[test]
    fn an_own_answer_belongs_to_its_query() {
        let answer = own_answer(QUERY, SERVER_FAILURE);
        assert!(answers(&answer, QUERY) && answer[3] & 0xf == SERVER_FAILURE && answer.len() == QUERY.len());
        assert!(!answers(QUERY, QUERY), "a query");
        assert!(
            !answers(&own_answer(b"\x12\x35\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00", 0), QUERY),
            "another's"
        );
        assert!(!answers(&answer[..4], QUERY));
    }

    #[tokio::test]
    async fn each_clone_has_its_own_limits_and_all_share_one() {
        let relay = Rc::new(Relay {
            udp: UdpSocket::bind("127.0.0.1:0").await.expect("a socket"),
            clones: "10.87.64.0/22".parse().expect("a network"),
            state: RefCell::default(),
        });
        let from = |last: u8| SocketAddr::from(([10, 87, 64, last], 1000));
        let mut waiting = Vec::new();
        for _ in 0..WAITING_PER_CLONE {
            waiting.push(relay.admit(QUERY, from(16)).ok().expect("within the limit"));
        }
        assert!(matches!(relay.admit(QUERY, from(16)), Err(Denied::With(REFUSED))));
        assert!(relay.admit(QUERY, from(17)).is_ok(), "another clone");
        waiting.clear();
        assert!(relay.admit(QUERY, from(16)).is_ok(), "answered queries do not count");
        let answered = (0..2 * BURST as u32).filter(|_| relay.admit(QUERY, from(18)).is_ok()).count();
        assert!((BURST as usize..2 * BURST as usize).contains(&answered), "{answered}");
        for clone in 20..20 + u8::try_from(WAITING / WAITING_PER_CLONE).expect("small") {
            waiting
                .extend((0..WAITING_PER_CLONE).map(|_| relay.admit(QUERY, from(clone)).ok().expect("room")));
        }
        assert!(relay.admit(QUERY, from(99)).is_err(), "all together");
        for stranger in ["127.0.0.1:1", "192.168.1.7:1", "[::1]:1"] {
            let stranger = stranger.parse().expect("an address");
            assert!(matches!(relay.admit(QUERY, stranger), Err(Denied::Silently)), "{stranger}");
        }
    }
}
