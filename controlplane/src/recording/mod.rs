//! Screenshots of sessions, on the disk of the control plane.

use crate::error::ApiError;
use crate::ids::{SessionId, TenantId};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The recordings of all sessions. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct Recordings {}

/// A recording.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RecordingView {
    /// The session.
    pub session_id: SessionId,
    /// Who opened it.
    pub owner: String,
    /// The number of pictures.
    pub frames: u64,
    /// Their sizes together, in bytes.
    pub bytes: u64,
    /// When the first was taken (RFC 3339).
    pub first_at: String,
    /// When the last was taken (RFC 3339).
    pub last_at: String,
    /// When it is removed (RFC 3339). None while the session is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// A picture of a recording.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct FrameView {
    /// Its number in the session, from 1.
    pub number: u64,
    /// When it was taken (RFC 3339).
    pub captured_at: String,
    /// The verb that took it.
    pub verb: String,
    /// `png`, `jpeg` or `webp`.
    pub format: String,
    /// Width in image pixels.
    pub width: u32,
    /// Height in image pixels.
    pub height: u32,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Recordings, the newest first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RecordingList {
    /// The recordings.
    pub recordings: Vec<RecordingView>,
}

/// A recording with its pictures.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RecordingDetail {
    /// The recording.
    #[serde(flatten)]
    pub recording: RecordingView,
    /// The pictures, the earliest first.
    pub pictures: Vec<FrameView>,
}

impl Recordings {
    /// The recordings of a tenant, the newest first; of one owner, and before a session, if given.
    pub async fn list(
        &self,
        tenant: &TenantId,
        owner: Option<&str>,
        before: Option<&SessionId>,
        limit: u32,
    ) -> Result<RecordingList, ApiError> {
        let _ = (tenant, owner, before, limit);
        unimplemented!()
    }

    /// A recording with its pictures. Err is `no_such_session` if the tenant has none of this session.
    pub async fn show(&self, tenant: &TenantId, session: &SessionId) -> Result<RecordingDetail, ApiError> {
        let _ = (tenant, session);
        unimplemented!()
    }

    /// A picture: its media type and bytes.
    pub async fn frame(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        number: u64,
    ) -> Result<(&'static str, Bytes), ApiError> {
        let _ = (tenant, session, number);
        unimplemented!()
    }

    /// One HTML page with a time line and all pictures in it, which needs no other file.
    pub async fn export(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError> {
        let _ = (tenant, session);
        unimplemented!()
    }
}
