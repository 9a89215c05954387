//! Other programs' packet filters: chains that can drop a clone's packets although this table accepts them.
//!
//! A packet passes only if no base chain of any table drops it. Programs that manage the host's firewall (Docker, ufw,
//! firewalld) drop what they do not know.

use super::netlink::{Attributes, Message, Socket, UNSPECIFIED};
use super::snapshot::{CHAIN_NAME, GET_CHAIN, GET_RULE, RULE_CHAIN, RULE_EXPRESSIONS, TABLE};
use std::io;

/// `NFTA_CHAIN_HOOK`, `_POLICY`
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
/// `NFTA_HOOK_HOOKNUM`
const HOOK_NUMBER: u16 = 1;
/// `NFTA_EXPR_NAME`, `_DATA`
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_VERDICT`, `NFTA_VERDICT_CODE`
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
/// `NF_DROP`
const DROP: [u8; 4] = [0; 4];
/// `NF_INET_LOCAL_IN`, `NF_INET_FORWARD`
const INPUT: u32 = 1;
const FORWARD: u32 = 2;
/// `NFPROTO_INET`, `NFPROTO_IPV4`, `NFPROTO_IPV6`
const FAMILIES: [(u8, &str); 3] = [(1, "inet"), (2, "ip"), (10, "ip6")];

/// Which packets a chain sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Packets to the host itself.
    Input,
    /// Packets through the host.
    Forward,
}

/// A base chain of another table that drops or rejects what its rules do not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedChain {
    /// The family: `inet`, `ip` or `ip6`.
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
    /// Where it is.
    pub hook: Hook,
    /// The names of all chains of its table, which tell the program that made it.
    pub siblings: Vec<String>,
}

/// The closed chains of all tables but `own`, in the calling thread's network namespace.
pub(super) fn closed_chains(own: &str) -> io::Result<Vec<ClosedChain>> {
    let mut socket = Socket::open()?;
    let chains = socket.dump(&Message::new(GET_CHAIN, UNSPECIFIED))?;
    let mut closed = Vec::new();
    for message in &chains {
        let Some((_, family)) = FAMILIES.into_iter().find(|(number, _)| *number == message.family) else {
            continue;
        };
        let chain = &message.attributes;
        let (table, name) = (text(chain, TABLE), text(chain, CHAIN_NAME));
        let hook = chain.get_nested(CHAIN_HOOK).and_then(|hook| number(&hook, HOOK_NUMBER));
        let hook = match hook {
            Some(INPUT) => Hook::Input,
            Some(FORWARD) => Hook::Forward,
            _ => continue,
        };
        if (family == "inet" && table == own)
            || !(chain.get(CHAIN_POLICY) == Some(&DROP)
                || ends_closed(&mut socket, message.family, &table, &name)?)
        {
            continue;
        }
        let siblings = chains
            .iter()
            .filter(|other| other.family == message.family && text(&other.attributes, TABLE) == table)
            .map(|other| text(&other.attributes, CHAIN_NAME))
            .collect();
        closed.push(ClosedChain { family, table, chain: name, hook, siblings });
    }
    Ok(closed)
}

fn text(attributes: &Attributes, id: u16) -> String {
    attributes.get_text(id).unwrap_or_default()
}

fn number(attributes: &Attributes, id: u16) -> Option<u32> {
    attributes.get(id)?.try_into().ok().map(u32::from_be_bytes)
}

/// Whether the last rule of a chain drops or rejects every packet that comes to it.
fn ends_closed(socket: &mut Socket, family: u8, table: &str, chain: &str) -> io::Result<bool> {
    let question = Message::new(GET_RULE, family).with(|attributes| {
        attributes.text(TABLE, table);
        attributes.text(RULE_CHAIN, chain);
    });
    let rules = match socket.dump(&question) {
        // The table went away in between.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
        other => other?,
    };
    let own = |rule: &&Message| {
        text(&rule.attributes, TABLE) == table && text(&rule.attributes, RULE_CHAIN) == chain
    };
    let Some(last) = rules.iter().rfind(own) else { return Ok(false) };
    let expressions = last.attributes.get_nested(RULE_EXPRESSIONS).unwrap_or_default();
    let mut closes = false;
    for (_, expression) in expressions.iter() {
        let expression = Attributes(expression.to_vec());
        match expression.get_text(EXPRESSION_NAME).as_deref() {
            Some("counter" | "log") => {}
            Some("reject") => closes = true,
            Some("immediate") => closes = drops(&expression),
            // A condition, or an expression of another kind.
            _ => return Ok(false),
        }
    }
    Ok(closes)
}

fn drops(immediate: &Attributes) -> bool {
    let verdict = immediate
        .get_nested(EXPRESSION_DATA)
        .and_then(|data| data.get_nested(IMMEDIATE_DATA))
        .and_then(|data| data.get_nested(DATA_VERDICT));
    verdict.is_some_and(|verdict| verdict.get(VERDICT_CODE) == Some(&DROP))
}

#[cfg(test)]
mod tests {
    use super::super::{in_new_network, nft};
    use super::*;

    #[test]
    fn closed_chains_of_others_are_found_and_open_ones_are_not() {
        let found = in_new_network(|| {
            nft::load(
                "table inet hostd { chain forward { type filter hook forward priority 0; policy drop; }; }\n\
                 table ip filter {\n\
                   chain DOCKER-USER { }\n\
                   chain FORWARD { type filter hook forward priority 0; policy drop; jump DOCKER-USER; }\n\
                   chain INPUT { type filter hook input priority 0; policy accept; }\n\
                 }\n\
                 table inet firewalld {\n\
                   chain filter_FORWARD { type filter hook forward priority 10; policy accept; \
                     ct state established accept; reject with icmpx admin-prohibited; }\n\
                   chain filter_INPUT { type filter hook input priority 10; policy accept; counter drop; }\n\
                   chain filter_OUTPUT { type filter hook output priority 10; policy drop; }\n\
                 }\n\
                 table inet open {\n\
                   chain forward { type filter hook forward priority 0; policy accept; \
                     iifname \"lan\" drop; tcp dport 22 reject; }\n\
                   chain input { type filter hook input priority 0; policy accept; drop; accept; }\n\
                   chain input2 { type filter hook input priority 1; policy accept; accept; }\n\
                 }\n",
            )
            .expect("loaded");
            closed_chains("hostd").expect("listed")
        });
        let mut found: Vec<_> = found
            .expect("this test needs root")
            .into_iter()
            .map(|closed| {
                (
                    format!("{} {} {}", closed.family, closed.table, closed.chain),
                    closed.hook,
                    closed.siblings.len(),
                )
            })
            .collect();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(
            found,
            [
                ("inet firewalld filter_FORWARD".to_owned(), Hook::Forward, 3),
                ("inet firewalld filter_INPUT".to_owned(), Hook::Input, 3),
                ("ip filter FORWARD".to_owned(), Hook::Forward, 3),
            ]
        );
    }
}
