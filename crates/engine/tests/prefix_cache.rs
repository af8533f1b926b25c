//! Prompts that begin as earlier ones did: nothing is read twice, and no bit of what comes after is another.

#![allow(clippy::unwrap_used, reason = "a test that meets an error should stop there")]

mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pleach_engine::{
    Batch, CacheOwner, ChatRequest, EncodedPrompt, Engine, EngineOptions, Event, Finished, Job, KvCacheType, Message,
    PrefixCacheOptions, Prompt, Request, Role, Settings, Speculation, TokenEvent,
};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};

use support::{open, plain, prompt, run, sampled};

fn options(change: impl FnOnce(&mut PrefixCacheOptions)) -> PrefixCacheOptions {
    let mut options = PrefixCacheOptions::default();
    change(&mut options);
    options
}

fn batch(engine: &Engine, options: &PrefixCacheOptions) -> Batch {
    Batch::new(engine.clone(), options).unwrap()
}

/// What a request gives, its log-probabilities included.
fn ask(batch: &mut Batch, prompt: &Prompt, settings: Settings) -> (String, Vec<TokenEvent>, Finished) {
    let prompt = batch.engine().encode_prompt(prompt).unwrap();
    batch.add(Job::new(prompt, Settings { logprobs: Some(20), ..settings })).unwrap();
    let (mut text, mut tokens, mut end) = (String::new(), Vec::new(), None);
    while !batch.is_empty() {
        for (_, event) in batch.step() {
            match event.unwrap() {
                Event::Text(piece) | Event::Reasoning(piece) => text.push_str(&piece),
                Event::Token(token) => tokens.push(token),
                Event::Finished(finished) => end = Some(finished),
                _ => {}
            }
        }
    }
    (text, tokens, end.unwrap())
}

fn cached(batch: &mut Batch, tokens: Vec<u32>, settings: Settings) -> usize {
    ask(batch, &Prompt::Tokens(tokens), settings).2.usage.cached_tokens
}

/// The same without anything kept.
fn cold(engine: &Engine, prompt: &Prompt, settings: Settings) -> (String, Vec<TokenEvent>) {
    let (text, tokens, finished) = ask(&mut batch(engine, &options(|options| options.bytes = 0)), prompt, settings);
    assert_eq!(finished.usage.cached_tokens, 0);
    (text, tokens)
}

fn conversation(turns: &[(Role, &str)]) -> Prompt {
    Prompt::Chat(ChatRequest::new(turns.iter().map(|(role, text)| Message::text(*role, *text)).collect()))
}

/// A turn of a random conversation.
#[derive(Debug, Clone)]
struct Turn {
    /// Of the earlier turns, the one that it goes on from.
    after: prop::sample::Index,
    question: String,
    /// Whether the conversation goes on from another answer than the model's.
    is_edited: bool,
    seed: u64,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = (any::<prop::sample::Index>(), "[a-z ]{1,60}", prop::bool::weighted(0.2), 0u64..3);
    let turn = turn.prop_map(|(after, question, is_edited, seed)| Turn { after, question, is_edited, seed });
    prop::collection::vec(turn, 1..9)
}

/// Lets conversations grow like a tree; every answer is that of a server that has kept nothing.
fn check(engine: &Engine, options: &PrefixCacheOptions, turns: &[Turn]) -> Result<(), TestCaseError> {
    let mut batch = batch(engine, options);
    let mut conversations = vec![vec![Message::text(Role::System, "Be brief and clear.")]];
    for turn in turns {
        let mut messages = turn.after.get(&conversations).clone();
        messages.push(Message::text(Role::User, turn.question.clone()));
        let prompt = Prompt::Chat(ChatRequest::new(messages.clone()));
        let settings = || Settings { split_reasoning: true, ..sampled(9, turn.seed) };
        let (text, tokens, _) = ask(&mut batch, &prompt, settings());
        let expected = cold(engine, &prompt, settings());
        prop_assert_eq!((&text, &tokens), (&expected.0, &expected.1));
        let answer = if turn.is_edited { "Edited.".to_owned() } else { text };
        messages.push(Message::text(Role::Assistant, answer));
        conversations.push(messages);
        prop_assert!(batch.prefix_cache().bytes <= options.bytes);
    }
    prop_assert_eq!(batch.prefix_cache().mismatches, 0);
    Ok(())
}

#[test]
fn trees_of_conversations_get_the_bits_of_a_cold_run() {
    let config = ProptestConfig { cases: 5, failure_persistence: None, ..ProptestConfig::default() };
    for (model, speculation, kv_cache) in [
        ("tiny-qwen35", Speculation::Auto, KvCacheType::F16),
        ("tiny-qwen35", Speculation::Off, KvCacheType::Q8),
        ("tiny-llama", Speculation::Ngram, KvCacheType::F32),
    ] {
        let engine =
            open(model, &EngineOptions { speculation, kv_cache, prefill_chunk: 40, ..EngineOptions::default() });
        // All that fits, little that fits, and all that fits with every hit compared.
        for (bytes, verify) in [(1 << 30, 0.0), (300_000, 0.0), (1 << 30, 1.0)] {
            let options = options(|options| (options.bytes, options.verify) = (bytes, verify));
            proptest!(config.clone(), |(turns in turns())| check(&engine, &options, &turns)?);
        }
    }
}

/// The template of Qwen3.5 leaves out the thoughts of earlier turns and opens one for the answer, so that no prompt begins with
/// the one before.
#[test]
fn a_turn_is_read_once_though_thoughts_are_dropped() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let mut batch = batch(&engine, &PrefixCacheOptions::default());
    let system = (Role::System, "You are a gardener who answers at length and in plain words.");
    let first = [system, (Role::User, "What is a pleached hedge, and who would want one?")];
    let before = engine.encode_prompt(&conversation(&first)).unwrap();
    ask(&mut batch, &conversation(&first), plain(5));
    let second = [&first[..], &[(Role::Assistant, "A wall of trees."), (Role::User, "Go on.")]].concat();
    let (.., finished) = ask(&mut batch, &conversation(&second), plain(5));
    let question_end = *before.turn_ends.last().unwrap();
    assert!(finished.usage.cached_tokens >= question_end, "{:?}, {question_end}", finished.usage);
    assert!(question_end + 12 > before.tokens.len(), "{:?} of {}", before.turn_ends, before.tokens.len());
    // Another conversation with the same instructions, and the last question asked anew.
    let other = [system, (Role::User, "Why prune?")];
    let (.., finished) = ask(&mut batch, &conversation(&other), plain(5));
    assert!(finished.usage.cached_tokens >= before.turn_ends[0], "{:?}", finished.usage);
    let mut again = second.clone();
    again[3].1 = "Tell me more.";
    let (.., finished) = ask(&mut batch, &conversation(&again), plain(5));
    assert!(finished.usage.cached_tokens >= question_end);
}

#[test]
fn tokens_of_turn_ends_are_those_that_a_longer_prompt_has_too() {
    for model in ["tiny-llama", "tiny-qwen35"] {
        let engine = open(model, &EngineOptions::default());
        let turns =
            [(Role::System, "Be brief."), (Role::User, "One?"), (Role::Assistant, "Two."), (Role::User, "Three?")];
        let prompt = engine.encode_prompt(&conversation(&turns)).unwrap();
        let longer = [&turns[..], &[(Role::Assistant, "Four."), (Role::User, "Five?")]].concat();
        let longer = engine.encode_prompt(&conversation(&longer)).unwrap();
        assert!(!prompt.turn_ends.is_empty() && prompt.turn_ends.is_sorted(), "{model}: {:?}", prompt.turn_ends);
        for &end in &prompt.turn_ends {
            assert_eq!(prompt.tokens[..end], longer.tokens[..end], "{model}");
        }
        let raw = engine.encode_prompt(&Prompt::Text("One?".to_owned())).unwrap();
        assert!(raw.turn_ends.is_empty());
    }
}

#[test]
fn long_prompts_are_kept_at_places_in_between() {
    let engine = open("tiny-qwen35", &EngineOptions { context: 2048.into(), ..EngineOptions::default() });
    let mut batch = batch(&engine, &PrefixCacheOptions::default());
    let long: Vec<u32> = (0..1500).map(|index| 20 + index * index % 379).collect();
    assert_eq!(cached(&mut batch, long.clone(), plain(1)), 0);
    let parted = [&long[..1200], &[7; 20]].concat();
    let found = cached(&mut batch, parted, plain(1));
    assert!((512..=1200).contains(&found), "{found}");
}

#[test]
fn what_was_used_least_recently_makes_room() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let text = |first: u32| [vec![first; 3], prompt(40)].concat();
    let one = {
        let mut batch = batch(&engine, &PrefixCacheOptions::default());
        cached(&mut batch, text(50), plain(1));
        batch.prefix_cache().bytes
    };
    // Room for three prompts of which nothing is shared.
    let mut batch = batch(&engine, &options(|options| options.bytes = 3 * one + one / 2));
    for first in [50, 51, 52] {
        assert_eq!(cached(&mut batch, text(first), plain(1)), 0);
    }
    assert_eq!(cached(&mut batch, text(50), plain(1)), 43);
    assert_eq!(cached(&mut batch, text(53), plain(1)), 0);
    assert_eq!(cached(&mut batch, text(51), plain(1)), 0, "the least recently used had to go");
    assert_eq!(cached(&mut batch, text(50), plain(1)), 43);
    let stats = batch.prefix_cache();
    assert!(stats.bytes <= 3 * one + one / 2 && stats.hits == 2 && stats.misses == 5, "{stats:?}");
}

#[test]
fn memory_stays_flat_over_many_prompts() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let bytes = 2 << 20;
    let mut batch = batch(&engine, &options(|options| options.bytes = bytes));
    for first in 0..100 {
        cached(&mut batch, [vec![100 + first; 3], prompt(150)].concat(), plain(1));
        assert!(batch.prefix_cache().bytes <= bytes);
    }
    assert!(batch.prefix_cache().states > 1);
}

// ---- on disk ----

fn on_disk(dir: &Path) -> PrefixCacheOptions {
    options(|options| options.dir = Some(dir.to_owned()))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "pleach-prefix")).collect();
    files.sort();
    files
}

/// Two prompts that part after 100 tokens, so that a state is kept there for good; then a third.
fn parting(last: u32) -> Vec<u32> {
    [prompt(100), vec![last; 10]].concat()
}

/// Fills a folder; each batch is gone before the next is there, as a server that starts again.
fn fill(engine: &Engine, dir: &Path) {
    let mut batch = batch(engine, &on_disk(dir));
    assert_eq!(cached(&mut batch, parting(5), plain(2)), 0);
    assert_eq!(cached(&mut batch, parting(6), plain(2)), 0);
}

#[test]
fn states_survive_on_disk_bit_for_bit() {
    for kv_cache in [KvCacheType::F32, KvCacheType::F16, KvCacheType::BF16, KvCacheType::Q8] {
        let dir = tempfile::tempdir().unwrap();
        let options = EngineOptions { kv_cache, ..EngineOptions::default() };
        fill(&open("tiny-qwen35", &options), dir.path());
        let engine = open("tiny-qwen35", &options);
        for threads in [1, 2] {
            let engine =
                open("tiny-qwen35", &EngineOptions { threads: std::num::NonZero::new(threads), ..options.clone() });
            let mut batch = batch(&engine, &on_disk(dir.path()));
            let (text, tokens, finished) = ask(&mut batch, &Prompt::Tokens(parting(7)), sampled(12, 4));
            assert_eq!(finished.usage.cached_tokens, 100, "{kv_cache:?}");
            assert_eq!((text, tokens), cold(&engine, &Prompt::Tokens(parting(7)), sampled(12, 4)));
            assert_eq!(batch.prefix_cache().hits_on_disk, 1);
        }
        let mut verifying = on_disk(dir.path());
        verifying.verify = 1.0;
        let mut batch = batch(&engine, &verifying);
        cached(&mut batch, parting(9), plain(2));
        let stats = batch.prefix_cache();
        assert_eq!((stats.verified, stats.mismatches), (1, 0), "{kv_cache:?}");
    }
}

/// What was read ahead is in memory: adding the request needs the folder no more.
#[test]
fn states_are_read_ahead_of_their_request() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let dir = tempfile::tempdir().unwrap();
    fill(&engine, dir.path());
    let mut batch = batch(&engine, &on_disk(dir.path()));
    let reader = batch.disk_reader();
    std::thread::spawn(move || reader.read_ahead(CacheOwner::default(), &parting(7))).join().unwrap();
    files(dir.path()).iter().for_each(|file| fs::remove_file(file).unwrap());
    assert_eq!(cached(&mut batch, parting(7), plain(2)), 100);
    assert_eq!(batch.prefix_cache().hits_on_disk, 1);
}

/// Files of two folders have no names and no owners in common, so that they tell nothing of a key that is known elsewhere.
#[test]
fn owners_are_salted_by_the_folder() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [one, other] = dirs.each_ref().map(|dir| {
        fill(&engine, dir.path());
        let [file] = &files(dir.path())[..] else { panic!("one file") };
        (file.file_name().unwrap().to_owned(), fs::read(file).unwrap()[40..72].to_vec())
    });
    assert!(one.0 != other.0 && one.1 != other.1);
    // Half a salt is none: what was written with it is not found.
    fs::write(dirs[0].path().join("salt"), [1; 7]).unwrap();
    assert_eq!(cached(&mut batch(&engine, &on_disk(dirs[0].path())), parting(7), plain(2)), 0);
    assert_eq!(cached(&mut batch(&engine, &on_disk(dirs[1].path())), parting(7), plain(2)), 100);
}

#[test]
fn files_that_were_changed_or_cut_are_left_alone() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let dir = tempfile::tempdir().unwrap();
    fill(&engine, dir.path());
    let [file] = &files(dir.path())[..] else { panic!("{:?}", files(dir.path())) };
    let whole = fs::read(file).unwrap();
    let spoiled = |place: usize| {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        bytes
    };
    let last = whole.len() - 1;
    let places = [0, 9, 50, 73, 90, 1000, last / 2, last - 40, last];
    let cuts = [0, 10, 100, last / 2, last].map(|len| whole[..len].to_vec());
    for bytes in places.map(spoiled).into_iter().chain(cuts) {
        fs::write(file, bytes).unwrap();
        let mut batch = batch(&engine, &on_disk(dir.path()));
        let (text, tokens, finished) = ask(&mut batch, &Prompt::Tokens(parting(7)), plain(4));
        assert_eq!(finished.usage.cached_tokens, 0);
        assert_eq!((text, tokens), cold(&engine, &Prompt::Tokens(parting(7)), plain(4)));
        fs::write(file, &whole).unwrap();
    }
}

/// A device has no length and no end, and opening a pipe waits for whoever writes to it.
#[test]
#[cfg(unix)]
fn what_is_no_regular_file_is_not_opened() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let dir = tempfile::tempdir().unwrap();
    fill(&engine, dir.path());
    let [file] = &files(dir.path())[..] else { panic!("one file") };
    let mut known = batch(&engine, &on_disk(dir.path()));
    fs::remove_file(file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", file).unwrap();
    // Found before and opened now, and found where the folder is looked through.
    assert_eq!(cached(&mut known, parting(7), plain(2)), 0);
    fs::remove_file(file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(file).status().unwrap().success());
    assert_eq!(cached(&mut batch(&engine, &on_disk(dir.path())), parting(7), plain(2)), 0);
}

/// Gives a file wrong numbers and the right checksum; gives its bytes.
fn spoil(file: &Path) -> Vec<u8> {
    let mut bytes = fs::read(file).unwrap();
    let end = bytes.len() - 32;
    // Near the end are the recurrent states of the last layers.
    bytes[end / 2..end / 2 + 400].iter_mut().for_each(|byte| *byte ^= 0x11);
    let hash = Sha256::digest(&bytes[..end]);
    bytes[end..].copy_from_slice(&hash);
    fs::write(file, &bytes).unwrap();
    bytes
}

/// A file with the right checksum and wrong numbers is what only a comparison can find.
#[test]
fn a_state_that_gives_other_logits_is_found_and_dropped() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let dir = tempfile::tempdir().unwrap();
    fill(&engine, dir.path());
    let [file] = &files(dir.path())[..] else { panic!("{:?}", files(dir.path())) };
    let bytes = spoil(file);

    let mut verifying = on_disk(dir.path());
    verifying.verify = 1.0;
    let mut batch = batch(&engine, &verifying);
    let (text, tokens, finished) = ask(&mut batch, &Prompt::Tokens(parting(7)), plain(4));
    assert_eq!((text, tokens), cold(&engine, &Prompt::Tokens(parting(7)), plain(4)));
    assert_eq!(finished.usage.cached_tokens, 0, "what was compared was read from the start");
    let stats = batch.prefix_cache();
    assert_eq!((stats.verified, stats.mismatches), (1, 1));
    drop(batch);
    assert!(files(dir.path()).iter().all(|file| fs::read(file).unwrap() != bytes), "the wrong file is there still");
    let mut next = self::batch(&engine, &verifying);
    ask(&mut next, &Prompt::Tokens(parting(8)), plain(4));
    assert_eq!(next.prefix_cache().mismatches, 0);
}

/// Asks for `tokens` with turns that end after `turn_ends` of them, so that states are written there; gives how many were known.
fn ask_for(batch: &mut Batch, tokens: Vec<u32>, turn_ends: Vec<usize>, owner: CacheOwner) -> usize {
    let prompt = EncodedPrompt { tokens, opens_reasoning: false, notes: Vec::new(), turn_ends };
    batch.add(Job { owner, ..Job::new(prompt, plain(1)) }).unwrap();
    let mut known = None;
    while !batch.is_empty() {
        for (_, event) in batch.step() {
            if let Event::Finished(finished) = event.unwrap() {
                known = Some(finished.usage.cached_tokens);
            }
        }
    }
    known.unwrap()
}

/// States that were computed from a wrong one are as wrong as it is.
#[test]
fn nothing_is_left_of_what_a_wrong_state_gave_rise_to() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let (owner, other) = (CacheOwner::of("owner"), CacheOwner::of("other"));
    let text = |len: usize, last: u32| [prompt(len), vec![last; 10]].concat();
    ask_for(&mut batch(&engine, &on_disk(dir.path())), text(100, 5), vec![100], owner);
    let [file] = &files(dir.path())[..] else { panic!("{:?}", files(dir.path())) };
    let bytes = spoil(file);

    // The second hit is compared.
    let mut verifying = on_disk(dir.path());
    verifying.verify = 0.5;
    let mut batch = batch(&engine, &verifying);
    assert_eq!(ask_for(&mut batch, text(100, 5), vec![100], other), 0);
    assert_eq!(ask_for(&mut batch, text(180, 6), vec![100, 180], owner), 100);
    assert_eq!(ask_for(&mut batch, text(100, 7), vec![], owner), 0);
    let stats = batch.prefix_cache();
    assert_eq!((stats.verified, stats.mismatches), (1, 1));
    assert_eq!(ask_for(&mut batch, text(180, 8), vec![], owner), 0, "a state that came of the wrong one is used");
    drop(batch);
    let mut next = self::batch(&engine, &on_disk(dir.path()));
    // The prompts that were read from the start have parted after 100 tokens, so a right state is there now.
    assert_eq!(
        ask_for(&mut next, text(180, 9), vec![], owner),
        100,
        "the file of a state that came of the wrong one is used"
    );
    assert!(files(dir.path()).iter().all(|file| fs::read(file).unwrap() != bytes), "the wrong file is there still");
    assert_eq!(ask_for(&mut next, text(100, 9), vec![], other), 100, "who had nothing of it keeps what there is");
}

#[cfg(unix)]
#[test]
fn nobody_else_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let made = dir.path().join("made");
    for folder in [dir.path(), &made] {
        fill(&engine, folder);
        assert_eq!(mode(&files(folder)[0]), 0o600);
    }
    assert_eq!((mode(dir.path()), mode(&made)), (0o755, 0o700));
}

/// What a process that ended half-way has left is removed; what another is writing takes room.
#[test]
fn files_that_were_half_written_count_until_they_are_old() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let dir = tempfile::tempdir().unwrap();
    fill(&engine, dir.path());
    let one = fs::metadata(&files(dir.path())[0]).unwrap().len();
    let [old, fresh] = ["old", "fresh"].map(|name| dir.path().join(name).with_extension("pleach-partial"));
    let part = vec![0; one as usize];
    fs::write(&old, &part).unwrap();
    fs::write(&fresh, &part).unwrap();
    let hours_ago = SystemTime::now() - Duration::from_secs(7200);
    File::options().append(true).open(&old).unwrap().set_modified(hours_ago).unwrap();

    let small = options(|options| (options.dir, options.dir_bytes) = (Some(dir.path().to_owned()), 2 * one + one / 2));
    for start in [60, 61] {
        ask_for(&mut batch(&engine, &small), [vec![start; 2], prompt(98)].concat(), vec![90], CacheOwner::default());
    }
    assert!(fresh.exists() && !old.exists());
    assert_eq!(files(dir.path()).len(), 1, "two files and a partial one are more than the folder may have");
}

#[test]
fn states_of_another_model_or_with_other_keys_and_values_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    fill(&open("tiny-qwen35", &EngineOptions::default()), dir.path());
    for other in [
        open("tiny-qwen35", &EngineOptions { kv_cache: KvCacheType::F32, ..EngineOptions::default() }),
        open("tiny-qwen35-moe", &EngineOptions::default()),
        open("tiny-llama", &EngineOptions::default()),
    ] {
        assert_eq!(cached(&mut batch(&other, &on_disk(dir.path())), parting(7), plain(2)), 0);
    }
}

/// What a file takes while it is read is known before.
#[test]
fn a_file_that_is_larger_than_the_memory_is_not_read() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let dir = tempfile::tempdir().unwrap();
    fill(&engine, dir.path());
    let one = fs::metadata(&files(dir.path())[0]).unwrap().len() as usize;
    for (bytes, known) in [(one - 1, 0), (one, 100)] {
        let mut options = on_disk(dir.path());
        options.bytes = bytes;
        assert_eq!(cached(&mut batch(&engine, &options), parting(7), plain(1)), known);
    }
}

#[test]
fn states_of_other_weights_are_not_used() {
    let states = tempfile::tempdir().unwrap();
    let model = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(support::fixture("tiny-llama")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension != "gguf") && !path.ends_with("reference.safetensors") {
            fs::copy(&path, model.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let open = || Engine::open(model.path(), &EngineOptions::default()).unwrap();
    fill(&open(), states.path());
    assert_eq!(cached(&mut batch(&open(), &on_disk(states.path())), parting(7), plain(1)), 100);
    // One bit of one weight, which samples hardly meet.
    let path = model.path().join("model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    let place = weights.len() / 2 + 1;
    weights[place] ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&path, weights).unwrap();
    assert_eq!(cached(&mut batch(&open(), &on_disk(states.path())), parting(8), plain(1)), 0);
}

#[test]
fn a_folder_keeps_to_its_size() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let dir = tempfile::tempdir().unwrap();
    fill(&engine, dir.path());
    let one = fs::metadata(&files(dir.path())[0]).unwrap().len();
    let small = options(|options| (options.dir, options.dir_bytes) = (Some(dir.path().to_owned()), 2 * one + one / 2));
    for start in 60..64 {
        let mut batch = batch(&engine, &small);
        for last in [5, 6] {
            cached(&mut batch, [vec![start; 2], parting(last)].concat(), plain(1));
        }
    }
    assert_eq!(files(dir.path()).len(), 2);
    let total: u64 = files(dir.path()).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(total <= 2 * one + one / 2);
}

#[test]
fn what_cannot_be_is_refused() {
    let engine = open("tiny-llama", &EngineOptions::default());
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Batch::new(engine.clone(), &on_disk(file.path())).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot keep states in `{}`", file.path().display()));
    for verify in [-0.1, 1.1, f64::NAN] {
        let error = Batch::new(engine.clone(), &options(|options| options.verify = verify)).unwrap_err();
        assert_eq!(error.to_string(), format!("`verify_prefix_cache` is {verify}, but must be from 0 to 1"));
    }
}

/// A session keeps little, but the ends of the last turn are always there.
#[test]
fn a_session_goes_on_from_the_last_turn() {
    let engine = open("tiny-qwen35", &EngineOptions::default());
    let mut session = engine.session().unwrap();
    let mut turns =
        vec![(Role::System, "Be brief."), (Role::User, "What is a pleached hedge, and who would want one?")];
    let mut before = 0;
    for question in ["Why is that so?", "And then?", "Who says so?"] {
        let Prompt::Chat(chat) = conversation(&turns) else { unreachable!() };
        let usage = run(&mut session, &Request::chat(chat).with(plain(4))).finished().usage;
        assert!(before == 0 || usage.cached_tokens + 12 > before, "{usage:?}, {before}");
        before = usage.prompt_tokens;
        turns.extend([(Role::Assistant, "So it is."), (Role::User, question)]);
    }
}
