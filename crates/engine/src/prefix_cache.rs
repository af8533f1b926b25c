//! What was read before, for prompts that begin the same.

mod radix;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pleach_kernels::StatePart;
use pleach_model::Sequence;
use sha2::{Digest as _, Sha256};

use crate::costly::Costly;
use radix::{NodeId, Radix};

/// Who may use what was kept: prefixes of one owner are never used for another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheOwner([u8; 32]);

impl CacheOwner {
    /// The owner of a name or key, which cannot be told from it. The default is one without a name.
    pub fn of(name: &str) -> Self {
        Self(Sha256::digest(name).into())
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
pub(crate) struct PrefixCache {
    texts: HashMap<CacheOwner, Radix<Entry>>,
    /// By when they were last used.
    order: BTreeMap<u64, (CacheOwner, NodeId)>,
    uses: u64,
    memory: Memory,
    limit: Limit,
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
    pub(crate) fn new(limit: Limit) -> Self {
        let (texts, order) = (HashMap::new(), BTreeMap::new());
        Self { texts, order, uses: 0, memory: Memory::default(), limit }
    }

    /// A copy of the longest state that `prompt` can go on from, and the number of its tokens that were met before, with or
    /// without a state at their end.
    pub(crate) fn find(&mut self, owner: CacheOwner, prompt: &[u32]) -> (Option<Kept>, usize) {
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

    /// Tokens of `prompt` that [`find`](Self::find) would save.
    pub(crate) fn reusable(&self, owner: CacheOwner, prompt: &[u32]) -> usize {
        let id = self.texts.get(&owner).and_then(|text| Some((text, usable(text, &text.walk(prompt).found, prompt)?)));
        id.and_then(|(text, id)| text.get(id)).map_or(0, |entry| entry.kept.len())
    }

    /// Keeps a state that stands for `tokens`.
    pub(crate) fn insert(&mut self, owner: CacheOwner, tokens: &[u32], kept: Kept) {
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

    /// Forgets all states that stand for the first tokens of `tokens`: they may be wrong.
    pub(crate) fn forget(&mut self, owner: CacheOwner, tokens: &[u32]) {
        let found = self.texts.get(&owner).map(|text| text.walk(tokens).found).unwrap_or_default();
        found.into_iter().for_each(|(_, id)| self.remove(owner, id));
    }

    /// Bytes that states take.
    pub(crate) fn size_bytes(&self) -> usize {
        self.memory.bytes
    }

    /// States that are kept.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
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

/// A prefix cache that requests share while they run.
#[derive(Clone)]
pub(crate) struct SharedCache(Arc<Mutex<PrefixCache>>);

impl SharedCache {
    pub(crate) fn new(limit: Limit) -> Self {
        Self(Arc::new(Mutex::new(PrefixCache::new(limit))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PrefixCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = self.lock();
        write!(f, "SharedCache({} states, {} bytes)", cache.len(), cache.size_bytes())
    }
}
