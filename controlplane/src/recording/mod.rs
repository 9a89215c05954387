//! Screenshots of sessions, on the disk of the control plane.
