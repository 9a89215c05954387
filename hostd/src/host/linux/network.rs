//! A clone's network: a namespace of its own and one point-to-point link to the host.
//!
//! There is no bridge, so clones have no way to each other but through the host's packet filter. The host's end carries
//! the gateway's address with the clone's address as its peer; the clone's end the reverse. The link's alias says whose
//! it is. The clone's end is brought up last, so a link with a carrier is a finished one.

use super::errors::{ErrorContext, failed, refused};
use super::netns;
use super::rtnl::{Address, End, Link, Rtnl};
use crate::api::CloneId;
use crate::host::{CloneSpec, HostErrorKind, HostResult, Identity, ObservedNetwork};
use crate::slot::{SlotNames, Slots};
use pf::linux::CloneFilter;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The clone's end of the link.
const INSIDE: &str = "eth0";

/// What `/proc` and netlink show of all clones' networks.
#[derive(Debug)]
pub(super) struct Seen {
    links: Vec<Link>,
    addresses: Vec<Address>,
}

impl Seen {
    /// Of one slot, or of all.
    pub(super) fn now(only: Option<&SlotNames>) -> HostResult<Seen> {
        let look = || {
            let mut rtnl = Rtnl::open()?;
            let links: Vec<Link> = match only {
                Some(names) => rtnl.link(&names.interface)?.into_iter().collect(),
                None => rtnl.links()?,
            };
            let addresses = match (only, links.first()) {
                (_, None) => Vec::new(),
                (Some(_), link) => rtnl.addresses(link)?,
                (None, _) => rtnl.addresses(None)?,
            };
            Ok(Seen { links, addresses })
        };
        look().map_err(|error: io::Error| {
            failed(
                "netlink",
                "the links cannot be listed",
                error,
                "look at hostd's capabilities: it needs CAP_NET_ADMIN",
            )
        })
    }

    pub(super) fn links(&self) -> &[Link] {
        &self.links
    }

    /// The addresses on the host's interfaces.
    pub(super) fn local_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|address| address.local)
    }

    /// The network of one slot.
    pub(super) fn network(&self, names: &SlotNames, pin: &Path) -> Option<ObservedNetwork> {
        let link = self.links.iter().find(|link| link.name == names.interface);
        let Some(link) = link else {
            // A namespace without a link: a create that was cut short, or a remove.
            return pin
                .symlink_metadata()
                .is_ok()
                .then_some(ObservedNetwork { identity: Identity::Unmarked, complete: false });
        };
        let reaches = |wanted: IpAddr| {
            self.addresses.iter().any(|address| address.link == link.index && address.peer == wanted)
        };
        let addressed = reaches(names.ip.into()) && names.ip6.is_none_or(|ip| reaches(ip.into()));
        Some(ObservedNetwork {
            identity: identity(link),
            complete: link.carrier && addressed && netns::is_pinned(pin),
        })
    }
}

fn identity(link: &Link) -> Identity {
    if !link.veth {
        return Identity::Foreign(format!("{} is no pair of ours: it is another kind of link", link.name));
    }
    match &link.alias {
        None => Identity::Unmarked,
        Some(alias) => match CloneId::try_from(alias.clone()) {
            Ok(id) => Identity::Clone(id),
            Err(_) => Identity::Foreign(format!("{} carries the alias {alias:?}", link.name)),
        },
    }
}

/// Where a clone's network namespace is kept.
pub(super) fn pin(run: &Path) -> PathBuf {
    run.join("net")
}

/// Make the pair, addressed, attached and up.
///
/// `filter` are the rules for the inside and the host's addresses that they block. They are loaded before the link comes up.
pub(super) fn ensure(
    pool: &Slots,
    spec: &CloneSpec,
    run: &Path,
    (filter, host): (Arc<CloneFilter>, Vec<IpAddr>),
) -> HostResult<()> {
    let names = &spec.names;
    let object = || names.interface.clone();
    let pin = pin(run);
    if let Some(seen) = Seen::now(Some(names))?.network(names, &pin) {
        match seen.identity {
            Identity::Clone(id) if id == spec.clone_id && seen.complete => return Ok(()),
            Identity::Clone(id) if id != spec.clone_id => {
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
            // Half made: begin anew.
            _ => remove(names, run)?,
        }
    }
    let gateways = gateways(pool);
    let what = ErrorContext { object: object(), hint: "hostctl doctor tells what the kernel lacks" };
    let namespace = netns::make(&pin).map_err(|error| what.failed("no network namespace", error))?;
    let mut rtnl = Rtnl::open().map_err(|error| what.failed("no netlink socket", error))?;
    let near = End { name: &names.interface, mac: names.mac_host.0, namespace: None };
    let far = {
        use std::os::fd::AsFd;
        End { name: INSIDE, mac: names.mac_clone.0, namespace: Some(namespace.as_fd()) }
    };
    rtnl.make_pair(near, far).map_err(|error| what.failed("no pair of links", error))?;
    let link = rtnl
        .link(&names.interface)
        .and_then(|link| link.ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(|error| what.failed("the new link is not there", error))?;
    rtnl.set_alias(link.index, spec.clone_id.as_str())
        .map_err(|error| what.failed("cannot be marked", error))?;
    harden(names).map_err(|error| what.failed("its settings cannot be made", error))?;
    let mine = addresses(names);
    for (gateway, ip) in gateways.iter().zip(&mine) {
        rtnl.add_address(link.index, *gateway, *ip)
            .map_err(|error| what.failed("cannot be addressed", error))?;
    }
    rtnl.set_up(link.index, true).map_err(|error| what.failed("cannot be brought up", error))?;
    netns::inside(&namespace, move || furnish(&mine, &gateways, &filter, &host))
        .map_err(|error| what.failed("the clone's end cannot be set up", error))?;
    match names.ip6 {
        Some(ip6) => rtnl
            .add_peer_route(link.index, ip6)
            .map_err(|error| what.failed("there is no way to the clone", error)),
        None => Ok(()),
    }
}

/// Remove the pair and the namespace, half-made ones too.
///
/// Removing the host's end takes the other end with it: when this answers, the name is free. The namespace itself goes
/// when its last user has, without anybody waiting for it.
pub(super) fn remove(names: &SlotNames, run: &Path) -> HostResult<()> {
    remove_link(names)?;
    release_namespace(names, run)
}

/// Unmount and remove the file that keeps the namespace. The namespace ends with its last process.
pub(super) fn release_namespace(names: &SlotNames, run: &Path) -> HostResult<()> {
    let what = ErrorContext {
        object: names.interface.clone(),
        hint: "look at the mounts below hostd's state folder",
    };
    netns::unpin(&pin(run)).map_err(|error| what.failed("its namespace cannot be released", error))
}

/// Remove the pair alone: a clone that is ending has no way out any more, and what is inside can still be told by its
/// namespace.
pub(super) fn remove_link(names: &SlotNames) -> HostResult<()> {
    let what = ErrorContext { object: names.interface.clone(), hint: "remove it by hand: ip link delete" };
    let mut rtnl = Rtnl::open().map_err(|error| what.failed("no netlink socket", error))?;
    if let Some(link) =
        rtnl.link(&names.interface).map_err(|error| what.failed("cannot be looked at", error))?
    {
        if let Identity::Foreign(why) = identity(&link) {
            return Err(refused(&names.interface, "remove the link", HostErrorKind::Foreign, why));
        }
        Rtnl::remove(link.index).map_err(|error| what.failed("cannot be removed", error))?;
    }
    Ok(())
}

/// Whether any of the clones' links is down.
pub(super) fn any_down(names: &[SlotNames]) -> HostResult<bool> {
    let links = Seen::now(None)?.links;
    let down = |link: &Link| !link.up && names.iter().any(|names| names.interface == link.name);
    Ok(links.iter().any(|link| down(link) && !matches!(identity(link), Identity::Foreign(_))))
}

/// Take links down or bring them up again: what keeps clones in while there is no packet filter.
pub(super) fn set_up(names: &[SlotNames], up: bool) -> HostResult<Vec<String>> {
    let what = ErrorContext { object: "links".into(), hint: "take them down by hand: ip link set NAME down" };
    let mut rtnl = Rtnl::open().map_err(|error| what.failed("no netlink socket", error))?;
    let links = rtnl.links().map_err(|error| what.failed("cannot be listed", error))?;
    let ours = |link: &Link| {
        let names = names.iter().find(|names| names.interface == link.name)?;
        (!matches!(identity(link), Identity::Foreign(_))).then_some(names)
    };
    let mut changed = Vec::new();
    let mut first = None;
    for link in links.iter().filter(|link| link.up != up) {
        let Some(names) = ours(link) else { continue };
        let switched = rtnl.set_up(link.index, up).and_then(|()| match names.ip6 {
            Some(ip6) if up => rtnl.add_peer_route(link.index, ip6),
            _ => Ok(()),
        });
        match switched {
            Ok(()) => changed.push(link.name.clone()),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    match first {
        Some(error) => Err(what.failed("cannot be switched", error)),
        None => Ok(changed),
    }
}

fn gateways(pool: &Slots) -> Vec<IpAddr> {
    [Some(IpAddr::V4(pool.gateway())), pool.gateway6().map(IpAddr::V6)].into_iter().flatten().collect()
}

fn addresses(names: &SlotNames) -> Vec<IpAddr> {
    [Some(IpAddr::V4(names.ip)), names.ip6.map(IpAddr::V6)].into_iter().flatten().collect()
}

/// The host's end: answers for nobody else, believes no advertisements, and a clone cannot speak with foreign addresses.
fn harden(names: &SlotNames) -> io::Result<()> {
    let name = &names.interface;
    setting(&format!("ipv4/conf/{name}/rp_filter"), "1")?;
    setting(&format!("ipv4/conf/{name}/accept_redirects"), "0")?;
    setting(&format!("ipv4/conf/{name}/send_redirects"), "0")?;
    if !Path::new("/proc/sys/net/ipv6").exists() {
        return Ok(());
    }
    match names.ip6 {
        None => setting(&format!("ipv6/conf/{name}/disable_ipv6"), "1"),
        Some(_) => {
            setting(&format!("ipv6/conf/{name}/accept_ra"), "0")?;
            setting(&format!("ipv6/conf/{name}/accept_redirects"), "0")?;
            // Its addresses must still be there when the link comes up again.
            setting(&format!("ipv6/conf/{name}/keep_addr_on_down"), "1")
        }
    }
}

/// The clone's end, from inside its namespace.
fn furnish(
    addresses: &[IpAddr],
    gateways: &[IpAddr],
    filter: &CloneFilter,
    host: &[IpAddr],
) -> io::Result<()> {
    filter.load(host)?;
    if Path::new("/proc/sys/net/ipv6").exists() {
        let off = if addresses.iter().any(IpAddr::is_ipv6) { "0" } else { "1" };
        setting("ipv6/conf/all/disable_ipv6", off)?;
        setting("ipv6/conf/all/accept_ra", "0")?;
        setting(&format!("ipv6/conf/{INSIDE}/accept_ra"), "0")?;
    }
    let mut rtnl = Rtnl::open()?;
    for link in rtnl.links()? {
        match link.name.as_str() {
            "lo" => rtnl.set_up(link.index, true)?,
            INSIDE => {
                for (ip, gateway) in addresses.iter().zip(gateways) {
                    rtnl.add_address(link.index, *ip, *gateway)?;
                }
                rtnl.set_up(link.index, true)?;
                for gateway in gateways {
                    rtnl.add_default_route(link.index, *gateway)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A setting of the calling thread's network namespace.
fn setting(name: &str, value: &str) -> io::Result<()> {
    let path = Path::new("/proc/sys/net").join(name);
    std::fs::write(&path, value)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
