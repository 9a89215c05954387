//! Finds the owner of a connection on the loopback interface.
//!
//! Whoever connects to a debugging port controls the browser. Chromium accepts every user of the machine; the relay
//! first looks up the peer's uid in the kernel's socket table.

use std::fs;
use std::net::SocketAddr;

/// The uid that owns the socket at `peer`, which is connected to `own`; `None` if the kernel does not list it.
pub(crate) fn uid(peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let table = fs::read_to_string("/proc/self/net/tcp").ok()?;
    find(&table, &hex(peer)?, &hex(own)?)
}

/// Columns: number, local address, remote address, state, queues, timer, retransmits, uid, …
fn find(table: &str, local: &str, remote: &str) -> Option<u32> {
    table.lines().skip(1).find_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let matches = columns.next()? == local && columns.next()? == remote;
        matches.then(|| columns.nth(4)?.parse().ok())?
    })
}

/// An address in the format of that table: the four bytes in native byte order, then the port.
fn hex(address: SocketAddr) -> Option<String> {
    match address {
        SocketAddr::V4(v4) => Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(v4.ip().octets()), v4.port())),
        SocketAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_uid_of_a_peer_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (accepted, peer) = listener.accept().expect("accept");
        let own = accepted.local_addr().expect("address");
        assert_eq!(uid(peer, own), Some(nix::unistd::geteuid().as_raw()));
        assert_eq!(uid(peer, "127.0.0.1:1".parse().expect("address")), None, "another connection");
        drop(client);
    }

    #[test]
    fn a_line_of_the_table_is_parsed() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                        0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 12345 1\n";
        assert_eq!(find(table, "0100007F:1F90", "0100007F:C350"), Some(1000));
        assert_eq!(find(table, "0100007F:C350", "0100007F:1F90"), None);
    }
}
