//! schemathesis against the served document.
