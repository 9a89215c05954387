//! Screenshots of sessions, on the disk of the control plane.

mod export;
mod files;

use crate::config::RecordingConfig;
use crate::error::{ApiError, ErrorCode};
use crate::ids::{SessionId, TenantId};
use crate::store::{FrameRow, RecordingRow, Store, StoreError};
use crate::time::{self, Millis, rfc3339};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The recordings of all sessions. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct Recordings(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: RecordingConfig,
    store: Store,
    /// Bytes of all pictures, with those that are being written.
    used: AtomicU64,
    series: Mutex<HashMap<SessionId, Arc<Series>>>,
}

/// The pictures of one session. Pictures of `transient` are written one after the other.
#[derive(Debug)]
struct Series {
    last: AtomicU64,
    writing: tokio::sync::Mutex<()>,
    waiting: AtomicUsize,
}

/// A picture to record.
#[derive(Debug)]
pub(crate) struct NewPicture {
    pub bytes: Vec<u8>,
    pub format: &'static str,
    pub width: u32,
    pub height: u32,
    pub captured_at: Millis,
    pub verb: &'static str,
}

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

/// A picture that is being recorded gives its bytes back unless it was written.
struct Reserved<'a> {
    used: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Recordings {
    /// The recordings below the configured folder.
    pub(crate) async fn start(config: RecordingConfig, store: Store) -> Result<Self, ApiError> {
        files::make_folder(&config.folder).map_err(|error| {
            let message =
                format!("cannot use the folder {} (recording.folder): {error}", config.folder.display());
            ApiError::new(ErrorCode::RecordingFailed, message)
        })?;
        let used = AtomicU64::new(store.recorded_bytes().await?);
        Ok(Self(Arc::new(Inner { config, store, used, series: Mutex::default() })))
    }

    /// Bytes of all pictures.
    pub fn used_bytes(&self) -> u64 {
        self.0.used.load(Ordering::Acquire)
    }

    fn quota(&self) -> ApiError {
        let (used, quota) = (self.used_bytes(), self.0.config.quota_bytes);
        let message = format!("recordings have {used} of {quota} bytes (recording.quota_bytes)");
        ApiError::new(ErrorCode::RecordingQuota, message).retry_after(Duration::from_secs(60))
    }

    /// Whether there is room for more pictures.
    pub(crate) fn check_quota(&self) -> Result<(), ApiError> {
        if self.used_bytes() >= self.0.config.quota_bytes { Err(self.quota()) } else { Ok(()) }
    }

    fn reserve(&self, bytes: u64) -> Result<Reserved<'_>, ApiError> {
        let used = &self.0.used;
        let before = used.fetch_add(bytes, Ordering::AcqRel);
        let reserved = Reserved { used, bytes };
        if before + bytes > self.0.config.quota_bytes { Err(self.quota()) } else { Ok(reserved) }
    }

    fn folder(&self, tenant: &TenantId, session: &SessionId) -> PathBuf {
        self.0.config.folder.join(tenant.as_str()).join(session.as_str())
    }

    /// The series of a session. After a restart its numbers go on after those on the disk.
    async fn series(&self, tenant: &TenantId, session: &SessionId) -> Arc<Series> {
        let known = self.0.series.lock().expect("no panic while held").get(session).cloned();
        if let Some(series) = known {
            return series;
        }
        let folder = self.folder(tenant, session);
        let last = tokio::task::spawn_blocking(move || files::last_number(&folder)).await.unwrap_or(0);
        let mut series = self.0.series.lock().expect("no panic while held");
        let new = || {
            Arc::new(Series {
                last: AtomicU64::new(last),
                writing: tokio::sync::Mutex::default(),
                waiting: AtomicUsize::new(0),
            })
        };
        series.entry(session.clone()).or_insert_with(new).clone()
    }

    /// Record a picture of a session with `record: audit`. The file and its row are on the disk when this returns.
    pub(crate) async fn save(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        picture: NewPicture,
    ) -> Result<PathBuf, ApiError> {
        let reserved = self.reserve(picture.bytes.len() as u64)?;
        let number = self.series(tenant, session).await.last.fetch_add(1, Ordering::AcqRel) + 1;
        let path = self.write(tenant, session, number, picture).await?;
        // The bytes are the recording's now.
        std::mem::forget(reserved);
        Ok(path)
    }

    /// Record a picture of a session with `record: transient`, in the background. The path is where it will be.
    pub(crate) async fn save_later(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        picture: NewPicture,
    ) -> Option<PathBuf> {
        let series = self.series(tenant, session).await;
        let most = self.0.config.transient_frames as usize;
        // A disk that is too slow must not fill the memory: the picture is left out, as if it had left the ring already.
        if series.waiting.fetch_add(1, Ordering::AcqRel) >= most {
            series.waiting.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        let number = series.last.fetch_add(1, Ordering::AcqRel) + 1;
        let path = self.folder(tenant, session).join(format!("{number}.{}", picture.format));
        let (recordings, tenant, session) = (self.clone(), tenant.clone(), session.clone());
        tokio::spawn(async move {
            let _turn = series.writing.lock().await;
            if let Err(error) = recordings.write_transient(&tenant, &session, number, picture).await {
                tracing::warn!(%session, %error, "cannot record a picture");
            }
            series.waiting.fetch_sub(1, Ordering::AcqRel);
        });
        Some(path)
    }

    async fn write_transient(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        number: u64,
        picture: NewPicture,
    ) -> Result<(), ApiError> {
        // The session ended while the picture waited.
        if !self.0.series.lock().expect("no panic while held").contains_key(session) {
            return Ok(());
        }
        let reserved = self.reserve(picture.bytes.len() as u64)?;
        self.write(tenant, session, number, picture).await?;
        std::mem::forget(reserved);
        let frames = self.0.store.frames(session).await?;
        let too_many = frames.len().saturating_sub(self.0.config.transient_frames as usize);
        for frame in &frames[..too_many] {
            self.remove_frame(tenant, session, frame).await?;
        }
        Ok(())
    }

    async fn write(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        number: u64,
        picture: NewPicture,
    ) -> Result<PathBuf, ApiError> {
        let row = FrameRow {
            session: session.clone(),
            tenant: tenant.clone(),
            number: number as i64,
            captured_at: picture.captured_at,
            bytes: picture.bytes.len() as i64,
            format: picture.format.to_owned(),
            width: picture.width.into(),
            height: picture.height.into(),
            verb: picture.verb.to_owned(),
        };
        let (root, folder) = (self.0.config.folder.clone(), self.folder(tenant, session));
        let path = folder.join(format!("{number}.{}", picture.format));
        let file = path.clone();
        let written =
            tokio::task::spawn_blocking(move || files::write(&root, &folder, &file, &picture.bytes)).await;
        written.unwrap_or_else(|panic| Err(std::io::Error::other(panic))).map_err(|error| {
            let message = format!("cannot write {} (recording.folder): {error}", path.display());
            ApiError::new(ErrorCode::RecordingFailed, message)
        })?;
        if let Err(error) = self.0.store.insert_frame(&row).await {
            let _ = std::fs::remove_file(&path);
            return Err(error.into());
        }
        Ok(path)
    }

    async fn remove_frame(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        frame: &FrameRow,
    ) -> Result<(), StoreError> {
        let path = self.folder(tenant, session).join(format!("{}.{}", frame.number, frame.format));
        remove_file(&path);
        if self.0.store.delete_frame(session, frame.number).await? {
            self.0.used.fetch_sub(frame.bytes as u64, Ordering::AcqRel);
        }
        Ok(())
    }

    /// The files go first: a row without a file is removed by the next sweep, a file without a row would stay.
    async fn remove(&self, tenant: &TenantId, session: &SessionId) -> Result<(), StoreError> {
        let (folder, root) = (self.folder(tenant, session), self.0.config.folder.clone());
        let removed = tokio::task::spawn_blocking(move || files::remove_folder(&root, &folder)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%session, %error, "cannot remove a recording");
            return Ok(());
        }
        let bytes: i64 = self.0.store.frames(session).await?.iter().map(|frame| frame.bytes).sum();
        if self.0.store.delete_frames(session).await? > 0 {
            self.0.used.fetch_sub(bytes as u64, Ordering::AcqRel);
        }
        Ok(())
    }

    /// A session ended: pictures of `transient` are removed.
    pub(crate) async fn session_ended(&self, tenant: &TenantId, session: &SessionId, record: &str) {
        let series = self.0.series.lock().expect("no panic while held").remove(session);
        if record != "transient" {
            return;
        }
        if let Some(series) = series {
            let _last = series.writing.lock().await;
        }
        if let Err(error) = self.remove(tenant, session).await {
            tracing::warn!(%session, %error, "the pictures of a session are removed by the next sweep");
        }
    }

    /// Remove recordings that were kept long enough, and pictures of `transient` that outlived their session.
    pub async fn sweep(&self) {
        let keep = Millis::try_from(self.0.config.retention_seconds).unwrap_or(Millis::MAX / 1000) * 1000;
        if let Err(error) = self.sweep_closed_before(time::now() - keep).await {
            tracing::warn!(%error, "cannot remove old recordings");
        }
    }

    async fn sweep_closed_before(&self, before: Millis) -> Result<(), StoreError> {
        for recording in self.0.store.expired_recordings(time::now()).await? {
            let expired = recording.closed_at.is_some_and(|at| at < before);
            if expired || recording.record == "transient" {
                tracing::info!(session = %recording.session, "a recording is removed");
                self.remove(&recording.tenant, &recording.session).await?;
            }
        }
        Ok(())
    }

    fn view(&self, row: RecordingRow) -> RecordingView {
        let keep = Millis::try_from(self.0.config.retention_seconds).unwrap_or(Millis::MAX / 1000) * 1000;
        let whole = |number: i64| u64::try_from(number).unwrap_or(0);
        RecordingView {
            session_id: row.session,
            owner: row.owner,
            frames: whole(row.frames),
            bytes: whole(row.bytes),
            first_at: rfc3339(row.first_at),
            last_at: rfc3339(row.last_at),
            expires_at: row.closed_at.map(|at| rfc3339(at.saturating_add(keep))),
        }
    }

    /// The recordings of a tenant, the newest first; of one owner, and before a session, if given.
    pub async fn list(
        &self,
        tenant: &TenantId,
        owner: Option<&str>,
        before: Option<&SessionId>,
        limit: u32,
    ) -> Result<RecordingList, ApiError> {
        let rows = self.0.store.recordings(tenant, owner, before, limit).await?;
        Ok(RecordingList { recordings: rows.into_iter().map(|row| self.view(row)).collect() })
    }

    async fn row(&self, tenant: &TenantId, session: &SessionId) -> Result<RecordingRow, ApiError> {
        let row = self.0.store.recording(session).await?.filter(|row| row.tenant == *tenant);
        row.ok_or_else(|| {
            ApiError::new(ErrorCode::NoSuchSession, format!("there is no recording of session {session}"))
        })
    }

    /// A recording with its pictures. Err is `no_such_session` if the tenant has none of this session.
    pub async fn show(&self, tenant: &TenantId, session: &SessionId) -> Result<RecordingDetail, ApiError> {
        let recording = self.view(self.row(tenant, session).await?);
        let frames = self.0.store.frames(session).await?;
        let whole = |number: i64| u64::try_from(number).unwrap_or(0);
        let pictures = frames.into_iter().map(|frame| FrameView {
            number: whole(frame.number),
            captured_at: rfc3339(frame.captured_at),
            verb: frame.verb,
            format: frame.format,
            width: u32::try_from(frame.width).unwrap_or(0),
            height: u32::try_from(frame.height).unwrap_or(0),
            bytes: whole(frame.bytes),
        });
        Ok(RecordingDetail { recording, pictures: pictures.collect() })
    }

    /// A picture: its media type and bytes.
    pub async fn frame(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        number: u64,
    ) -> Result<(&'static str, Bytes), ApiError> {
        self.row(tenant, session).await?;
        let frames = self.0.store.frames(session).await?;
        let frame = frames.iter().find(|frame| u64::try_from(frame.number) == Ok(number));
        let frame = frame.ok_or_else(|| {
            ApiError::new(
                ErrorCode::NotFound,
                format!("the recording of session {session} has no picture {number}"),
            )
        })?;
        let bytes = self.picture(tenant, session, frame).await?;
        Ok((media_type(&frame.format), bytes))
    }

    async fn picture(
        &self,
        tenant: &TenantId,
        session: &SessionId,
        frame: &FrameRow,
    ) -> Result<Bytes, ApiError> {
        let path = self.folder(tenant, session).join(format!("{}.{}", frame.number, frame.format));
        tokio::fs::read(&path).await.map(Bytes::from).map_err(|error| {
            ApiError::new(ErrorCode::RecordingFailed, format!("cannot read {}: {error}", path.display()))
        })
    }

    /// One HTML page with a time line and all pictures in it, which needs no other file.
    pub async fn export(
        &self,
        tenant: &TenantId,
        session: &SessionId,
    ) -> Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError> {
        export::export(self, self.row(tenant, session).await?).await
    }
}

fn media_type(format: &str) -> &'static str {
    match format {
        "jpeg" => "image/jpeg",
        "webp" => "image/webp",
        _ => "image/png",
    }
}

fn remove_file(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a picture");
    }
}
