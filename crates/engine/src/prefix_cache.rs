//! What was read before, for prompts that begin the same.

mod file;
mod radix;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pleach_kernels::StatePart;
use pleach_model::{Model, Sequence};
use sha2::{Digest as _, Sha256};

use crate::EngineError;
use crate::costly::Costly;
use crate::fingerprint::Fingerprint;
use radix::{NodeId, Radix};
use store::Store;

/// Tokens that a state on disk must save beyond those in memory to be read.
const LEAST_GAIN: usize = 64;

/// What a prefix cache keeps, and where.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PrefixCacheOptions {
    /// Memory of the states that are kept for prompts that begin as earlier ones did, in bytes; 0 keeps none, on disk
    /// neither. Memory that several states share counts once.
    pub bytes: usize,
    /// A folder for the states at the ends of turns, where those find them who open the same model later; `None` for none.
    pub dir: Option<PathBuf>,
    /// Bytes of the files in that folder. One that is larger than `bytes` is not read.
    pub dir_bytes: u64,
    /// Share of the prompts with a known beginning that are read from the start all the same, 0 to 1, to compare the logits at
    /// their ends with those that the known state gives. A state that gives others is forgotten.
    pub verify: f64,
}

/// What a prefix cache has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefixCacheStats {
    /// States in memory.
    pub states: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Prompts that went on from a state.
    pub hits: u64,
    /// States that were read from disk for a prompt.
    pub hits_on_disk: u64,
    /// Prompts that were read from the start.
    pub misses: u64,
    /// States that were compared with what reading from the start gives.
    pub verified: u64,
    /// Of these, the states that gave other logits.
    pub mismatches: u64,
}

/// Who may use what was kept: prefixes of one owner are never used for another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheOwner([u8; 32]);

impl CacheOwner {
    /// The owner of a name or key, which cannot be told from it. The default is one without a name.
    pub fn of(name: &str) -> Self {
        Self(Sha256::digest(name).into())
    }
}

/// Kept states that may be wrong.
#[derive(Debug, Clone)]
pub(crate) enum Doubt {
    /// Those that stand for the first of these tokens.
    Along(CacheOwner, Vec<u32>),
    /// Those of an owner.
    All(CacheOwner),
}

impl Doubt {
    fn owner(&self) -> CacheOwner {
        let (Self::Along(owner, _) | Self::All(owner)) = self;
        *owner
    }

    /// Whether a state that stands for `tokens` is among them.
    fn includes(&self, owner: CacheOwner, tokens: &[u32]) -> bool {
        self.owner() == owner
            && match self {
                Self::Along(_, along) => along.starts_with(tokens),
                Self::All(_) => true,
            }
    }
}

/// What is kept of a text at one of its places: it stands for the tokens before.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) sequence: Sequence,
    /// What a drafter with a model of its own has read.
    pub(crate) costly: Option<Costly>,
    /// After the last token, at the end of a prompt: `[vocab_size]`.
    pub(crate) logits: Option<Arc<[f32]>>,
}

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Memory of all that is kept.
    pub(crate) bytes: usize,
    /// The latest of these are kept whatever they take.
    pub(crate) least: usize,
}

/// States at places of texts, the least recently used of which make room for others.
///
/// A recurrent state cannot be shortened, so a prompt can only go on from a place where a state was kept. States are found by
/// the tokens that they stand for, all of them, and by nothing else. Memory that several states share counts once.
#[derive(Debug)]
struct PrefixCache {
    texts: HashMap<CacheOwner, Radix<Entry>>,
    /// By when they were last used.
    order: BTreeMap<u64, (CacheOwner, NodeId)>,
    uses: u64,
    memory: Memory,
    limit: Limit,
    stats: PrefixCacheStats,
    /// Verifications that are due, in parts of one.
    due: f64,
    /// How often states were forgotten because they may be wrong.
    doubts: u64,
}

#[derive(Debug)]
struct Entry {
    kept: Kept,
    last_use: u64,
}

/// Bytes that entries take, pieces that several share counted once.
#[derive(Debug, Default)]
struct Memory {
    /// How many entries have a piece, and its bytes.
    parts: HashMap<usize, (usize, usize)>,
    bytes: usize,
}

impl Kept {
    /// A copy that later passes do not change.
    pub(crate) fn snapshot(&self) -> Self {
        let costly = self.costly.as_ref().map(Costly::snapshot);
        Self { sequence: self.sequence.snapshot(), costly, logits: self.logits.clone() }
    }

    /// Tokens that it stands for.
    pub(crate) fn len(&self) -> usize {
        self.sequence.len()
    }

    /// The pieces of its memory, and the bytes of what nothing else has.
    fn memory(&self) -> (Vec<StatePart>, usize) {
        let mut parts = self.sequence.parts();
        let (more, own) = self.costly.as_ref().map(Costly::memory).unwrap_or_default();
        parts.extend(more);
        (parts, own + self.logits.as_ref().map_or(0, |logits| size_of_val(&logits[..])))
    }
}

impl PrefixCache {
    fn new(limit: Limit) -> Self {
        let (texts, order) = (HashMap::new(), BTreeMap::new());
        let (memory, stats) = (Memory::default(), PrefixCacheStats::default());
        Self { texts, order, uses: 0, memory, limit, stats, due: 0.0, doubts: 0 }
    }

    /// A copy of the longest state that `prompt` can go on from, and the number of its tokens that were met before, with or
    /// without a state at their end.
    fn find(&mut self, owner: CacheOwner, prompt: &[u32]) -> (Option<Kept>, usize) {
        let Some(text) = self.texts.get_mut(&owner) else { return (None, 0) };
        let walk = text.walk(prompt);
        let Some(id) = usable(text, &walk.found, prompt) else { return (None, walk.shared) };
        let Some(entry) = text.get_mut(id) else { return (None, walk.shared) };
        let kept = entry.kept.snapshot();
        self.uses += 1;
        self.order.remove(&entry.last_use);
        entry.last_use = self.uses;
        self.order.insert(self.uses, (owner, id));
        (Some(kept), walk.shared)
    }

    /// Tokens of `prompt` that were met before.
    fn met(&self, owner: CacheOwner, prompt: &[u32]) -> usize {
        self.texts.get(&owner).map_or(0, |text| text.walk(prompt).shared)
    }

    /// Tokens of `prompt` that [`find`](Self::find) would save.
    fn reusable(&self, owner: CacheOwner, prompt: &[u32]) -> usize {
        let id = self.texts.get(&owner).and_then(|text| Some((text, usable(text, &text.walk(prompt).found, prompt)?)));
        id.and_then(|(text, id)| text.get(id)).map_or(0, |entry| entry.kept.len())
    }

    /// Keeps a state that stands for `tokens`.
    fn insert(&mut self, owner: CacheOwner, tokens: &[u32], kept: Kept) {
        debug_assert_eq!(tokens.len(), kept.len());
        self.uses += 1;
        let last_use = self.uses;
        self.memory.add(&kept);
        let text = self.texts.entry(owner).or_insert_with(Radix::new);
        let (id, before) = text.insert(tokens, Entry { kept, last_use });
        self.order.insert(last_use, (owner, id));
        if let Some(mut before) = before {
            self.order.remove(&before.last_use);
            self.memory.sub(&before.kept);
            // What was known of this place stays known.
            if let Some(Entry { kept, .. }) = text.get_mut(id).filter(|entry| entry.kept.logits.is_none()) {
                self.memory.sub(kept);
                kept.logits = before.kept.logits.take();
                self.memory.add(kept);
            }
        }
        self.make_room();
    }

    /// Forgets states.
    fn forget(&mut self, doubt: &Doubt) {
        self.doubts += 1;
        let ids: Vec<NodeId> = match doubt {
            Doubt::Along(owner, tokens) => {
                let found = self.texts.get(owner).map(|text| text.walk(tokens).found).unwrap_or_default();
                found.into_iter().map(|(_, id)| id).collect()
            }
            Doubt::All(owner) => self.order.values().filter(|(of, _)| of == owner).map(|&(_, id)| id).collect(),
        };
        ids.into_iter().for_each(|id| self.remove(doubt.owner(), id));
    }

    /// Counts a look-up; whether it is one of those to be verified, a share `verify` of the hits.
    fn count(&mut self, is_hit: bool, verify: f64) -> bool {
        if !is_hit {
            self.stats.misses += 1;
            return false;
        }
        self.stats.hits += 1;
        self.due += verify;
        let is_due = self.due >= 1.0;
        self.due -= f64::from(u8::from(is_due));
        is_due
    }

    fn make_room(&mut self) {
        while self.memory.bytes > self.limit.bytes && self.order.len() > self.limit.least {
            let Some((_, (owner, id))) = self.order.first_key_value() else { return };
            self.remove(*owner, *id);
        }
    }

    fn remove(&mut self, owner: CacheOwner, id: NodeId) {
        let Some(text) = self.texts.get_mut(&owner) else { return };
        if let Some(entry) = text.remove(id) {
            self.order.remove(&entry.last_use);
            self.memory.sub(&entry.kept);
        }
        if text.is_empty() {
            self.texts.remove(&owner);
        }
    }
}

/// The state with most tokens that leaves something to run, or that says what comes after the whole prompt.
fn usable(text: &Radix<Entry>, found: &[(usize, NodeId)], prompt: &[u32]) -> Option<NodeId> {
    let knows_end = |id| text.get(id).is_some_and(|entry| entry.kept.logits.is_some());
    let mut longest_first = found.iter().rev();
    longest_first.find(|&&(len, id)| len < prompt.len() || knows_end(id)).map(|&(_, id)| id)
}

impl Memory {
    fn add(&mut self, kept: &Kept) {
        let (parts, own) = kept.memory();
        self.bytes += own;
        for StatePart { id, bytes } in parts {
            let (users, _) = self.parts.entry(id).or_insert((0, bytes));
            *users += 1;
            if *users == 1 {
                self.bytes += bytes;
            }
        }
    }

    fn sub(&mut self, kept: &Kept) {
        let (parts, own) = kept.memory();
        self.bytes -= own;
        for StatePart { id, .. } in parts {
            let Some((users, bytes)) = self.parts.get_mut(&id) else { continue };
            *users -= 1;
            if *users == 0 {
                self.bytes -= *bytes;
                self.parts.remove(&id);
            }
        }
    }
}

/// A prefix cache that requests share while they run, with a folder beside it if there is one.
#[derive(Clone)]
pub(crate) struct SharedCache(Arc<Shared>);

struct Shared {
    cache: Mutex<PrefixCache>,
    store: Option<Store>,
    /// Share of hits that are verified.
    verify: f64,
}

/// What is known of a prompt.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The longest state that it can go on from.
    pub(crate) kept: Option<Kept>,
    /// Its tokens that were met before, with or without a state at their end.
    pub(crate) met: usize,
    /// Whether the state is to be compared with what reading from the start gives.
    pub(crate) verify: bool,
    /// How often states had been forgotten when it was found.
    pub(crate) doubts: u64,
}

/// How a state is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keep {
    /// Whether on disk as well.
    pub(crate) is_lasting: bool,
    /// [`Found::doubts`] of the state that it goes on from; `None` if its tokens were read from the start.
    pub(crate) doubts: Option<u64>,
}

impl SharedCache {
    /// A cache in memory alone.
    pub(crate) fn new(limit: Limit) -> Self {
        Self(Arc::new(Shared { cache: Mutex::new(PrefixCache::new(limit)), store: None, verify: 0.0 }))
    }

    /// The cache that options ask for, if they do.
    ///
    /// # Errors
    /// A share outside its range; [`EngineError::CacheDir`].
    pub(crate) fn open(options: &PrefixCacheOptions, fingerprint: Fingerprint) -> Result<Option<Self>, EngineError> {
        let &PrefixCacheOptions { bytes, ref dir, verify, .. } = options;
        if !(0.0..=1.0).contains(&verify) {
            let (field, allowed) = ("verify_prefix_cache", "from 0 to 1".to_owned());
            return Err(EngineError::InvalidField { field, found: verify.to_string(), allowed });
        }
        if bytes == 0 {
            return Ok(None);
        }
        let store = dir.as_ref().map(|dir| Store::open(dir, fingerprint, options)).transpose()?;
        let cache = Mutex::new(PrefixCache::new(Limit { bytes, least: 0 }));
        Ok(Some(Self(Arc::new(Shared { cache, store, verify }))))
    }

    /// What is known of `prompt`, in memory or on disk.
    pub(crate) fn find(&self, owner: CacheOwner, prompt: &[u32], model: &Model) -> Found {
        let from_disk = self.load(owner, prompt, model);
        let mut cache = self.lock();
        let mut loaded = None;
        if let Some((tokens, kept)) = from_disk {
            loaded = Some(kept.snapshot());
            cache.insert(owner, &tokens, kept);
        }
        let (kept, met) = match loaded {
            // It is longer than all in memory. One that is too large for the memory is used all the same.
            Some(loaded) => (Some(loaded), cache.met(owner, prompt)),
            None => cache.find(owner, prompt),
        };
        let verify = cache.count(kept.is_some(), self.0.verify);
        Found { kept, met, verify, doubts: cache.doubts }
    }

    /// Reads what is known of `prompt` on disk alone into memory, so that [`find`](Self::find) need not.
    pub(crate) fn read_ahead(&self, owner: CacheOwner, prompt: &[u32], model: &Model) {
        let doubts = self.lock().doubts;
        let Some((tokens, kept)) = self.load(owner, prompt, model) else { return };
        let mut cache = self.lock();
        // What was forgotten meanwhile may be this.
        if cache.doubts == doubts {
            cache.insert(owner, &tokens, kept);
        }
    }

    fn load(&self, owner: CacheOwner, prompt: &[u32], model: &Model) -> Option<(Vec<u32>, Kept)> {
        let store = self.0.store.as_ref()?;
        let in_memory = self.lock().reusable(owner, prompt);
        let saved = store.load(owner, prompt, in_memory + LEAST_GAIN)?;
        match model.restore_sequence(&saved.state) {
            Ok(sequence) => {
                self.lock().stats.hits_on_disk += 1;
                Some((saved.header.tokens, Kept { sequence, costly: None, logits: None }))
            }
            Err(error) => {
                tracing::warn!(%error, "a kept state cannot be restored");
                store.skip(owner, &saved.header.tokens);
                None
            }
        }
    }

    /// Keeps a state that stands for `tokens`; one that is lasting on disk as well. One that goes on from a kept state is left
    /// out if states were forgotten since that was found: it may be computed from one of them.
    pub(crate) fn insert(&self, owner: CacheOwner, tokens: &[u32], kept: Kept, keep: Keep) {
        let mut cache = self.lock();
        if keep.doubts.is_some_and(|doubts| doubts != cache.doubts) {
            return;
        }
        let store = self.0.store.as_ref().filter(|store| keep.is_lasting && !store.has(owner, tokens));
        if let Some(store) = store {
            store.save(owner, tokens, kept.sequence.snapshot());
        }
        cache.insert(owner, tokens, kept);
    }

    /// Forgets states that may be wrong, in memory and on disk.
    pub(crate) fn forget(&self, doubt: Doubt) {
        self.lock().forget(&doubt);
        if let Some(store) = &self.0.store {
            store.forget(doubt);
        }
    }

    /// Notes whether a state that stands for `tokens` tokens was right. If not, all states of its owner are forgotten: others may
    /// have been computed from it.
    pub(crate) fn verified(&self, owner: CacheOwner, tokens: usize, is_right: bool) {
        {
            let stats = &mut self.lock().stats;
            stats.verified += 1;
            stats.mismatches += u64::from(!is_right);
        }
        if !is_right {
            tracing::error!(tokens, "a kept state gives other logits than reading the prompt from the start");
            self.forget(Doubt::All(owner));
        }
    }

    /// Tokens of `prompt` that a request for it would not read again.
    pub(crate) fn reusable(&self, owner: CacheOwner, prompt: &[u32]) -> usize {
        self.lock().reusable(owner, prompt)
    }

    pub(crate) fn stats(&self) -> PrefixCacheStats {
        let cache = self.lock();
        PrefixCacheStats { states: cache.order.len(), bytes: cache.memory.bytes, ..cache.stats }
    }

    fn lock(&self) -> MutexGuard<'_, PrefixCache> {
        self.0.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

impl Default for PrefixCacheOptions {
    /// A gibibyte of memory, nothing on disk.
    fn default() -> Self {
        Self { bytes: 1 << 30, dir: None, dir_bytes: 16 << 30, verify: 0.0 }
    }
}
