//! The CDP relay: raw CDP of a session for Playwright, Puppeteer and others.
