//! The clients that people use, unchanged, through the relay to a real browserd with Chromium.
