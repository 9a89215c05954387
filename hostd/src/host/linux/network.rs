//! A clone's network: a network namespace and one veth pair to the host.
//!
//! There is no bridge, so clones reach each other only through the host's packet filter. The host's end has the gateway's
//! address with the clone's address as its peer, and the clone's end the reverse. The link's alias has the clone's
//! identity. The clone's end is brought up last, so a link with a carrier is complete.

use super::errors::{ErrorContext, failed, refused};
use super::host_addresses::HostAddresses;
use super::netns;
use super::rtnetlink::{Address, End, Link, Rtnetlink};
use crate::api::CloneId;
use crate::host::{HostErrorKind, HostResult, Identity, ObservedNetwork};
use crate::slot::{SlotNames, Slots};
use pf::linux::CloneFilter;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the clone's end of the link.
const INSIDE: &str = "eth0";

/// Links by name, with the addresses of their peers, at one moment.
#[derive(Debug)]
pub(super) struct LinkTable {
    links: HashMap<String, Link>,
    /// The peers' addresses by the link's index.
    peers: HashMap<u32, Vec<IpAddr>>,
    /// The host's own addresses on these links.
    own: Vec<IpAddr>,
}

impl LinkTable {
    /// The link of one slot, or all links.
    pub(super) fn read(only: Option<&SlotNames>) -> HostResult<LinkTable> {
        let read = || {
            let mut rtnetlink = Rtnetlink::open()?;
            let links: Vec<Link> = match only {
                Some(names) => rtnetlink.link(&names.interface)?.into_iter().collect(),
                None => rtnetlink.links()?,
            };
            let addresses = match (only, links.first()) {
                (_, None) => Vec::new(),
                (Some(_), link) => rtnetlink.addresses(link)?,
                (None, _) => rtnetlink.addresses(None)?,
            };
            Ok(LinkTable::new(links, addresses))
        };
        read().map_err(|error: io::Error| {
            failed("netlink", "the links cannot be listed", error, "hostd needs CAP_NET_ADMIN")
        })
    }

    fn new(links: Vec<Link>, addresses: Vec<Address>) -> LinkTable {
        let mut peers: HashMap<u32, Vec<IpAddr>> = HashMap::new();
        let own = addresses.iter().map(|address| address.local).collect();
        for address in addresses {
            peers.entry(address.link).or_default().push(address.peer);
        }
        LinkTable { links: links.into_iter().map(|link| (link.name.clone(), link)).collect(), peers, own }
    }

    /// The host's own addresses on these links.
    pub(super) fn host_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.own.iter().copied()
    }

    /// Whether there is a link of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.links.contains_key(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.links.keys().map(String::as_str)
    }

    /// The network of one slot.
    pub(super) fn network(&self, names: &SlotNames, pin: &Path) -> Option<ObservedNetwork> {
        let Some(link) = self.links.get(&names.interface) else {
            // A namespace without a link: a create or a destroy was interrupted.
            return pin
                .symlink_metadata()
                .is_ok()
                .then_some(ObservedNetwork { identity: Identity::Unmarked, complete: false });
        };
        let peers = self.peers.get(&link.index).map(Vec::as_slice).unwrap_or_default();
        let addressed = addresses(names).iter().all(|address| peers.contains(address));
        Some(ObservedNetwork {
            identity: identity(link),
            complete: link.carrier && addressed && netns::is_pinned(pin),
        })
    }
}

fn identity(link: &Link) -> Identity {
    if !link.veth {
        return Identity::Foreign(format!("{} is not a veth link", link.name));
    }
    match &link.alias {
        None => Identity::Unmarked,
        Some(alias) => match CloneId::try_from(alias.clone()) {
            Ok(id) => Identity::Clone(id),
            Err(_) => Identity::Foreign(format!(
                "{} has the alias {alias:?}, which is not a clone's identity",
                link.name
            )),
        },
    }
}

/// The file that the clone's network namespace is mounted on.
pub(super) fn pin(run: &Path) -> PathBuf {
    run.join("net")
}

/// Make the network namespace and the veth pair, with addresses and routes, both ends up.
///
/// `filter` are the rules for the inside, which block the host's addresses `host`. They are loaded before the link comes up.
pub(super) fn ensure(
    slots: &Slots,
    names: &SlotNames,
    clone_id: &CloneId,
    run: &Path,
    filter: Arc<CloneFilter>,
    host: &HostAddresses,
) -> HostResult<()> {
    let object = || names.interface.clone();
    let pin = pin(run);
    if let Some(network) = LinkTable::read(Some(names))?.network(names, &pin) {
        match network.identity {
            Identity::Clone(id) if id == *clone_id && network.complete => return Ok(()),
            Identity::Clone(id) if id != *clone_id => {
                return Err(refused(
                    object(),
                    "make the link",
                    HostErrorKind::Foreign,
                    format!("it belongs to {id}"),
                ));
            }
            Identity::Foreign(why) => {
                return Err(refused(object(), "make the link", HostErrorKind::Foreign, why));
            }
            // Incomplete: remove it and start again.
            _ => remove(names, run)?,
        }
    }
    let gateways = gateways(slots);
    let what = ErrorContext { object: object(), hint: "hostctl doctor shows what the kernel lacks" };
    let namespace =
        netns::make(&pin).map_err(|error| what.failed("no network namespace can be made", error))?;
    let mut rtnetlink =
        Rtnetlink::open().map_err(|error| what.failed("no netlink socket can be opened", error))?;
    // RTM_NEWLINK makes both ends at once, the far one directly in the clone's namespace.
    let near = End { name: &names.interface, mac: names.mac_host.0, namespace: None };
    let far = End { name: INSIDE, mac: names.mac_clone.0, namespace: Some(namespace.as_fd()) };
    rtnetlink.make_pair(near, far).map_err(|error| what.failed("the veth pair cannot be made", error))?;
    let link = rtnetlink
        .link(&names.interface)
        .and_then(|link| link.ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(|error| what.failed("the new link does not exist", error))?;
    rtnetlink
        .set_alias(link.index, clone_id.as_str())
        .map_err(|error| what.failed("its alias cannot be set", error))?;
    harden(names).map_err(|error| what.failed("its sysctls cannot be set", error))?;
    let own = addresses(names);
    for (gateway, ip) in gateways.iter().zip(&own) {
        rtnetlink
            .add_address(link.index, *gateway, *ip)
            .map_err(|error| what.failed("its address cannot be set", error))?;
    }
    rtnetlink.set_up(link.index, true).map_err(|error| what.failed("cannot be brought up", error))?;
    let blocked = host.list();
    let listed = blocked.clone();
    netns::inside(&namespace, move || set_up_inside(&own, &gateways, &filter, &listed))
        .and_then(|()| host.block_newer(&namespace, &blocked))
        .map_err(|error| what.failed("the clone's end cannot be set up", error))?;
    match names.ip6 {
        Some(ip6) => rtnetlink
            .add_peer_route(link.index, ip6)
            .map_err(|error| what.failed("the route to the clone cannot be added", error)),
        None => Ok(()),
    }
}

/// Remove the veth pair and the namespace's mount, also if they are incomplete. When this returns, the link's name is free.
pub(super) fn remove(names: &SlotNames, run: &Path) -> HostResult<()> {
    remove_link(names)?;
    release_namespace(names, run)
}

/// Unmount and remove the file that keeps the namespace. The kernel frees the namespace with its last process.
pub(super) fn release_namespace(names: &SlotNames, run: &Path) -> HostResult<()> {
    let what =
        ErrorContext { object: names.interface.clone(), hint: "check the mounts below hostd's state folder" };
    netns::unpin(&pin(run)).map_err(|error| what.failed("its namespace cannot be released", error))
}

/// Remove the veth pair alone. The namespace stays: it proves which processes belong to the clone.
pub(super) fn remove_link(names: &SlotNames) -> HostResult<()> {
    let what = ErrorContext { object: names.interface.clone(), hint: "remove it by hand: ip link delete" };
    let mut rtnetlink =
        Rtnetlink::open().map_err(|error| what.failed("no netlink socket can be opened", error))?;
    if let Some(link) =
        rtnetlink.link(&names.interface).map_err(|error| what.failed("cannot be inspected", error))?
    {
        if let Identity::Foreign(why) = identity(&link) {
            return Err(refused(&names.interface, "remove the link", HostErrorKind::Foreign, why));
        }
        Rtnetlink::remove(link.index).map_err(|error| what.failed("cannot be removed", error))?;
    }
    Ok(())
}

/// Whether any of the clones' links is down.
pub(super) fn any_down(names: &[SlotNames]) -> HostResult<bool> {
    let table = LinkTable::read(None)?;
    let is_down = |link: &Link| !link.up && !matches!(identity(link), Identity::Foreign(_));
    Ok(names.iter().filter_map(|names| table.links.get(&names.interface)).any(is_down))
}

/// Take the clones' links down or bring them up. They are down while the firewall rules are not in place.
pub(super) fn set_up(names: &[SlotNames], up: bool) -> HostResult<Vec<String>> {
    let what = ErrorContext { object: "links".into(), hint: "take them down by hand: ip link set NAME down" };
    let mut rtnetlink =
        Rtnetlink::open().map_err(|error| what.failed("no netlink socket can be opened", error))?;
    let links = rtnetlink.links().map_err(|error| what.failed("cannot be listed", error))?;
    let by_interface: HashMap<&str, &SlotNames> =
        names.iter().map(|names| (names.interface.as_str(), names)).collect();
    let slot_of = |link: &Link| {
        let names = by_interface.get(link.name.as_str())?;
        (!matches!(identity(link), Identity::Foreign(_))).then_some(*names)
    };
    let mut changed = Vec::new();
    let mut first = None;
    for link in links.iter().filter(|link| link.up != up) {
        let Some(names) = slot_of(link) else { continue };
        let switched = rtnetlink.set_up(link.index, up).and_then(|()| match names.ip6 {
            Some(ip6) if up => rtnetlink.add_peer_route(link.index, ip6),
            _ => Ok(()),
        });
        match switched {
            Ok(()) => changed.push(link.name.clone()),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    match first {
        Some(error) => Err(what.failed("cannot be taken down or brought up", error)),
        None => Ok(changed),
    }
}

fn gateways(slots: &Slots) -> Vec<IpAddr> {
    [Some(IpAddr::V4(slots.gateway())), slots.gateway6().map(IpAddr::V6)].into_iter().flatten().collect()
}

fn addresses(names: &SlotNames) -> Vec<IpAddr> {
    [Some(IpAddr::V4(names.ip)), names.ip6.map(IpAddr::V6)].into_iter().flatten().collect()
}

/// Set the sysctls of the host's end: the clone cannot send from other addresses (`rp_filter`), and the host accepts neither
/// redirects nor router advertisements from it.
fn harden(names: &SlotNames) -> io::Result<()> {
    let name = &names.interface;
    sysctl(&format!("ipv4/conf/{name}/rp_filter"), "1")?;
    sysctl(&format!("ipv4/conf/{name}/accept_redirects"), "0")?;
    sysctl(&format!("ipv4/conf/{name}/send_redirects"), "0")?;
    if !Path::new("/proc/sys/net/ipv6").exists() {
        return Ok(());
    }
    match names.ip6 {
        None => sysctl(&format!("ipv6/conf/{name}/disable_ipv6"), "1"),
        Some(_) => {
            sysctl(&format!("ipv6/conf/{name}/accept_ra"), "0")?;
            sysctl(&format!("ipv6/conf/{name}/accept_redirects"), "0")?;
            // The link may be taken down and up again; its addresses must survive that.
            sysctl(&format!("ipv6/conf/{name}/keep_addr_on_down"), "1")
        }
    }
}

/// Set up the clone's end. Runs in the clone's namespace.
fn set_up_inside(
    addresses: &[IpAddr],
    gateways: &[IpAddr],
    filter: &CloneFilter,
    host: &[IpAddr],
) -> io::Result<()> {
    filter.load(host)?;
    if Path::new("/proc/sys/net/ipv6").exists() {
        let off = if addresses.iter().any(IpAddr::is_ipv6) { "0" } else { "1" };
        sysctl("ipv6/conf/all/disable_ipv6", off)?;
        sysctl("ipv6/conf/all/accept_ra", "0")?;
        sysctl(&format!("ipv6/conf/{INSIDE}/accept_ra"), "0")?;
    }
    let mut rtnetlink = Rtnetlink::open()?;
    for link in rtnetlink.links()? {
        match link.name.as_str() {
            "lo" => rtnetlink.set_up(link.index, true)?,
            INSIDE => {
                for (ip, gateway) in addresses.iter().zip(gateways) {
                    rtnetlink.add_address(link.index, *ip, *gateway)?;
                }
                rtnetlink.set_up(link.index, true)?;
                for gateway in gateways {
                    rtnetlink.add_default_route(link.index, *gateway)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Set a sysctl of the calling thread's network namespace.
fn sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = Path::new("/proc/sys/net").join(name);
    std::fs::write(&path, value)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
