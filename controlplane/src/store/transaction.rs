//! Transactions. One that is not committed ends with its connection.
//!
//! sqlx keeps its own count of open transactions. It is wrong after a COMMIT of SQLite that failed because the disk is full:
//! SQLite has rolled back then, and the connection would be useless from then on.

use super::error::StoreError;
use sqlx::pool::PoolConnection;
use sqlx::{Database, Executor, Pool};
use std::ops::{Deref, DerefMut};

pub(super) struct Transaction<DB: Database> {
    connection: Option<PoolConnection<DB>>,
}

pub(super) async fn begin<DB: Database>(
    pool: &Pool<DB>,
    begin: &'static str,
) -> Result<Transaction<DB>, StoreError>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let mut transaction = Transaction { connection: Some(pool.acquire().await?) };
    (&mut **transaction).execute(begin).await?;
    Ok(transaction)
}

impl<DB: Database> Transaction<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        (&mut **self).execute("COMMIT").await?;
        // Only now may the connection be used again.
        drop(self.connection.take());
        Ok(())
    }
}

impl<DB: Database> Deref for Transaction<DB> {
    type Target = PoolConnection<DB>;
    fn deref(&self) -> &Self::Target {
        self.connection.as_ref().expect("it is there until the commit")
    }
}

impl<DB: Database> DerefMut for Transaction<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection.as_mut().expect("it is there until the commit")
    }
}

impl<DB: Database> Drop for Transaction<DB> {
    fn drop(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            connection.close_on_drop();
        }
    }
}
