use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::config::discover::{Origin, Pages, Role};
use crate::discovery::Condition;
use crate::discovery::tests::{News, ready};

const FAST: Duration = Duration::from_millis(5);

fn news(path: &Path) -> News {
    let source = Source { origin: Origin::File(path.into()), pages: Pages::default(), role: Role::Decode };
    let path = path.to_owned();
    News::of(|teller| async move { follow(&path, &source, teller, FAST).await })
}

#[tokio::test]
async fn a_file_is_followed_however_it_is_replaced() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("workers.yaml");
    fs::write(&path, "['w:1', {address: 'w:2', draining: true, role: prefill}]").unwrap();
    let mut news = news(&path);
    let draining = Member { condition: Condition::Draining, role: Role::Prefill, ..ready("w:2") };
    assert_eq!(news.members().await, [Member { role: Role::Decode, ..ready("w:1") }, draining]);

    // In place, as long as before. Whoever looks between the two steps of that finds nothing written.
    fs::write(&path, "['w:1', {address: 'w:3', draining: true, role: prefill}]").unwrap();
    assert_eq!(news.addresses_despite_errors().await, ["w:1", "w:3"]);

    // By a rename, with the times of the old one.
    let next = folder.path().join("next");
    fs::write(&next, "['w:4']").unwrap();
    let old = fs::metadata(&path).unwrap().modified().unwrap();
    File::options().write(true).open(&next).unwrap().set_modified(old).unwrap();
    fs::rename(&next, &path).unwrap();
    assert_eq!(news.addresses().await, ["w:4"]);
}

#[tokio::test]
async fn a_mounted_config_map_is_followed() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, workers) in [("v1", "['w:1']"), ("v2", "[]")] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("workers.yaml"), workers).unwrap();
    }
    symlink("v1", at("..data")).unwrap();
    symlink("..data/workers.yaml", at("workers.yaml")).unwrap();
    let mut news = news(&at("workers.yaml"));
    assert_eq!(news.addresses().await, ["w:1"]);
    symlink("v2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    assert_eq!(news.addresses().await, [""; 0], "an empty list is an answer");
}

#[tokio::test]
async fn bad_content_is_told_once_and_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("workers.yaml");
    let mut news = news(&path);
    assert!(matches!(news.error().await, LookError::Connection(why) if why.contains("workers.yaml")));

    fs::write(&path, "['w:1']").unwrap();
    assert_eq!(news.addresses_despite_errors().await, ["w:1"]);
    // Moved into place, since what is half written would be told too.
    let replace = |text: &[u8]| {
        let next = folder.path().join("next");
        fs::write(&next, text).unwrap();
        fs::rename(&next, &path).unwrap();
    };
    replace(b"['w:1', 'w']");
    assert_eq!(news.error().await, LookError::Unreadable("[1]: \"w\" is not host:port".into()));
    news.silence(FAST * 10).await;
    replace(b"[\"w:1\"");
    assert!(matches!(news.error().await, LookError::Unreadable(_)), "other content is told anew");
    replace(b"\xff\xfe");
    assert!(matches!(news.error().await, LookError::Connection(_)));
    replace(&vec![b' '; MAX_BYTES as usize + 1]);
    assert!(matches!(news.error().await, LookError::Connection(why) if why.contains("longer than")));
    replace(b"[ 'w:1' ]");
    let found = news.next().await;
    assert_eq!((found.members, found.error), (None, None), "the members are as they were");
}
