//! Transfers that break, resume and lie.

use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use pleach_hub::{Check, Hub, HubError, Token};

use crate::fake_hub::{Asked, COMMIT, FakeFile, FakeHub, MODEL, Reply};
use crate::support::{Setup, id, model, weights};

/// A hub that changes what comes from where large files are, as often as `times` says.
fn storage(times: usize, change: impl Fn(Reply) -> Reply + Send + Sync + 'static) -> FakeHub {
    FakeHub::with(model(), move |asked, reply| {
        if asked.path.starts_with("/storage/") && asked.before < times { change(reply) } else { reply }
    })
}

fn storage_ranges(fake: &FakeHub) -> Vec<Option<usize>> {
    fake.log().iter().filter(|asked| asked.path.starts_with("/storage/")).map(|asked| asked.range).collect()
}

#[test]
fn a_model_comes_whole_in_the_layout_of_the_hub() {
    let fake = FakeHub::new(model());
    let setup = Setup::new(&fake);
    let pulled = setup.pull().unwrap();
    setup.assert_whole();
    assert_eq!((pulled.files, pulled.new_bytes), (3, pulled.total_bytes));
    assert_eq!(fs::read_to_string(setup.repository().join("refs/main")).unwrap(), COMMIT);
    let link = fs::read_link(setup.snapshot().join("model.safetensors")).unwrap();
    assert_eq!(link.to_str().unwrap(), format!("../../blobs/{}", FakeFile::large("", weights()).hash()));

    let again = setup.pull().unwrap();
    assert_eq!((again.new_bytes, again.model), (0, pulled.model));
    assert_eq!(fake.file_requests(), 3);
}

/// A cut transfer goes on where it broke off, at whatever stage that was.
#[test]
fn a_cut_transfer_is_resumed() {
    for cut in [0, 1, 70_000, 350_000, 693_000, 699_999] {
        let fake = storage(1, move |reply| Reply { cut: Some(cut), ..reply });
        let setup = Setup::new(&fake);
        let (result, retries) = setup.pull_with_retries();
        result.unwrap();
        setup.assert_whole();
        assert_eq!(storage_ranges(&fake), [None, (cut > 0).then_some(cut)], "{retries:?}");
        assert_eq!(retries.len(), 1);
    }
}

/// The list of files, a small file, the word where a large one is, and the large one itself.
#[test]
fn a_cut_is_survived_whatever_it_cuts() {
    for stage in
        ["/api/", "/resolve/0123456789abcdef0123456789abcdef01234567/config.json", "/model.safetensors", "/storage/"]
    {
        for cut in [0, 1] {
            let fake = FakeHub::with(model(), move |asked, reply| match asked.path.contains(stage) {
                true if asked.before == 0 => Reply { cut: Some(cut), ..reply },
                _ => reply,
            });
            let setup = Setup::new(&fake);
            let (result, retries) = setup.pull_with_retries();
            result.unwrap_or_else(|error| panic!("{stage} cut at {cut}: {error}"));
            setup.assert_whole();
            // Nobody needs the text of a redirect.
            let is_redirect = stage == "/model.safetensors";
            assert!(retries.len() == 1 || is_redirect && retries.is_empty(), "{stage} cut at {cut}: {retries:?}");
        }
    }
}

#[test]
fn a_transfer_that_always_breaks_off_is_given_up_and_kept() {
    let fake = storage(usize::MAX, |reply| Reply { cut: Some(0), ..reply });
    let setup = Setup::new(&fake);
    fs::create_dir_all(setup.incomplete().parent().unwrap()).unwrap();
    fs::write(setup.incomplete(), &weights()[..1000]).unwrap();
    let error = setup.pull().unwrap_err();
    assert_eq!(error.to_string(), "the transfer of `model.safetensors` broke off at 1000 of 700000 bytes");
    assert_eq!(error.hint().unwrap(), "check the network; the same command goes on where this one stopped");
    setup.assert_nothing_whole();
    assert_eq!(fs::read(setup.incomplete()).unwrap(), &weights()[..1000]);
}

/// Each try brings a little: that is progress, and no reason to give up.
#[test]
fn a_network_that_breaks_often_gets_there() {
    let fake = storage(usize::MAX, |reply| Reply { cut: Some(100_000), ..reply });
    let setup = Setup::new(&fake);
    setup.pull().unwrap();
    setup.assert_whole();
    assert_eq!(storage_ranges(&fake).len(), 7);
}

#[test]
fn a_silent_hub_counts_as_cut() {
    let fake = storage(1, |reply| Reply { stall: Some(Duration::from_secs(20)), ..reply });
    let setup = Setup::new(&fake);
    let (result, retries) = setup.pull_with_retries();
    result.unwrap();
    setup.assert_whole();
    assert_eq!(storage_ranges(&fake), [None, Some(350_000)], "{retries:?}");
}

#[test]
fn a_server_without_ranges_sends_everything_again() {
    let fake = FakeHub::with(model(), |asked, reply| match asked.path.starts_with("/storage/") {
        true if asked.before == 0 => Reply { cut: Some(300_000), ..reply },
        true => Reply::new(200, weights()),
        false => reply,
    });
    let setup = Setup::new(&fake);
    setup.pull().unwrap();
    setup.assert_whole();
}

#[test]
fn a_range_that_was_not_asked_for_is_not_used() {
    let fake = FakeHub::with(model(), |asked, reply| match (asked.path.starts_with("/storage/"), asked.before) {
        (true, 0) => Reply { cut: Some(300_000), ..reply },
        (true, 1) => Reply::new(206, &weights()[5..]).header("Content-Range", "bytes 5-699999/700000"),
        (true, 2) => Reply::new(416, ""),
        _ => reply,
    });
    let setup = Setup::with(&fake, |options| options.retry.attempts = 5);
    setup.pull().unwrap();
    setup.assert_whole();
    assert_eq!(storage_ranges(&fake), [None, Some(300_000), None, None]);
}

#[test]
fn a_short_range_is_a_cut() {
    let fake = FakeHub::with(model(), |asked, reply| match (asked.path.starts_with("/storage/"), asked.range) {
        (true, None) => Reply { cut: Some(300_000), ..reply },
        (true, Some(300_000)) => {
            Reply::new(206, &weights()[300_000..400_000]).header("Content-Range", "bytes 300000-399999/700000")
        }
        _ => reply,
    });
    let setup = Setup::new(&fake);
    setup.pull().unwrap();
    setup.assert_whole();
    assert_eq!(storage_ranges(&fake), [None, Some(300_000), Some(400_000)]);
}

/// An empty answer, a login page, more bytes than announced.
#[test]
fn other_sizes_than_announced_are_refused() {
    let page = b"<html>please log in</html>".to_vec();
    let longer = [weights(), vec![0]].concat();
    for (body, found) in [(Vec::new(), 0), (page, 26), (longer, 700_001)] {
        let fake = storage(usize::MAX, move |reply| Reply { body: body.clone(), ..reply });
        let setup = Setup::new(&fake);
        let error = setup.pull().unwrap_err();
        let message = format!("`model.safetensors` should have 700000 bytes, but {found} are offered");
        assert_eq!(error.to_string(), message);
        assert!(error.hint().unwrap().contains("login page"));
        setup.assert_nothing_whole();
    }
}

/// A body without a length that goes on and on is stopped at the length of the file.
#[test]
fn an_endless_body_does_not_fill_the_disk() {
    let fake = storage(usize::MAX, |reply| {
        let mut body = Vec::new();
        for _ in 0..20 {
            body.extend_from_slice(b"10000\r\n");
            body.extend_from_slice(&[7; 0x10000]);
            body.extend_from_slice(b"\r\n");
        }
        Reply { body, ..reply }.header("Transfer-Encoding", "chunked").header("Content-Length", "")
    });
    let setup = Setup::new(&fake);
    assert!(setup.pull().is_err());
    setup.assert_nothing_whole();
    assert!(fs::metadata(setup.incomplete()).map_or(0, |found| found.len()) <= 700_000);
}

#[test]
fn wrong_bytes_are_thrown_away() {
    let wrong = |reply: Reply| {
        let mut body = reply.body;
        body[10] ^= 1;
        Reply { body, ..reply }
    };
    let fake = storage(usize::MAX, wrong);
    let setup = Setup::new(&fake);
    let error = setup.pull().unwrap_err();
    assert!(matches!(&error, HubError::Corrupt { file, .. } if file == "model.safetensors"), "{error}");
    assert!(error.to_string().ends_with("it was thrown away"), "{error}");
    setup.assert_nothing_whole();
    assert_eq!(fs::metadata(setup.incomplete()).unwrap().len(), 0);
    // Wrong once is right the second time.
    let fake = storage(1, wrong);
    let setup = Setup::new(&fake);
    setup.pull().unwrap();
    setup.assert_whole();
}

/// Small files are verified as well, by git's hash.
#[test]
fn wrong_bytes_of_a_small_file_are_thrown_away() {
    let fake = FakeHub::with(model(), |asked, reply| match asked.path.ends_with("config.json") {
        true => Reply::new(200, "[]"),
        false => reply,
    });
    let setup = Setup::new(&fake);
    let error = setup.pull().unwrap_err();
    assert!(matches!(&error, HubError::Corrupt { file, .. } if file == "config.json"), "{error}");
    assert!(!setup.snapshot().exists());
}

#[test]
fn what_another_program_left_is_resumed_or_thrown_away() {
    let long = [weights(), vec![0; 5]].concat();
    let mut wrong = weights()[..5000].to_vec();
    wrong[0] ^= 1;
    for (left, ranges) in [
        (weights()[..5000].to_vec(), vec![Some(5000)]),
        (weights(), vec![]),
        (long, vec![None]),
        (wrong, vec![Some(5000), None]),
    ] {
        let fake = FakeHub::new(model());
        let setup = Setup::new(&fake);
        fs::create_dir_all(setup.incomplete().parent().unwrap()).unwrap();
        fs::write(setup.incomplete(), left).unwrap();
        setup.pull().unwrap();
        setup.assert_whole();
        assert_eq!(storage_ranges(&fake), ranges);
    }
}

#[test]
fn a_blob_of_another_size_is_fetched_again() {
    let fake = FakeHub::new(model());
    let setup = Setup::new(&fake);
    setup.pull().unwrap();
    fs::write(setup.incomplete().with_extension(""), b"half").unwrap();
    setup.pull().unwrap();
    setup.assert_whole();
}

#[test]
fn a_damaged_blob_is_found_when_asked_for() {
    let fake = FakeHub::new(model());
    let setup = Setup::new(&fake);
    setup.pull().unwrap();
    let mut damaged = weights();
    damaged[99] ^= 1;
    fs::write(setup.incomplete().with_extension(""), damaged).unwrap();
    setup.pull().unwrap();
    assert_eq!(fake.file_requests(), 3);
    setup.hub.pull(&id(MODEL), Check::Bytes, &|_| {}).unwrap();
    setup.assert_whole();
    assert_eq!(fake.file_requests(), 4);
}

#[test]
fn an_empty_file_is_whole() {
    let files = [model(), vec![FakeFile::small("generation_config.json", b"")]].concat();
    let fake = FakeHub::new(files);
    let setup = Setup::new(&fake);
    setup.pull().unwrap();
    assert_eq!(fs::read(setup.snapshot().join("generation_config.json")).unwrap(), b"");
}

#[test]
fn a_token_is_for_the_hub_alone() {
    let fake = FakeHub::new(model());
    let setup = Setup::with(&fake, |options| options.token = Some(Token::new("hf_secret", "test").unwrap()));
    setup.pull().unwrap();
    let told = |asked: &&Asked| asked.authorization.as_deref() == Some("Bearer hf_secret");
    let log = fake.log();
    let (to_hub, to_storage): (Vec<_>, Vec<_>) = log.iter().partition(|asked| asked.host.starts_with("127."));
    assert!(to_hub.len() >= 4 && to_hub.iter().all(told), "{to_hub:?}");
    assert!(to_storage.len() == 1 && !to_storage.iter().any(told), "{to_storage:?}");
}

/// One waits for the other, and both end with the model.
#[test]
fn two_downloads_of_one_model_share_the_work() {
    let fake = storage(usize::MAX, |reply| Reply { stall: Some(Duration::from_millis(200)), ..reply });
    let setup = Setup::new(&fake);
    let other = Hub::new(setup.hub.options().clone());
    let waited = Mutex::new(false);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| setup.pull());
        std::thread::sleep(Duration::from_millis(50));
        let events = |event: pleach_hub::PullEvent<'_>| {
            *waited.lock().unwrap() |= matches!(event, pleach_hub::PullEvent::Waiting { .. });
        };
        other.pull(&id(MODEL), Check::Size, &events).unwrap();
        first.join().unwrap().unwrap();
    });
    setup.assert_whole();
    assert_eq!(storage_ranges(&fake), [None]);
    assert!(*waited.lock().unwrap());
}

#[test]
fn what_does_not_fit_is_not_begun() {
    let fake = FakeHub::new(model());
    let setup = Setup::with(&fake, |options| options.free_space = |_| Ok(700_000));
    let error = setup.pull().unwrap_err();
    let place = setup.cache.path().display();
    assert_eq!(error.to_string(), format!("the download takes 700015 bytes, but `{place}` has room for 700000"));
    assert!(error.hint().unwrap().starts_with("make room"));
    assert_eq!(fake.file_requests(), 0);
    // What is there already counts.
    fs::create_dir_all(setup.incomplete().parent().unwrap()).unwrap();
    fs::write(setup.incomplete(), &weights()[..5000]).unwrap();
    setup.pull().unwrap();
}

/// The part of a file is a device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_called_one() {
    let fake = FakeHub::new(model());
    let setup = Setup::new(&fake);
    fs::create_dir_all(setup.incomplete().parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", setup.incomplete()).unwrap();
    let error = setup.pull().unwrap_err();
    assert_eq!(error.to_string(), format!("the disk is full: `{}` cannot grow", setup.incomplete().display()));
    assert!(error.hint().unwrap().starts_with("make room"));
    assert!(!setup.snapshot().exists());
}
