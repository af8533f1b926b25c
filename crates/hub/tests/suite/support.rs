//! A hub, a cache that goes away, and what a download did to it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use pleach_hub::{Check, Hub, HubError, HubOptions, ModelId, PullEvent, Pulled, Retry};
use tempfile::TempDir;

use crate::fake_hub::{COMMIT, FakeFile, FakeHub, MODEL};

/// A cache, and a client of a fake hub.
pub(crate) struct Setup {
    pub(crate) cache: TempDir,
    pub(crate) hub: Hub,
}

/// Bytes that look like weights, longer than one buffer of the transfer.
pub(crate) fn weights() -> Vec<u8> {
    (0..700_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A model in Hugging Face's layout, with files that are not needed.
pub(crate) fn model() -> Vec<FakeFile> {
    vec![
        FakeFile::small(".gitattributes", b"*.safetensors filter=lfs"),
        FakeFile::small("config.json", b"{}"),
        FakeFile::small("tokenizer.json", b"{\"model\": {}}"),
        FakeFile::large("model.safetensors", weights()),
        FakeFile::large("pytorch_model.bin", vec![1; 10]),
    ]
}

impl Setup {
    pub(crate) fn new(fake: &FakeHub) -> Self {
        Self::with(fake, |_| {})
    }

    pub(crate) fn with(fake: &FakeHub, change: impl FnOnce(&mut HubOptions)) -> Self {
        let cache = TempDir::new().unwrap();
        let mut options = HubOptions::new(cache.path().to_owned());
        options.endpoint = fake.endpoint();
        options.patience = Duration::from_millis(500);
        let pause = Duration::from_millis(5);
        options.retry = Retry { attempts: 3, first_pause: pause, longest_pause: 4 * pause };
        change(&mut options);
        Self { cache, hub: Hub::new(options) }
    }

    pub(crate) fn pull(&self) -> Result<Pulled, HubError> {
        self.hub.pull(&id(MODEL), Check::Size, &|_| {})
    }

    /// The same, with the failures that were tried again.
    pub(crate) fn pull_with_retries(&self) -> (Result<Pulled, HubError>, Vec<String>) {
        let retries = std::sync::Mutex::new(Vec::new());
        let result = self.hub.pull(&id(MODEL), Check::Size, &|event| {
            if let PullEvent::Retrying { what, error, pause } = event {
                retries.lock().unwrap().push(format!("{what}: {error} ({} ms)", pause.as_millis()));
            }
        });
        (result, retries.into_inner().unwrap())
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.cache.path().join("models--org--model")
    }

    pub(crate) fn snapshot(&self) -> PathBuf {
        self.repository().join("snapshots").join(COMMIT)
    }

    /// Where the weights grow.
    pub(crate) fn incomplete(&self) -> PathBuf {
        let hash = FakeFile::large("", weights()).hash();
        self.repository().join("blobs").join(format!("{hash}.incomplete"))
    }

    /// Nothing partial is taken for whole: no snapshot, and no blob of the weights.
    pub(crate) fn assert_nothing_whole(&self) {
        assert!(!self.snapshot().exists());
        assert!(!self.incomplete().with_extension("").exists());
        assert!(matches!(self.hub.cached(&id(MODEL)), Err(HubError::Offline { .. })));
    }

    pub(crate) fn assert_whole(&self) {
        let resolved = self.hub.cached(&id(MODEL)).unwrap();
        assert_eq!(resolved.path, self.snapshot());
        assert_eq!(fs::read(self.snapshot().join("model.safetensors")).unwrap(), weights());
        assert_eq!(fs::read(self.snapshot().join("config.json")).unwrap(), b"{}");
        assert!(!self.incomplete().exists());
        let names: Vec<_> = fs::read_dir(self.snapshot()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }
}

pub(crate) fn id(text: &str) -> ModelId {
    ModelId::parse(text).unwrap()
}
