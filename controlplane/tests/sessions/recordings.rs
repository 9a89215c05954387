//! What is recorded, where, and for how long.

use crate::rig::{PIXEL, Rig, until};
use base64::Engine;
use controlplane::error::ErrorCode;
use controlplane::ids::{SessionId, TenantId};
use futures_util::TryStreamExt;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn every_picture_of_an_audited_session_is_on_the_disk_before_the_answer() {
    let rig = Rig::new().await;
    let service = rig.app().await;
    let id = service.open(json!({"record": "audit"})).await;
    let folder = rig.config.recording.folder.join("default").join(&id);
    let picture = base64::engine::general_purpose::STANDARD.decode(PIXEL).unwrap();
    let shot = service.call("screenshot", Some(&id), json!({})).await.unwrap();
    let path = folder.join("1.png");
    assert_eq!(shot["persisted_path"], path.to_str().unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), picture);
    assert_eq!((mode(&path), mode(&folder), mode(folder.parent().unwrap())), (0o600, 0o700, 0o700));
    assert_eq!(shot["image_base64"], PIXEL);
    let clicked =
        service.call("click", Some(&id), json!({"x": 1, "y": 2, "after_screenshot": true})).await.unwrap();
    assert_eq!(clicked["after_screenshot"]["persisted_path"], folder.join("2.png").to_str().unwrap());
    let jpeg = service.call("screenshot", Some(&id), json!({"format": "jpeg", "quality": 50})).await.unwrap();
    assert_eq!(jpeg["persisted_path"], folder.join("3.jpeg").to_str().unwrap());

    // The numbers go on after a restart, and the recording stays after the end.
    service.stop().await;
    let service = rig.app().await;
    service.call("screenshot", Some(&id), json!({})).await.unwrap();
    service.call("type", Some(&id), json!({"text": "canary-9"})).await.unwrap();
    service.call("close_session", Some(&id), json!({})).await.unwrap();
    let (tenant, session): (TenantId, SessionId) = ("default".parse().unwrap(), id.parse().unwrap());
    let recordings = &service.app.recordings;
    let shown = recordings.show(&tenant, &session).await.unwrap();
    let numbers: Vec<_> = shown.pictures.iter().map(|frame| (frame.number, frame.verb.as_str())).collect();
    assert_eq!(numbers, [(1, "screenshot"), (2, "click"), (3, "screenshot"), (4, "screenshot")]);
    assert!(shown.recording.expires_at.is_some());
    assert_eq!(recordings.frame(&tenant, &session, 4).await.unwrap(), ("image/png", picture.clone().into()));
    let other: TenantId = "other".parse().unwrap();
    assert!(recordings.show(&other, &session).await.unwrap_err().is(ErrorCode::NoSuchSession));
    assert!(recordings.frame(&other, &session, 1).await.unwrap_err().is(ErrorCode::NoSuchSession));
    assert!(recordings.frame(&tenant, &session, 9).await.unwrap_err().is(ErrorCode::NotFound));
    assert!(recordings.list(&other, None, None, 10).await.unwrap().recordings.is_empty());
    assert_eq!(recordings.list(&tenant, None, None, 10).await.unwrap().recordings.len(), 1);

    let page: Vec<u8> = recordings.export(&tenant, &session).await.unwrap().try_concat_bytes().await;
    let page = String::from_utf8(page).unwrap();
    assert_eq!(page.matches("<img ").count(), 4);
    assert!(page.contains(PIXEL) && page.contains("<b>click</b>") && page.contains("→ ok"), "{page}");
    assert!(!page.contains("canary-9") && !page.contains("<script"), "{page}");
    assert!(page.ends_with("</html>\n"));
}

trait Concat {
    async fn try_concat_bytes(self) -> Vec<u8>;
}

impl<S> Concat for S
where
    S: futures_util::Stream<Item = Result<bytes::Bytes, controlplane::error::ApiError>>,
{
    async fn try_concat_bytes(self) -> Vec<u8> {
        let parts: Vec<bytes::Bytes> = self.try_collect().await.unwrap();
        parts.concat()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transient_session_keeps_the_last_pictures_until_it_ends() {
    let mut rig = Rig::new().await;
    rig.config.recording.transient_frames = 3;
    let service = rig.app().await;
    let id = service.open(json!({})).await;
    let folder = rig.config.recording.folder.join("default").join(&id);
    for _ in 0..7 {
        let shot = service.call("screenshot", Some(&id), json!({})).await.unwrap();
        let path = shot["persisted_path"].as_str().unwrap().to_owned();
        until("the picture is written", async || {
            Path::new(&path).exists() && std::fs::read_dir(&folder).unwrap().count() <= 3
        })
        .await;
    }
    until("the ring has the last three", async || {
        let mut names: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names == ["5.png", "6.png", "7.png"]
    })
    .await;
    service.call("close_session", Some(&id), json!({})).await.unwrap();
    assert!(!folder.exists());
    assert_eq!(service.app.recordings.used_bytes(), 0);

    let off = service.open(json!({"record": "off"})).await;
    let shot = service.call("screenshot", Some(&off), json!({})).await.unwrap();
    assert_eq!(shot.get("persisted_path"), None);
    assert!(!rig.config.recording.folder.join("default").join(&off).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn recordings_are_removed_when_they_were_kept_long_enough() {
    let mut rig = Rig::new().await;
    rig.config.recording.retention_seconds = 1;
    let service = rig.app().await;
    let (open, ended) =
        (service.open(json!({"record": "audit"})).await, service.open(json!({"record": "audit"})).await);
    for id in [&open, &ended] {
        service.call("screenshot", Some(id), json!({})).await.unwrap();
    }
    service.call("close_session", Some(&ended), json!({})).await.unwrap();
    let folder = |id: &str| rig.config.recording.folder.join("default").join(id);
    assert!(folder(&ended).exists());
    until("the recording is removed", async || {
        service.app.recordings.sweep().await;
        !folder(&ended).exists()
    })
    .await;
    assert!(folder(&open).exists(), "that of an open session stays");
    assert_eq!(service.app.recordings.used_bytes(), 70);
}
