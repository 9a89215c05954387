//! The store and the audit log, on both engines.

mod audit;
mod faults;
mod keys;
mod rate;
mod rows;

#[path = "../support/mod.rs"]
mod support;

use support::database::Database;
use tokio::runtime::{Builder, Runtime};

/// Run the body of a test. The server is started and ended by the thread of the test, not by one of the runtime.
fn run(mut database: Database, body: impl AsyncFnOnce(&mut Database)) {
    runtime().block_on(body(&mut database));
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// `both! { async fn name(database: &mut Database) { … } }`: tests `name::sqlite` and `name::postgres`.
macro_rules! both {
    ($($(#[$doc:meta])* async fn $name:ident($database:ident: &mut Database) $body:block)*) => {
        $($(#[$doc])* mod $name {
            use super::*;

            async fn body($database: &mut Database) $body

            #[test]
            fn sqlite() {
                crate::run(Database::sqlite(), body);
            }

            #[test]
            fn postgres() {
                crate::run(Database::postgres(), body);
            }
        })*
    };
}
pub(crate) use both;
