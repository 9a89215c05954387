//! A second socket plays the kernel: `NETLINK_USERSOCK` carries messages between processes.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

/// A socket whose replies come from `Kernel`.
fn pair() -> (Socket, Kernel) {
    let kernel = Socket::open(Protocol::User).unwrap();
    let mut socket = Socket::open(Protocol::User).unwrap();
    socket.peer = kernel.port;
    (socket, Kernel(kernel))
}

struct Kernel(Socket);

/// What the kernel sends in one datagram.
#[derive(Clone)]
struct Reply {
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    body: Vec<u8>,
}

impl Reply {
    fn new(request: &Message, kind: u16, body: &[u8]) -> Reply {
        // Requests carry port 0: the kernel takes the sender's from the datagram, and so do these tests.
        Reply { kind, flags: 0, sequence: request.sequence, port: 0, body: body.to_vec() }
    }

    fn error(request: &Message, number: i32) -> Reply {
        Reply::new(request, NLMSG_ERROR, &(-number).to_ne_bytes())
    }

    fn done(request: &Message) -> Reply {
        Reply::new(request, NLMSG_DONE, &0i32.to_ne_bytes())
    }

    fn interrupted(self) -> Reply {
        Reply { flags: NLM_F_DUMP_INTR, ..self }
    }
}

const LINK: u16 = 16;

fn request(kind: u16) -> Request {
    Request { kind, flags: 0, body: vec![1, 2, 3, 4] }
}

impl Kernel {
    /// Answer each datagram that `socket` sends by `answers`, in turn.
    fn answering(
        self,
        socket: u32,
        answers: Vec<fn(&[Message]) -> Vec<Reply>>,
    ) -> std::thread::JoinHandle<()> {
        std::thread::spawn(move || {
            for answer in answers {
                let requests = receive(&self.0.fd, socket).unwrap();
                self.send(socket, &answer(&requests));
            }
        })
    }

    fn send(&self, to: u32, replies: &[Reply]) {
        let mut bytes = Vec::new();
        for reply in replies {
            let start = bytes.len();
            let request = Request { kind: reply.kind, flags: reply.flags, body: reply.body.clone() };
            encode(&request, 0, reply.sequence, &mut bytes);
            let port = if reply.port == 0 { to } else { reply.port };
            bytes[start + 12..start + 16].copy_from_slice(&port.to_ne_bytes());
        }
        let to = NetlinkAddr::new(to, 0);
        socket::sendto(self.0.fd.as_raw_fd(), &bytes, &to, MsgFlags::empty()).unwrap();
    }
}

fn interrupted_dump(requests: &[Message]) -> Vec<Reply> {
    let request = &requests[0];
    vec![Reply::new(request, LINK, b"half").interrupted(), Reply::done(request)]
}

fn whole_dump(requests: &[Message]) -> Vec<Reply> {
    let request = &requests[0];
    vec![Reply::new(request, LINK, b"one "), Reply::new(request, LINK, b"two "), Reply::done(request)]
}

#[test]
fn an_interrupted_dump_is_repeated_and_only_the_whole_one_is_returned() {
    let (mut socket, kernel) = pair();
    let last_message_alone = |requests: &[Message]| {
        let request = &requests[0];
        vec![Reply::new(request, LINK, b"half"), Reply::done(request).interrupted()]
    };
    let kernel = kernel.answering(socket.port, vec![interrupted_dump, last_message_alone, whole_dump]);
    let bodies: Vec<Vec<u8>> =
        socket.dump(&request(18)).unwrap().into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, [b"one ", b"two "]);
    kernel.join().unwrap();
}

#[test]
fn a_dump_that_is_always_interrupted_is_an_error() {
    let (mut socket, kernel) = pair();
    let kernel = kernel.answering(socket.port, vec![interrupted_dump; DUMP_ATTEMPTS]);
    let error = socket.dump(&request(18)).unwrap_err();
    assert!(error.to_string().contains("changed during each of 16 dumps"), "{error}");
    kernel.join().unwrap();
}

#[test]
fn a_dump_that_fails_at_its_end_is_an_error() {
    let (mut socket, kernel) = pair();
    let fails = |requests: &[Message]| {
        let request = &requests[0];
        let failed = (-libc::ENOMEM).to_ne_bytes();
        vec![Reply::new(request, LINK, b"half"), Reply::new(request, NLMSG_DONE, &failed)]
    };
    let kernel = kernel.answering(socket.port, vec![fails]);
    assert_eq!(socket.dump(&request(18)).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    kernel.join().unwrap();
}

#[test]
fn only_the_kernels_reply_to_this_request_counts() {
    let (mut socket, kernel) = pair();
    // From a process, with the right numbers. It is queued first.
    let stranger = Kernel(Socket::open(Protocol::User).unwrap());
    let forged = Reply { kind: NLMSG_ERROR, flags: 0, sequence: 1, port: 0, body: vec![0; 4] };
    stranger.send(socket.port, &[forged]);
    let replies = |requests: &[Message]| {
        let stale = Reply { sequence: requests[0].sequence.wrapping_sub(1), ..Reply::error(&requests[0], 1) };
        let misdirected = Reply { port: 1, ..Reply::error(&requests[0], 2) };
        vec![stale, misdirected, Reply::error(&requests[0], libc::EBUSY)]
    };
    let kernel = kernel.answering(socket.port, vec![replies]);
    assert_eq!(socket.change(&request(16)).unwrap_err().raw_os_error(), Some(libc::EBUSY));
    kernel.join().unwrap();
}

#[test]
fn a_batch_waits_for_each_acknowledgement_that_it_asked_for() {
    let (mut socket, kernel) = pair();
    // Sequence numbers wrap around inside of the batch.
    socket.sequence = u32::MAX - 1;
    let acknowledge = |requests: &[Message]| {
        let wanted = requests.iter().filter(|request| request.flags & NLM_F_ACK != 0);
        wanted.map(|request| Reply::error(request, 0)).collect()
    };
    let refuse =
        |requests: &[Message]| vec![Reply::error(&requests[1], 0), Reply::error(&requests[2], libc::ENOENT)];
    let kernel = kernel.answering(socket.port, vec![acknowledge, refuse]);
    let acknowledged = |kind| Request { flags: NLM_F_ACK, ..request(kind) };
    let batch = [request(16), acknowledged(20), acknowledged(21), request(17)];
    socket.batch(&batch).unwrap();
    assert_eq!(socket.batch(&batch).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    kernel.join().unwrap();
}

#[test]
fn a_signal_does_not_end_the_wait_for_a_reply() {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    use std::os::unix::thread::JoinHandleExt;
    extern "C" fn ignore(_: libc::c_int) {}
    // Without SA_RESTART, so that recvmsg(2) fails with EINTR.
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
    #[allow(unsafe_code)]
    // SAFETY: the handler does nothing, and no other test uses this signal.
    unsafe { sigaction(Signal::SIGUSR2, &action) }.unwrap();
    let (mut socket, kernel) = pair();
    let port = socket.port;
    let waiter = std::thread::spawn(move || socket.get(&request(18)).map(|message| message.body));
    let requests = receive(&kernel.0.fd, port).unwrap();
    for _ in 0..20 {
        #[allow(unsafe_code)]
        // SAFETY: the thread was not joined, so its ID is valid.
        let sent = unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGUSR2) };
        assert_eq!(sent, 0);
        std::thread::sleep(Duration::from_millis(1));
    }
    kernel.send(port, &[Reply::new(&requests[0], LINK, b"body")]);
    assert_eq!(waiter.join().unwrap().unwrap(), b"body");
}

#[test]
fn lost_events_are_reported_and_later_ones_are_read() {
    const GROUP: u32 = 1;
    let sender = Socket::open(Protocol::User).unwrap();
    let mut events = EventSocket::subscribe(Protocol::User, GROUP).expect("CAP_NET_ADMIN, which root has");
    events.peer = sender.port;
    assert_eq!(events.read().unwrap(), Events::None);
    let send = |kind| {
        let mut bytes = Vec::new();
        encode(&Request { kind, flags: 0, body: vec![0; 8 << 10] }, 0, 0, &mut bytes);
        // The result is about the kernel's own socket, and this protocol has none. The group receives the message first.
        let _ = socket::sendto(sender.fd.as_raw_fd(), &bytes, &NetlinkAddr::new(0, GROUP), MsgFlags::empty());
    };
    send(20);
    let Events::Messages(messages) = events.read().unwrap() else { panic!("one event is there") };
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].kind, 20);
    // More than the receive buffer holds.
    socket::setsockopt(&events.fd, sockopt::RcvBuf, &4096).unwrap();
    for _ in 0..64 {
        send(21);
    }
    let mut seen = Vec::new();
    while let found @ (Events::Lost | Events::Messages(_)) = events.read().unwrap() {
        seen.push(found);
    }
    assert!(seen.contains(&Events::Lost), "{} datagrams, none lost", seen.len());
    send(22);
    assert!(matches!(events.read().unwrap(), Events::Messages(messages) if messages[0].kind == 22));
}

#[test]
fn the_kernel_answers_dumps_and_refuses_what_is_not_there() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    socket.check_strictly().unwrap();
    // RTM_GETLINK with an empty `struct ifinfomsg`; RTM_NEWLINK is 16.
    let links = socket.dump(&Request { kind: 18, flags: 0, body: vec![0; 16] }).unwrap();
    assert!(!links.is_empty() && links.iter().all(|link| link.kind == 16), "there is a loopback link");
    let mut absent = vec![0; 16];
    absent[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
    let refused = socket.get(&Request { kind: 18, flags: 0, body: absent }).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENODEV));
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some(messages) = parse(&bytes) {
            prop_assert!(messages.len() <= bytes.len());
        }
    }
}
