//! How often a caller may call.

use super::{Caller, Identity};
use crate::config::LimitConfig;
use crate::error::{ApiError, ErrorCode};
use crate::ids::TenantId;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

/// Callers that have not called for a while are forgotten after so many admissions.
const FORGET_EVERY: u32 = 4096;

/// The rate of calls of each caller.
#[derive(Debug)]
pub struct CallRates {
    limiter: DefaultKeyedRateLimiter<(TenantId, Identity)>,
    clock: DefaultClock,
    per_second: u32,
    admissions: AtomicU32,
}

impl CallRates {
    /// The configured rate.
    pub fn new(limits: &LimitConfig) -> Self {
        let at_least_one = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(at_least_one(limits.calls_per_second))
            .allow_burst(at_least_one(limits.call_burst));
        Self {
            limiter: RateLimiter::keyed(quota),
            clock: DefaultClock::default(),
            per_second: limits.calls_per_second,
            admissions: AtomicU32::new(0),
        }
    }

    /// Count a call. Err is `call_rate`, with the time until the next call is admitted.
    pub fn admit(&self, caller: &Caller) -> Result<(), ApiError> {
        if self.admissions.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            self.limiter.retain_recent();
        }
        let key = (caller.tenant.clone(), caller.identity.clone());
        self.limiter.check_key(&key).map_err(|not_yet| {
            let wait = not_yet.wait_time_from(self.clock.now());
            let message = format!("{} calls more than {} times a second", caller.name(), self.per_second);
            ApiError::new(ErrorCode::CallRate, message).retry_after(wait)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_its_own_burst() {
        let limits = LimitConfig { calls_per_second: 1, call_burst: 3, ..LimitConfig::default() };
        let rates = CallRates::new(&limits);
        let caller = |uid| Caller {
            identity: Identity::User(uid),
            tenant: "t".parse().unwrap(),
            scopes: std::collections::BTreeSet::new(),
            all_tenants: false,
        };
        for _ in 0..3 {
            rates.admit(&caller(1)).unwrap();
        }
        let error = rates.admit(&caller(1)).unwrap_err();
        assert!(error.is(ErrorCode::CallRate), "{error}");
        assert_eq!(error.retry_after_seconds(), Some(1));
        rates.admit(&caller(2)).unwrap();
    }
}
