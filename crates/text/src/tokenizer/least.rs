//! How many tokens a text has at least, without encoding it.

use std::ops::Range;

use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use super::pipeline::Normalizers;
use super::{TokenKind, TokenTable};

/// Bytes that are looked at together.
const BLOCK_BYTES: usize = 16 << 10;
/// Spellings are compared up to this length; what goes on like a longer one counts as the longest of all.
const COMPARED_BYTES: usize = 32;

/// All spellings in order, for the longest that a text goes on with.
///
/// Whatever the merges do, the tokens of a text spell it, so it has no fewer than the fewest spellings that cover it.
pub(super) struct Spellings {
    /// Ids, ordered by their bytes.
    sorted: Vec<u32>,
    /// Where those with a first byte begin and end in `sorted`.
    of_byte: Vec<Range<usize>>,
    longest: usize,
}

impl Spellings {
    pub(super) fn of(table: &TokenTable) -> Self {
        let is_spelled = |&id: &u32| table.kind(id) != TokenKind::Absent && !table.bytes(id).is_empty();
        let mut sorted: Vec<u32> = (0..table.kinds.len() as u32).filter(is_spelled).collect();
        sorted.sort_unstable_by_key(|&id| table.bytes(id));
        let first_at = |byte: usize| sorted.partition_point(|&id| usize::from(table.bytes(id)[0]) < byte);
        let of_byte = (0..=usize::from(u8::MAX)).map(|byte| first_at(byte)..first_at(byte + 1)).collect();
        let longest = sorted.iter().map(|&id| table.bytes(id).len()).max().unwrap_or(1);
        Self { sorted, of_byte, longest }
    }

    /// Tokens of `text` at least; counting ends at `enough`.
    pub(super) fn least(&self, table: &TokenTable, normalizers: &Normalizers, text: &str, enough: usize) -> usize {
        let (mut rest, mut count) = (text, 0);
        while !rest.is_empty() && count < enough {
            let (block, after) = rest.split_at(block_end(rest));
            // What normalizing changes has other tokens than its bytes say.
            if normalizers.leaves_unchanged(block) {
                count += self.in_block(table, block.as_bytes(), enough - count);
            }
            rest = after;
        }
        count
    }

    /// The fewest spellings that cover a part of a text, without the one that may reach into it from before.
    fn in_block(&self, table: &TokenTable, bytes: &[u8], enough: usize) -> usize {
        let (mut count, mut covered, mut next) = (0, self.longest - 1, 0);
        for at in 0..bytes.len() {
            next = next.max(at + self.longest_at(table, &bytes[at..]));
            if at >= covered {
                (count, covered) = (count + 1, next);
                if count == enough {
                    break;
                }
            }
        }
        count
    }

    /// Bytes of the longest spelling that `bytes` begin with; 1 if there is none, as for an unknown character.
    fn longest_at(&self, table: &TokenTable, bytes: &[u8]) -> usize {
        let byte = |id: &u32, depth: usize| table.bytes(*id).get(depth).copied();
        let mut alike = &self.sorted[self.of_byte[usize::from(bytes[0])].clone()];
        let mut longest = 1;
        for depth in 1..COMPARED_BYTES {
            // The shortest of those that begin alike comes first.
            let Some(first) = alike.first() else { return longest };
            if byte(first, depth).is_none() {
                longest = depth;
            }
            // A spelling may go on where the block ends.
            let Some(&next) = bytes.get(depth) else { return self.longest };
            let start = alike.partition_point(|id| byte(id, depth) < Some(next));
            alike = &alike[start..];
            alike = &alike[..alike.partition_point(|id| byte(id, depth) == Some(next))];
        }
        if alike.is_empty() { longest } else { self.longest }
    }
}

/// Where a block of a text ends: before a character that no normalization joins with the one before it, if there is one.
fn block_end(text: &str) -> usize {
    let most = text.floor_char_boundary(BLOCK_BYTES);
    if most == text.len() {
        return most;
    }
    let stands_alone = |character: char| {
        character.is_ascii()
            || matches!(character, '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' | '\u{3400}'..='\u{9fff}')
            || matches!(character, '\u{ac00}'..='\u{d7a3}')
    };
    let found = text[..most].char_indices().rev().find(|&(_, character)| stands_alone(character));
    // Otherwise the next one will do.
    found.map(|(end, _)| end).filter(|&end| end > 0).unwrap_or_else(|| {
        text.char_indices().skip(1).find(|&(_, character)| stands_alone(character)).map_or(text.len(), |(end, _)| end)
    })
}

/// Whether a pre-tokenizer neither drops characters nor adds any.
pub(super) fn keeps_all(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::Split(split) => split.behavior != SplitDelimiterBehavior::Removed,
        PreTokenizerWrapper::ByteLevel(bytes) => !bytes.add_prefix_space,
        PreTokenizerWrapper::Digits(_) => true,
        _ => false,
    }
}
