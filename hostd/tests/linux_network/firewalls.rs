//! Other firewalls.
