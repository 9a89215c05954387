//! Proof that clones resolve names and reach the Internet: hostd makes a clone's network without a clone and uses it.
//!
//! The network has a link, a namespace with the second barrier and a membership like any clone's, with names and addresses that
//! no clone has. So the proof covers everything between a clone and the Internet: hostd's own rules, those of other programs,
//! forwarding, address translation, routes and the resolver.

use super::checks::{finding, good};
use super::{LinuxHostState, netns, network, other_firewalls};
use crate::api::{CloneId, Finding, Severity};
use crate::config::{ProbeTarget, Resolver};
use crate::host::{HostResult, chain, resolvers};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

const NAMES: &str = "names";
const EGRESS: &str = "internet";
/// Above the time in which the forwarder asks all resolvers of the machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// A packet that is lost is sent again after one second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// What was found out from inside the network.
struct Seen {
    /// The addresses of the target's name; `None` if the target is an address.
    names: Option<Result<(Vec<Ipv4Addr>, Duration), String>>,
    /// Whether the target was reached.
    reached: Option<Result<(IpAddr, Duration), (IpAddr, io::Error)>>,
}

/// Prove both, and tell which other firewall is in the way.
pub(super) fn check(state: &LinuxHostState) -> Vec<Finding> {
    let Some(target) = state.config.egress.probe.clone() else {
        let message =
            "egress.probe is empty: whether clones resolve names and reach the Internet is not proven";
        let fix = "set egress.probe to a server that clones must reach, such as example.com:443";
        return vec![finding(EGRESS, Severity::Warning, message, fix), other_firewalls::check(state, None)];
    };
    let seen = match in_clone_network(state, &target) {
        Ok(seen) => seen,
        Err(error) => {
            return vec![
                finding(
                    EGRESS,
                    Severity::Error,
                    format!("a clone network cannot be made: {}", chain(&error)),
                    &error.hint,
                ),
                other_firewalls::check(state, None),
            ];
        }
    };
    let named = seen.names.as_ref().is_none_or(Result::is_ok);
    let proven = named && matches!(seen.reached, Some(Ok(_)));
    // The machine itself tells whether it is the clones' way or the way of all.
    let host_reaches = !proven && machine_reaches(&target, &seen);
    let mut findings = Vec::new();
    findings.extend(names(state, &target, &seen, host_reaches));
    findings.push(internet(state, &target, &seen, host_reaches));
    // A filter in the way explains a failure only if the machine itself gets through.
    let verdict = if proven { Some(true) } else { host_reaches.then_some(false) };
    findings.push(other_firewalls::check(state, verdict));
    findings
}

/// Remove what a hostd that was killed during a proof has left.
pub(super) fn remove_leftovers(state: &LinuxHostState) {
    let names = state.slots.probe_names();
    if let Err(error) = network::remove(&names, &state.run(&names)) {
        tracing::warn!(error = chain(&error), hint = error.hint, "the network of an earlier proof");
    }
    let _ = std::fs::remove_dir(state.run(&names));
}

fn in_clone_network(state: &LinuxHostState, target: &ProbeTarget) -> HostResult<Seen> {
    let _probing = state.probing.lock().unwrap_or_else(PoisonError::into_inner);
    remove_leftovers(state);
    let names = state.slots.probe_names();
    let run = state.run(&names);
    let made = || {
        let what = super::errors::ErrorContext { object: names.interface.clone(), hint: "hostctl doctor" };
        super::files::make_folders(&run, 0o700)
            .map_err(|error| what.failed("no folder can be made", error))?;
        let filter = state.egress.clone_filter()?;
        network::ensure(&state.slots, &names, &CloneId::random(), &run, filter, &state.host_addresses)?;
        state.egress.grant(&names)?;
        let namespace =
            File::open(network::pin(&run)).map_err(|error| what.failed("cannot be opened", error))?;
        let (resolver, target) = (state.egress.resolver(), target.clone());
        netns::inside(&namespace, move || Ok(look(resolver, &target)))
            .map_err(|error| what.failed("cannot be entered", error))
    };
    let seen = made();
    // Whatever came of it.
    let cut = state.egress.cut(&names);
    remove_leftovers(state);
    let ended = state.egress.end_connections_of_probe(&names);
    seen.and_then(|seen| cut.and(ended).map(|()| seen))
}

/// Resolve the name and connect, from the calling thread's network namespace.
fn look(resolver: Option<IpAddr>, target: &ProbeTarget) -> Seen {
    if let Some(address) = target.address() {
        return Seen { names: None, reached: Some(connect(address, target.port)) };
    }
    let began = Instant::now();
    let asked = match resolver {
        Some(resolver) => resolve((resolver, 53).into(), &target.host),
        None => Err("egress.resolver is none".to_owned()),
    };
    let names = asked.map(|addresses| (addresses, began.elapsed()));
    let first = names.as_ref().ok().and_then(|(all, _)| all.first().copied());
    Seen { names: Some(names), reached: first.map(|address| connect(address.into(), target.port)) }
}

fn connect(address: IpAddr, port: u16) -> Result<(IpAddr, Duration), (IpAddr, io::Error)> {
    let began = Instant::now();
    match TcpStream::connect_timeout(&(address, port).into(), CONNECT_TIMEOUT) {
        Ok(_) => Ok((address, began.elapsed())),
        Err(error) => Err((address, error)),
    }
}

/// The IPv4 addresses of a name.
fn resolve(server: SocketAddr, name: &str) -> Result<Vec<Ipv4Addr>, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let id = u16::from_be_bytes(random().map_err(|error| failed(&error))?);
    let mut query = Packet::new_query(id);
    query.set_flags(PacketFlag::RECURSION_DESIRED);
    let asked = Name::new(name).map_err(|error| failed(&error))?.into_owned();
    query.questions.push(Question::new(asked, QTYPE::TYPE(TYPE::A), QCLASS::CLASS(CLASS::IN), false));
    let query = query.build_bytes_vec().map_err(|error| failed(&error))?;
    let ask = || -> io::Result<Vec<u8>> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(server)?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut answer = [0; 4096];
        loop {
            socket.send(&query)?;
            // Sent again every two seconds: a datagram may be lost.
            let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(2));
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            socket.set_read_timeout(Some(left))?;
            match socket.recv(&mut answer) {
                Ok(length) if answer[..2] == query[..2] => return Ok(answer[..length].to_vec()),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                }
                Err(error) => return Err(error),
            }
        }
    };
    let answer = ask().map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => format!("{} does not answer", server.ip()),
        _ => format!("{} cannot be asked: {error}", server.ip()),
    })?;
    let answer = Packet::parse(&answer).map_err(|error| failed(&error))?;
    if answer.rcode() != RCODE::NoError {
        return Err(format!("{} answers {:?}", server.ip(), answer.rcode()));
    }
    let address = |record: &simple_dns::ResourceRecord<'_>| match &record.rdata {
        RData::A(a) => Some(Ipv4Addr::from(a.address)),
        _ => None,
    };
    let addresses: Vec<Ipv4Addr> = answer.answers.iter().filter_map(address).collect();
    match addresses.is_empty() {
        true => Err(format!("{} knows no IPv4 address of {name}", server.ip())),
        false => Ok(addresses),
    }
}

fn random() -> io::Result<[u8; 2]> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// Whether the machine itself reaches the target.
fn machine_reaches(target: &ProbeTarget, seen: &Seen) -> bool {
    let address = match (target.address(), &seen.names) {
        (Some(address), _) => Some(address),
        (None, Some(Ok((addresses, _)))) => addresses.first().copied().map(IpAddr::V4),
        (None, _) => resolvers::of_this_machine()
            .into_iter()
            .find_map(|server| resolve(server, &target.host).ok())
            .and_then(|addresses| addresses.first().copied().map(IpAddr::V4)),
    };
    address.is_some_and(|address| connect(address, target.port).is_ok())
}

fn names(state: &LinuxHostState, target: &ProbeTarget, seen: &Seen, host_reaches: bool) -> Option<Finding> {
    let host = &target.host;
    if state.config.egress.resolver == Resolver::Auto
        && let Err(error) = state.dns_forwarder.ensure()
    {
        return Some(finding(NAMES, Severity::Error, chain(&error), &error.hint));
    }
    let how = match (state.config.egress.resolver, state.egress.resolver()) {
        (Resolver::Auto, Some(gateway)) => {
            let servers: Vec<String> =
                resolvers::of_this_machine().iter().map(|server| server.ip().to_string()).collect();
            format!("by {gateway}, which asks {} (/etc/resolv.conf)", servers.join(", "))
        }
        (_, Some(resolver)) => format!("by {resolver}"),
        (_, None) => {
            let message = "egress.resolver is none: clones resolve no names";
            let fix = "set egress.resolver to \"auto\" or to an address";
            return Some(finding(NAMES, Severity::Warning, message, fix));
        }
    };
    Some(match seen.names.as_ref()? {
        Ok((addresses, took)) => good(
            NAMES,
            format!("a clone network resolved {host} to {} {how} in {} ms", addresses[0], took.as_millis()),
        ),
        Err(why) if host_reaches => finding(
            NAMES,
            Severity::Error,
            format!("a clone network cannot resolve {host} {how}: {why}; this machine itself can"),
            "see the check other-firewalls and hostd's log, or set egress.resolver to the address of a resolver",
        ),
        Err(why) => finding(
            NAMES,
            Severity::Error,
            format!(
                "a clone network cannot resolve {host} {how}: {why}; this machine itself cannot reach it either"
            ),
            "correct /etc/resolv.conf or the machine's network, or name a server that exists here in egress.probe",
        ),
    })
}

fn internet(state: &LinuxHostState, target: &ProbeTarget, seen: &Seen, host_reaches: bool) -> Finding {
    match &seen.reached {
        Some(Ok((address, took))) => {
            good(EGRESS, format!("a clone network reached {target} at {address} in {} ms", took.as_millis()))
        }
        Some(Err((address, _))) if state.egress.is_closed(*address) => finding(
            EGRESS,
            Severity::Error,
            format!("{target} leads to {address}, a private or local address that clones never reach"),
            "name a public server in egress.probe",
        ),
        Some(Err((address, error))) if host_reaches => finding(
            EGRESS,
            Severity::Error,
            format!("a clone network cannot reach {target} at {address} ({error}); this machine itself can"),
            "see the checks other-firewalls and forwarding, and egress.external",
        ),
        Some(Err((address, error))) => finding(
            EGRESS,
            Severity::Error,
            format!("neither a clone network nor this machine reaches {target} at {address} ({error})"),
            "correct the machine's network, or name a server that exists here in egress.probe",
        ),
        None => finding(
            EGRESS,
            Severity::Error,
            format!("whether clones reach {target} is unknown, because its name is not resolved"),
            "see the check names",
        ),
    }
}
