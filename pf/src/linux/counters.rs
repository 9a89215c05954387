//! The values of the table's named counters.

use super::netlink::Socket;
use super::snapshot::{GET_OBJECT, dump};
use std::io;

/// `NFTA_OBJ_NAME`, `NFTA_OBJ_DATA`
const NAME: u16 = 2;
const DATA: u16 = 4;
/// `NFTA_COUNTER_PACKETS`
const PACKETS: u16 = 2;

/// How many packets a named counter has counted since the table was loaded.
pub(super) fn packets(socket: &mut Socket, table: &str, name: &str) -> io::Result<u64> {
    let objects = dump(socket, table, GET_OBJECT)?;
    let found = objects.iter().find(|object| object.get_text(NAME).as_deref() == Some(name));
    let data = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?.get_nested(DATA);
    let packets = data.as_ref().and_then(|data| data.get(PACKETS)).and_then(|value| value.try_into().ok());
    packets.map(u64::from_be_bytes).ok_or_else(|| io::Error::other(format!("counter {name} has no value")))
}
