//! What the cache shows, and how things leave it.

use std::fs::{self, File};

use pleach_hub::{Check, HubError};

use crate::fake_hub::{COMMIT, FakeFile, FakeHub, MODEL};
use crate::support::{Setup, id, model};

#[test]
fn a_model_is_listed_with_what_it_takes() {
    let fake = FakeHub::new(model());
    let setup = Setup::new(&fake);
    setup.pull().unwrap();
    fs::create_dir_all(setup.cache.path().join("datasets--a--b/blobs")).unwrap();
    fs::create_dir_all(setup.cache.path().join("models--..--x")).unwrap();
    let models = setup.hub.cache().list();
    assert_eq!(models.len(), 1);
    let model = &models[0];
    assert_eq!((model.id.to_string().as_str(), model.size_bytes, model.incomplete_bytes), (MODEL, 700_015, 0));
    assert_eq!(
        (model.snapshots[0].commit.as_str(), model.snapshots[0].refs.as_slice()),
        (COMMIT, &["main".to_owned()][..])
    );
    assert_eq!(model.snapshots[0].files.len(), 3);
    assert_eq!(model.ready(&setup.hub), [(id(MODEL), 700_015)]);
    assert_eq!(model.broken(), 0);
}

#[test]
fn a_model_without_its_blob_is_broken_and_can_go() {
    let fake = FakeHub::new(model());
    let setup = Setup::new(&fake);
    setup.pull().unwrap();
    fs::remove_file(setup.incomplete().with_extension("")).unwrap();
    let listed = &setup.hub.cache().list()[0];
    assert_eq!((listed.broken(), listed.ready(&setup.hub)), (1, Vec::new()));
    assert!(setup.hub.cached(&id(MODEL)).is_err());
    setup.hub.cache().remove(&id(MODEL)).unwrap();
    assert!(!setup.repository().exists());
    assert!(setup.hub.cache().list().is_empty());
}

#[test]
fn the_remains_of_anything_can_go() {
    let fake = FakeHub::new(model());
    let setup = Setup::new(&fake);
    for remains in ["", "blobs", "snapshots/x/config.json", "refs/main/deep"] {
        fs::create_dir_all(setup.repository().join(remains)).unwrap();
        setup.hub.cache().remove(&id(MODEL)).unwrap();
        assert!(!setup.repository().exists(), "{remains}");
    }
    fs::write(setup.repository(), "a file in place of a folder").unwrap();
    setup.hub.cache().remove(&id(MODEL)).unwrap();
    assert!(!setup.repository().exists());
    let error = setup.hub.cache().remove(&id(MODEL)).unwrap_err();
    assert_eq!(error.to_string(), format!("`org/model` is not in `{}`", setup.cache.path().display()));
}

/// Links are removed, not followed.
#[cfg(unix)]
#[test]
fn removing_never_leaves_its_folder() {
    use std::os::unix::fs::symlink;
    let fake = FakeHub::new(model());
    let setup = Setup::new(&fake);
    let outside = setup.cache.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "kept").unwrap();

    setup.pull().unwrap();
    symlink(&outside, setup.snapshot().join("folder")).unwrap();
    symlink(&outside, setup.repository().join("blobs/folder")).unwrap();
    symlink(outside.join("precious"), setup.snapshot().join("file")).unwrap();
    setup.hub.cache().remove(&id(MODEL)).unwrap();
    assert!(!setup.repository().exists());

    symlink(&outside, setup.repository()).unwrap();
    setup.hub.cache().remove(&id(MODEL)).unwrap();
    assert!(fs::symlink_metadata(setup.repository()).is_err());

    fs::create_dir(setup.repository()).unwrap();
    symlink(&outside, setup.repository().join("snapshots")).unwrap();
    setup.hub.cache().remove(&id(MODEL)).unwrap();
    assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "kept");
}

#[test]
fn one_file_goes_and_the_others_stay() {
    let fake =
        FakeHub::new(vec![FakeFile::large("b-Q4_0.gguf", vec![4; 100]), FakeFile::large("b-Q8_0.gguf", vec![8; 200])]);
    let setup = Setup::new(&fake);
    for name in ["org/model:Q4_0", "org/model:Q8_0"] {
        setup.hub.pull(&id(name), Check::Size, &|_| {}).unwrap();
    }
    let listed: Vec<_> = setup.hub.cache().list()[0].ready(&setup.hub);
    let names: Vec<_> = listed.iter().map(|(id, size)| (id.to_string(), *size)).collect();
    assert_eq!(names, [("org/model:b-Q4_0.gguf".to_owned(), 100), ("org/model:b-Q8_0.gguf".to_owned(), 200)]);
    let removed = setup.hub.cache().remove(&id("org/model:Q8_0")).unwrap();
    assert!(removed.bytes >= 200);
    assert!(setup.hub.cached(&id("org/model:Q4_0")).is_ok());
    assert!(setup.hub.cached(&id("org/model:Q8_0")).is_err());
    assert_eq!(fs::read_dir(setup.repository().join("blobs")).unwrap().count(), 1);
    assert!(matches!(setup.hub.cache().remove(&id("org/model:Q8_0")), Err(HubError::NoSuchFile { .. })));
}

#[test]
fn what_is_being_fetched_is_not_removed() {
    let fake = FakeHub::new(model());
    let setup = Setup::new(&fake);
    setup.pull().unwrap();
    let locks = setup.cache.path().join(".locks/models--org--model");
    let lock = fs::read_dir(locks).unwrap().next().unwrap().unwrap().path();
    let held = File::options().write(true).open(lock).unwrap();
    held.lock().unwrap();
    let error = setup.hub.cache().remove(&id(MODEL)).unwrap_err();
    assert_eq!(error.to_string(), "another process is fetching `org/model`");
    setup.assert_whole();
    drop(held);
    setup.hub.cache().remove(&id(MODEL)).unwrap();
}
