//! Checking the log: the chain, and the signed heads.

use super::heads::{self, hex};
use crate::store::{AuditFilter, AuditHead, AuditRow, CheckpointRow, Store, StoreError};
use ed25519_dalek::VerifyingKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// At most so many problems are listed.
const MAX_PROBLEMS: usize = 100;
/// Rows that are read at once.
const PAGE: u32 = 1000;
/// How far from its place a row is searched that may have been moved.
const MOVED_BY: i64 = 1000;

/// Something that is wrong with the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum Problem {
    /// The row does not have the content that was written.
    Changed {
        /// The row.
        seq: i64,
    },
    /// The row was written with another number.
    Moved {
        /// Where it is.
        seq: i64,
        /// Where it was.
        written_as: i64,
    },
    /// Rows are missing.
    Missing {
        /// The first.
        from: i64,
        /// The last.
        to: i64,
    },
    /// The row is as it was written, but the row before it is another one than then.
    Replaced {
        /// The row that was replaced.
        seq: i64,
    },
    /// The log ends before a row that was signed or committed.
    Cut {
        /// The last row that there is.
        last: i64,
        /// A row that there was.
        known: i64,
    },
    /// A signed head names another hash than the row has: rows up to this one were rewritten.
    Rewritten {
        /// The row.
        seq: i64,
    },
    /// A head's signature is not valid: the head was changed.
    BadSignature {
        /// The row that the head names.
        seq: i64,
    },
    /// A head that is in the file was removed from the database.
    HeadRemoved {
        /// The row that the head names.
        seq: i64,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Changed { seq } => write!(f, "row {seq} was changed"),
            Problem::Moved { seq, written_as } => write!(f, "row {seq} was written as row {written_as}"),
            Problem::Missing { from, to } if from == to => write!(f, "row {from} is missing"),
            Problem::Missing { from, to } => write!(f, "rows {from} to {to} are missing"),
            Problem::Replaced { seq } => write!(f, "row {seq} was replaced"),
            Problem::Cut { last, known } => {
                write!(
                    f,
                    "the log ends with row {last}, but row {known} was in it: rows at the end were removed"
                )
            }
            Problem::Rewritten { seq } => {
                write!(f, "row {seq} has another hash than its signed head: rows up to it were rewritten")
            }
            Problem::BadSignature { seq } => write!(f, "the signature of the head of row {seq} is not valid"),
            Problem::HeadRemoved { seq } => {
                write!(f, "the signed head of row {seq} was removed from the database")
            }
        }
    }
}

/// What a check of the log found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Whether nothing is wrong.
    pub intact: bool,
    /// How many rows there are.
    pub rows: u64,
    /// The number of the last row.
    pub head: i64,
    /// The hash of the last row.
    pub head_hash: String,
    /// How many signed heads were checked.
    pub signed_heads: u64,
    /// The newest row that a signed head covers. Rows after it could be cut off unseen when no control plane runs.
    pub signed_up_to: i64,
    /// Public keys of heads that were signed by other control planes, or by this one with an earlier key. Their signatures are
    /// checked, but not whose they are.
    pub other_keys: Vec<String>,
    /// What is wrong, at most 100.
    pub problems: Vec<Problem>,
}

impl Report {
    fn add(&mut self, problem: Problem) {
        self.intact = false;
        if self.problems.len() < MAX_PROBLEMS && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

/// Check the whole log of the store against itself and the signed heads in the database and the file. `known` is a head that
/// this process saw committed.
pub async fn verify(
    store: &Store,
    own_key: &VerifyingKey,
    heads_file: &Path,
    known: Option<&AuditHead>,
) -> Result<Report, StoreError> {
    let mut report = Report {
        intact: true,
        rows: 0,
        head: 0,
        head_hash: hex(&[0; 32]),
        signed_heads: 0,
        signed_up_to: 0,
        other_keys: Vec::new(),
        problems: Vec::new(),
    };
    // The heads are read before the rows: while this runs, rows are only added, so each head has its row.
    let path = heads_file.to_owned();
    let in_file = tokio::task::spawn_blocking(move || heads::read(&path)).await;
    let in_file = match in_file {
        Ok(Ok(heads)) => heads,
        Ok(Err(error)) => return Err(file_error(heads_file, error.to_string())),
        Err(error) => return Err(file_error(heads_file, error.to_string())),
    };
    let in_database = store.checkpoints().await?;
    let heads = signed_heads(&mut report, own_key, in_file, in_database);
    let mut expected = heads.iter().peekable();

    let mut last = AuditHead { seq: 0, hash: [0; 32] };
    let mut last_is_intact = true;
    loop {
        let filter = AuditFilter { after_seq: last.seq, limit: PAGE, ..AuditFilter::default() };
        let rows = store.audit_rows(&filter).await?;
        for row in &rows {
            last_is_intact = check_row(&mut report, row, &last, last_is_intact);
            report.rows += 1;
            last = AuditHead { seq: row.seq, hash: row.hash.clone().try_into().unwrap_or_default() };
            while let Some((seq, hashes)) = expected.next_if(|(seq, _)| **seq <= row.seq) {
                // A head whose row is missing was reported as missing.
                if *seq == row.seq && hashes.iter().any(|hash| *hash != row.hash) {
                    report.add(Problem::Rewritten { seq: *seq });
                }
            }
            if known.is_some_and(|known| known.seq == row.seq && known.hash.as_slice() != row.hash) {
                report.add(Problem::Rewritten { seq: row.seq });
            }
        }
        if rows.len() < PAGE as usize {
            break;
        }
    }
    report.head = last.seq;
    report.head_hash = hex(&last.hash);
    let newest = heads.keys().next_back().copied().unwrap_or(0).max(known.map_or(0, |known| known.seq));
    if newest > last.seq {
        report.add(Problem::Cut { last: last.seq, known: newest });
    }
    Ok(report)
}

fn file_error(path: &Path, error: String) -> StoreError {
    StoreError::Corrupt(format!("{} cannot be read: {error}", path.display()))
}

/// The hashes that genuine heads give to rows.
fn signed_heads(
    report: &mut Report,
    own_key: &VerifyingKey,
    in_file: Vec<CheckpointRow>,
    in_database: Vec<CheckpointRow>,
) -> BTreeMap<i64, Vec<Vec<u8>>> {
    let own_key = own_key.to_bytes();
    let mut heads: BTreeMap<i64, Vec<Vec<u8>>> = BTreeMap::new();
    let mut others = BTreeSet::new();

    // The database drops old heads too, so only those from its oldest on can be missed.
    let stored: BTreeSet<i64> =
        in_database.iter().filter(|head| head.public_key == own_key).map(|head| head.seq).collect();
    // The newest line of the file may not be in the database yet.
    let newest_in_file = in_file.iter().map(|head| head.seq).max().unwrap_or(0);
    let oldest_stored = stored.first().copied().unwrap_or(0);
    for head in &in_file {
        let expected = head.public_key == own_key && head.seq >= oldest_stored && head.seq != newest_in_file;
        if expected && !stored.contains(&head.seq) {
            report.add(Problem::HeadRemoved { seq: head.seq });
        }
    }
    for head in in_file.into_iter().chain(in_database) {
        if !heads::is_genuine(&head) {
            report.add(Problem::BadSignature { seq: head.seq });
            continue;
        }
        if head.public_key != own_key {
            others.insert(hex(&head.public_key));
        }
        report.signed_heads += 1;
        report.signed_up_to = report.signed_up_to.max(head.seq);
        let hashes = heads.entry(head.seq).or_default();
        if !hashes.contains(&head.hash) {
            hashes.push(head.hash);
        }
    }
    report.other_keys = others.into_iter().collect();
    heads
}

/// Whether the row has the content and the number that it was written with.
fn check_row(report: &mut Report, row: &AuditRow, last: &AuditHead, last_is_intact: bool) -> bool {
    if row.seq != last.seq + 1 {
        report.add(Problem::Missing { from: last.seq + 1, to: row.seq - 1 });
    }
    let is_intact = |row: &AuditRow| row.expected_hash().is_ok_and(|hash| hash.as_slice() == row.hash);
    if is_intact(row) {
        if row.seq == last.seq + 1 && row.previous != last.hash && last_is_intact {
            report.add(Problem::Replaced { seq: last.seq });
        }
        return true;
    }
    // The hash covers the number: find the number that the row was written with.
    let mut moved = row.clone();
    let mut numbers = (row.seq - MOVED_BY).max(1)..=row.seq + MOVED_BY;
    let written_as = numbers.find(|seq| {
        moved.seq = *seq;
        report.problems.len() < MAX_PROBLEMS && is_intact(&moved)
    });
    report.add(match written_as {
        Some(written_as) => Problem::Moved { seq: row.seq, written_as },
        None => Problem::Changed { seq: row.seq },
    });
    false
}
