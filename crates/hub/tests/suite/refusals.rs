//! What the hub refuses, and names that would do harm.

use std::fs;
use std::time::{Duration, Instant};

use pleach_hub::{Check, HubError, Token};
use serde_json::{Value, json};

use crate::fake_hub::{FakeFile, FakeHub, MODEL, Reply};
use crate::support::{Setup, id, model};

/// A hub whose list of files is changed.
fn listing(change: impl Fn(&mut Value) + Send + Sync + 'static) -> FakeHub {
    FakeHub::with(model(), move |asked, reply| {
        if !asked.path.starts_with("/api/") {
            return reply;
        }
        let mut listing: Value = serde_json::from_slice(&reply.body).unwrap();
        change(&mut listing);
        Reply { body: listing.to_string().into_bytes(), ..reply }
    })
}

/// A hub that answers every request under `path` with a status.
fn refusing(path: &'static str, status: u16, code: &'static str) -> FakeHub {
    FakeHub::with(model(), move |asked, reply| match asked.path.contains(path) {
        true if code.is_empty() => Reply::new(status, "no"),
        true => Reply::new(status, "no").header("X-Error-Code", code),
        false => reply,
    })
}

#[test]
fn statuses_have_meanings() {
    let cases = [
        ("/api/", 401, "RepoNotFound", "has no model `org/model` that everyone may read", "HF_TOKEN"),
        ("/api/", 401, "", "has no model `org/model` that everyone may read", "HF_TOKEN"),
        ("/api/", 404, "RepoNotFound", "has no model `org/model` that everyone may read", "check the spelling"),
        ("/api/", 404, "RevisionNotFound", "`org/model` has no branch, tag or commit `main`", "leave `@...` out"),
        ("/resolve/", 401, "GatedRepo", "`org/model` is not given to everyone", "put your token into HF_TOKEN"),
        ("/resolve/", 403, "GatedRepo", "`org/model` is not given to everyone", "accept them at http://"),
        ("/api/", 403, "", "`org/model` is not given to everyone", "accept them at http://"),
        ("/resolve/", 404, "EntryNotFound", "answers with status 404", "the hub has a problem"),
        ("/resolve/", 429, "", "answers with status 429", "wait a few minutes"),
        ("/api/", 500, "", "answers with status 500", "try again later"),
        ("/resolve/", 503, "", "answers with status 503", "try again later"),
    ];
    for (path, status, code, message, hint) in cases {
        let fake = refusing(path, status, code);
        let setup = Setup::new(&fake);
        let error = setup.pull().unwrap_err();
        assert!(error.to_string().contains(message), "{status} {code}: {error}");
        assert!(error.hint().unwrap().contains(hint), "{status} {code}: {:?}", error.hint());
        setup.assert_nothing_whole();
    }
}

#[test]
fn a_token_that_is_not_accepted_is_named() {
    let fake = refusing("/api/", 401, "");
    let setup = Setup::with(&fake, |options| options.token = Some(Token::new("hf_old", "test").unwrap()));
    let error = setup.pull().unwrap_err();
    assert_eq!(error.to_string(), format!("{} does not accept the token", fake.endpoint()));
    assert!(!error.hint().unwrap().contains("hf_old"));
}

#[test]
fn failures_that_pass_are_waited_for() {
    for status in [429, 500, 502, 503] {
        let fake = FakeHub::with(model(), move |asked, reply| match asked.before {
            0 => Reply::new(status, "busy").header("Retry-After", "0"),
            _ => reply,
        });
        let setup = Setup::new(&fake);
        let (result, retries) = setup.pull_with_retries();
        result.unwrap();
        setup.assert_whole();
        assert!(retries.len() >= 4 && retries.iter().all(|retry| retry.ends_with("(0 ms)")), "{retries:?}");
    }
}

/// A hub may not keep anybody waiting for as long as it likes.
#[test]
fn a_wait_has_an_end() {
    let fake = FakeHub::with(model(), |_, _| Reply::new(429, "").header("Retry-After", "86400"));
    let setup = Setup::new(&fake);
    let started = Instant::now();
    assert!(matches!(setup.pull(), Err(HubError::Status { status: 429, .. })));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_hub_that_is_not_there() {
    let fake = FakeHub::new(model());
    let setup = Setup::with(&fake, |options| options.endpoint = "http://127.0.0.1:9".to_owned());
    let (result, retries) = setup.pull_with_retries();
    let error = result.unwrap_err();
    assert!(error.to_string().starts_with("cannot reach http://127.0.0.1:9/api/models/org/model/"), "{error}");
    assert!(error.hint().unwrap().starts_with("check the network"));
    assert_eq!(retries.len(), 1, "{retries:?}");
}

#[test]
fn redirects_end() {
    let fake = FakeHub::with(model(), |asked, _| {
        Reply::new(302, "").header("Location", &format!("http://{}{}", asked.host, asked.path))
    });
    let setup = Setup::new(&fake);
    let error = setup.pull().unwrap_err();
    assert!(matches!(error, HubError::Unreachable { .. } | HubError::Status { status: 302, .. }), "{error}");
    assert!(fake.log().len() < 40);
}

/// A renamed model: the hub sends on, with a path in place of an address.
#[test]
fn a_renamed_model_is_followed() {
    let fake = FakeHub::with(model(), |asked, reply| match asked.path.strip_prefix("/api/models/old/name/") {
        Some(rest) => Reply::new(307, "").header("Location", &format!("/api/models/{MODEL}/{rest}")),
        None => match asked.path.strip_prefix("/old/name/") {
            Some(rest) => Reply::new(307, "").header("Location", &format!("/{MODEL}/{rest}")),
            None => reply,
        },
    });
    let setup = Setup::new(&fake);
    let pulled = setup.hub.pull(&id("old/name"), Check::Size, &|_| {}).unwrap();
    assert_eq!(pulled.files, 3);
    assert!(pulled.model.path.starts_with(setup.cache.path().join("models--old--name")));
}

/// Names that would leave the cache, and names that would command a terminal.
#[test]
fn harmful_names_are_refused_before_anything_is_written() {
    let names =
        ["../evil", "a/../../evil", "/etc/evil", "C:\\evil", "..\\evil", "evil\u{1b}[2J", "evil\n", "evil\0", ""];
    for name in names.into_iter().map(str::to_owned).chain(["x".repeat(10_000)]) {
        let planted = name.clone();
        let fake = listing(move |listing| listing["siblings"][1]["rfilename"] = json!(planted));
        let setup = Setup::new(&fake);
        let error = setup.pull().unwrap_err();
        assert!(matches!(error, HubError::BadName { .. }), "{name:?}: {error}");
        assert!(!error.to_string().contains(|c: char| c.is_control()) && error.to_string().len() < 1000, "{error}");
        assert_eq!((fake.file_requests(), fs::read_dir(setup.cache.path()).unwrap().count()), (0, 0));
    }
}

/// Hashes become file names.
#[test]
fn harmful_hashes_are_refused_before_anything_is_written() {
    for hash in ["../../x", "/etc/passwd", "sha256:../x", "", "a\0b", &"f".repeat(10_000)] {
        for field in ["sha", "blobId", "sha256"] {
            let planted = hash.to_owned();
            let fake = listing(move |listing| match field {
                "sha" => listing["sha"] = json!(planted),
                "blobId" => listing["siblings"][1]["blobId"] = json!(planted),
                _ => listing["siblings"][3]["lfs"]["sha256"] = json!(planted),
            });
            let setup = Setup::new(&fake);
            let error = setup.pull().unwrap_err();
            assert!(matches!(error, HubError::BadAnswer { .. }), "{field} {hash:?}: {error}");
            assert_eq!(fs::read_dir(setup.cache.path()).unwrap().count(), 0);
        }
    }
}

#[test]
fn answers_that_make_no_sense() {
    for body in ["", "<html>", "[]", "{\"sha\": 5}", "{\"siblings\": []}"] {
        let fake = FakeHub::with(model(), move |_, _| Reply::new(200, body));
        let error = Setup::new(&fake).pull().unwrap_err();
        assert!(matches!(error, HubError::BadAnswer { .. }), "{body}: {error}");
        assert!(error.hint().unwrap().contains("HF_ENDPOINT"));
    }
    let fake = listing(|listing| listing["siblings"][1]["size"] = Value::Null);
    assert!(Setup::new(&fake).pull().unwrap_err().to_string().ends_with("`config.json` has no `size`"));
    let fake = listing(|listing| listing["siblings"][1]["blobId"] = Value::Null);
    let error = Setup::new(&fake).pull().unwrap_err();
    assert_eq!(error.to_string(), "the hub does not say which hash `config.json` has, so it could not be verified");
}

#[test]
fn offline_asks_nobody() {
    let fake = FakeHub::new(model());
    let setup = Setup::with(&fake, |options| options.offline = true);
    for error in [setup.pull().unwrap_err(), setup.hub.resolve(&id(MODEL), &|_| {}).unwrap_err()] {
        assert!(matches!(error, HubError::Offline { .. }), "{error}");
        assert!(error.hint().unwrap().starts_with("`pleach pull`"));
    }
    assert!(fake.log().is_empty());
}

#[test]
fn what_is_cached_is_used_without_asking() {
    let fake = FakeHub::new(model());
    let setup = Setup::new(&fake);
    let first = setup.hub.resolve(&id(MODEL), &|_| {}).unwrap();
    let asked = fake.log().len();
    assert_eq!(setup.hub.resolve(&id(MODEL), &|_| {}).unwrap(), first);
    assert_eq!(fake.log().len(), asked);
}

#[test]
fn one_quantization_is_fetched_and_found_again() {
    let files = vec![
        FakeFile::large("b-Q4_K_M.gguf", vec![4; 100]),
        FakeFile::large("Q8_0/b-Q8_0-00001-of-00002.gguf", vec![8; 100]),
        FakeFile::large("Q8_0/b-Q8_0-00002-of-00002.gguf", vec![9; 100]),
    ];
    let fake = FakeHub::new(files);
    let setup = Setup::new(&fake);
    let error = setup.hub.resolve(&id(MODEL), &|_| {}).unwrap_err();
    assert_eq!(error.hint().unwrap(), "name one of them, as in `org/model:Q4_K_M`");
    let found = setup.hub.resolve(&id("org/model:Q8_0"), &|_| {}).unwrap();
    assert_eq!(found.path, setup.snapshot().join("Q8_0/b-Q8_0-00001-of-00002.gguf"));
    let link = fs::read_link(&found.path).unwrap();
    assert!(link.starts_with("../../../blobs"), "{link:?}");
    assert_eq!(fs::read(&found.path).unwrap(), vec![8; 100]);
    assert_eq!(fake.file_requests(), 2);
    // The only one that is there needs no name.
    assert_eq!(setup.hub.cached(&id(MODEL)).unwrap(), found);
    assert!(setup.hub.cached(&id("org/model:Q4_K_M")).is_err());
}
