//! Sends packets to any destination through a packet socket on the clone's link.

#![allow(unsafe_code)]

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// Sends a UDP datagram to the machine with this MAC, from `interface` in the calling thread's network namespace.
/// `options` are appended to the IPv4 header.
pub(crate) fn inject(interface: &str, mac: [u8; 6], from: IpAddr, to: IpAddr, port: u16, options: &[u8]) {
    let datagram = udp(from, to, port);
    let (packet, ethertype) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let words = 5 + u8::try_from(options.len() / 4).expect("short");
            let length = u16::try_from(20 + options.len() + datagram.len()).expect("short");
            let mut header = vec![0x40 | words, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0];
            header[2..4].copy_from_slice(&length.to_be_bytes());
            header.extend(from.octets());
            header.extend(to.octets());
            header.extend(options);
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            ([header, datagram].concat(), libc::ETH_P_IP)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = u16::try_from(datagram.len()).expect("short").to_be_bytes();
            let mut header = vec![0x60, 0, 0, 0, length[0], length[1], 17, 64];
            header.extend(from.octets());
            header.extend(to.octets());
            ([header, datagram].concat(), libc::ETH_P_IPV6)
        }
        _ => panic!("{from} and {to} are of two families"),
    };
    let fd = socket(AddressFamily::Packet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).expect("root");
    let ethertype = u16::try_from(ethertype).expect("16 bits").to_be();
    // SAFETY: sockaddr_ll is a plain C structure for which all zeroes is a valid value.
    let mut link: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    link.sll_family = u16::try_from(libc::AF_PACKET).expect("small");
    link.sll_protocol = ethertype;
    link.sll_ifindex = i32::try_from(if_nametoindex(interface).expect("the interface")).expect("small");
    link.sll_halen = 6;
    link.sll_addr[..6].copy_from_slice(&mac);
    // SAFETY: both buffers are valid for the lengths given and outlive the call.
    let sent = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            0,
            (&raw const link).cast(),
            u32::try_from(size_of::<libc::sockaddr_ll>()).expect("small"),
        )
    };
    assert_eq!(sent, isize::try_from(packet.len()).expect("short"), "{}", std::io::Error::last_os_error());
}

fn udp(from: IpAddr, to: IpAddr, port: u16) -> Vec<u8> {
    let mut datagram = vec![0x30, 0x39, 0, 0, 0, 12, 0, 0, b'w', b'i', b'r', b'e'];
    datagram[2..4].copy_from_slice(&port.to_be_bytes());
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let pseudo = [octets(from), octets(to), vec![0, 17, 0, 12], datagram.clone()].concat();
    let sum = checksum(&pseudo);
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}
