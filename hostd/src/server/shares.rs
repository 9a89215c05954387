//! Shares of running operations: no user can take all of them, and operators always find one.
//!
//! The daemon's own timer needs no share: it does not pass the gate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How many operations may run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareCaps {
    /// Of everybody together.
    pub total: usize,
    /// Of one user who is not an operator.
    pub per_user: usize,
    /// Of the total, only for operators.
    pub for_operators: usize,
}

impl ShareCaps {
    /// One eighth of the total is for operators, but never all of it.
    pub fn new(total: usize, per_user: usize) -> ShareCaps {
        let total = total.max(1);
        ShareCaps { total, per_user: per_user.max(1), for_operators: total.div_ceil(8).min(total - 1) }
    }
}

/// The cap that refuses an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareRefusal {
    /// The user's own.
    User,
    /// That of the whole host.
    Host,
}

#[derive(Debug, Default)]
struct Running {
    operators: usize,
    /// By user; a user without operations has no entry.
    others: HashMap<u32, usize>,
}

/// The running operations.
#[derive(Debug)]
pub struct Shares {
    caps: ShareCaps,
    running: Mutex<Running>,
}

impl Shares {
    /// Nothing runs yet.
    pub fn new(caps: ShareCaps) -> Arc<Shares> {
        Arc::new(Shares { caps, running: Mutex::default() })
    }

    /// The caps.
    pub fn caps(&self) -> ShareCaps {
        self.caps
    }

    /// Take a share for one operation.
    pub fn take(self: &Arc<Self>, uid: u32, operator: bool) -> Result<Share, ShareRefusal> {
        let ShareCaps { total, per_user, for_operators } = self.caps;
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let others: usize = running.others.values().sum();
        if running.operators + others >= total {
            return Err(ShareRefusal::Host);
        }
        if operator {
            running.operators += 1;
            return Ok(Share { shares: self.clone(), user: None });
        }
        if running.others.get(&uid).is_some_and(|count| *count >= per_user) {
            return Err(ShareRefusal::User);
        }
        if others >= total - for_operators {
            return Err(ShareRefusal::Host);
        }
        *running.others.entry(uid).or_default() += 1;
        Ok(Share { shares: self.clone(), user: Some(uid) })
    }

    fn give_back(&self, user: Option<u32>) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(uid) = user else {
            running.operators -= 1;
            return;
        };
        if let Some(count) = running.others.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                running.others.remove(&uid);
            }
        }
    }
}

/// The share of one running operation, given back on drop.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    /// `None` for an operator.
    user: Option<u32>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.give_back(self.user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_is_reserved_but_never_everything() {
        for (total, reserved) in [(0, 0), (1, 0), (2, 1), (3, 1), (8, 1), (9, 2), (64, 8), (999, 125)] {
            let caps = ShareCaps::new(total, 5);
            assert_eq!((caps.total, caps.for_operators), (total.max(1), reserved));
        }
        assert_eq!(ShareCaps::new(4, 0).per_user, 1);
    }

    #[test]
    fn a_user_gets_its_share_and_no_more() {
        let shares = Shares::new(ShareCaps::new(16, 4));
        let taken: Vec<Share> = (0..4).map(|_| shares.take(1, false).unwrap()).collect();
        assert_eq!(shares.take(1, false).unwrap_err(), ShareRefusal::User);
        let other = shares.take(2, false).unwrap();
        drop(taken);
        assert!(shares.take(1, false).is_ok());
        drop(other);
        assert!(shares.running.lock().unwrap().others.is_empty(), "an idle user needs no memory");
    }

    #[test]
    fn operators_find_a_share_when_all_others_are_taken() {
        let shares = Shares::new(ShareCaps::new(8, 3));
        let taken: Vec<Share> = (0..21).filter_map(|n| shares.take(n % 3, false).ok()).collect();
        assert_eq!(taken.len(), 7);
        assert_eq!(shares.take(9, false).unwrap_err(), ShareRefusal::Host);
        let operator = shares.take(0, true).unwrap();
        assert_eq!(
            shares.take(0, true).unwrap_err(),
            ShareRefusal::Host,
            "the total holds for operators too"
        );
        drop(operator);
        assert!(shares.take(0, true).is_ok());
    }

    #[test]
    fn operators_may_use_everything() {
        let shares = Shares::new(ShareCaps::new(4, 1));
        let taken: Vec<Share> = (0..4).map(|_| shares.take(1, true).unwrap()).collect();
        assert_eq!(shares.take(1, true).unwrap_err(), ShareRefusal::Host);
        assert_eq!(shares.take(1, false).unwrap_err(), ShareRefusal::Host);
        drop(taken);
        assert!(shares.take(1, false).is_ok());
    }
}
