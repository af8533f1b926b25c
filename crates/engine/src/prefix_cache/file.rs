//! A kept state as a file.
//!
//! ```text
//! magic [8], fingerprint [32], owner [32]
//! tokens: count u64, u32 each
//! layers: kind u8, 1 for attention: keys, values; 2 for DeltaNet: recurrent, window; 0 after the last
//!         each list: type u8 (0 f32, 1 f16, 2 bf16), count u64, elements
//! SHA-256 of all bytes before [32]
//! ```
//!
//! Little endian. Elements have the shortest type that holds all of them exactly, so that a file of a 16-bit key-value cache has
//! the size of that cache.

use std::io::{self, Read, Write};

use half::{bf16, f16};
use pleach_kernels::{DeltaValues, KernelError, KvValues, State, StateValues};
use sha2::{Digest as _, Sha256};

use super::CacheOwner;
use crate::fingerprint::Fingerprint;

const MAGIC: &[u8; 8] = b"pleachP1";

const HASH_BYTES: usize = 32;

const ATTENTION: u8 = 1;

const DELTA_NET: u8 = 2;

/// Most tokens that a header may announce: more than any context, and 64 MiB.
const MOST_TOKENS: u64 = 1 << 24;

/// Whose state a file holds, of which model, for which tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) fingerprint: Fingerprint,
    pub(super) owner: CacheOwner,
    pub(super) tokens: Vec<u32>,
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Saved {
    pub(super) header: Header,
    pub(super) state: StateValues,
}

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("it is no regular file")]
    Irregular,
    #[error("it begins with other bytes than a kept state: it is none, or of another version")]
    Magic,
    #[error("its checksum is wrong: it was changed or cut after it was written")]
    Checksum,
    #[error("`{field}` announces {found}, but {allowed} are possible")]
    Length { field: &'static str, found: u64, allowed: u64 },
    #[error("it goes on after its end")]
    Trailing,
    #[error("a {what} is of kind {found}, but must be of 0 to 2")]
    Kind { what: &'static str, found: u8 },
}

/// Writes a whole file; gives its size. One layer at a time is copied out of the state, which may be large.
pub(super) fn write(out: impl Write, header: &Header, state: &dyn State) -> io::Result<u64> {
    let mut out = Hashed { out, hash: Sha256::new(), bytes: 0 };
    out.put(MAGIC)?;
    out.put(&header.fingerprint.0)?;
    out.put(&header.owner.0)?;
    out.put(&(header.tokens.len() as u64).to_le_bytes())?;
    out.put(&header.tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>())?;
    layers(&mut out, ATTENTION, |slot| state.read_kv(slot))?;
    layers(&mut out, DELTA_NET, |slot| state.read_delta(slot))?;
    out.put(&[0])?;
    let Hashed { mut out, hash, bytes } = out;
    out.write_all(&hash.finalize())?;
    Ok(bytes + HASH_BYTES as u64)
}

/// Writes the layers of a kind. They end where the state has no more; whatever else keeps one from being read ends the file.
fn layers(
    out: &mut Hashed<impl Write>,
    kind: u8,
    read: impl Fn(usize) -> Result<(Vec<f32>, Vec<f32>), KernelError>,
) -> io::Result<()> {
    for slot in 0.. {
        match read(slot) {
            Ok((first, second)) => out.layer(kind, &first, &second)?,
            Err(KernelError::Missing { .. }) => break,
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(())
}

/// Reads the front of a file. Nothing of it is verified yet.
pub(super) fn read_header(mut file: impl Read) -> Result<Header, FileError> {
    let mut front = [0; 8 + 32 + 32 + 8];
    file.read_exact(&mut front)?;
    let mut cursor = Cursor(&front);
    let (fingerprint, owner) = cursor.front()?;
    let count = cursor.u64()?;
    if count > MOST_TOKENS {
        return Err(FileError::Length { field: "tokens", found: count, allowed: MOST_TOKENS });
    }
    // Grows with what the file really has.
    let mut tokens = Vec::new();
    file.take(4 * count).read_to_end(&mut tokens)?;
    let tokens = Cursor(&tokens).words("tokens", count)?.map(u32::from_le_bytes).collect();
    Ok(Header { fingerprint, owner, tokens })
}

/// Reads a whole file, after its checksum was found right.
pub(super) fn decode(bytes: &[u8]) -> Result<Saved, FileError> {
    let (bytes, hash) = bytes.split_at_checked(bytes.len().saturating_sub(HASH_BYTES)).ok_or(FileError::Checksum)?;
    if Sha256::digest(bytes)[..] != *hash {
        return Err(FileError::Checksum);
    }
    let mut cursor = Cursor(bytes);
    let (fingerprint, owner) = cursor.front()?;
    let count = cursor.u64()?;
    let tokens: Vec<u32> = cursor.words("tokens", count)?.map(u32::from_le_bytes).collect();
    let mut state = StateValues { len: tokens.len(), ..StateValues::default() };
    loop {
        let [kind] = cursor.array("a layer")?;
        match kind {
            0 => break,
            ATTENTION => {
                state.attention.push(KvValues { keys: cursor.elements("keys")?, values: cursor.elements("values")? });
            }
            DELTA_NET => {
                let recurrent = cursor.elements("recurrent")?;
                state.delta.push(DeltaValues { recurrent, window: cursor.elements("window")? });
            }
            found => return Err(FileError::Kind { what: "layer", found }),
        }
    }
    if !cursor.0.is_empty() {
        return Err(FileError::Trailing);
    }
    Ok(Saved { header: Header { fingerprint, owner, tokens }, state })
}

/// What is written, with the checksum of it.
struct Hashed<W> {
    out: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Hashed<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn layer(&mut self, kind: u8, first: &[f32], second: &[f32]) -> io::Result<()> {
        self.put(&[kind])?;
        self.put(&elements(first))?;
        self.put(&elements(second))
    }
}

/// A list in the shortest type that holds all of it exactly.
fn elements(values: &[f32]) -> Vec<u8> {
    let is_f16 = |value: f32| f16::from_f32(value).to_f32().to_bits() == value.to_bits();
    let is_bf16 = |value: f32| bf16::from_f32(value).to_f32().to_bits() == value.to_bits();
    let (kind, size) = match values {
        values if values.iter().all(|&value| is_f16(value)) => (1, 2),
        values if values.iter().all(|&value| is_bf16(value)) => (2, 2),
        _ => (0, 4),
    };
    let mut bytes = Vec::with_capacity(9 + size * values.len());
    bytes.push(kind);
    bytes.extend((values.len() as u64).to_le_bytes());
    match kind {
        1 => values.iter().for_each(|&value| bytes.extend(f16::from_f32(value).to_le_bytes())),
        2 => values.iter().for_each(|&value| bytes.extend(bf16::from_f32(value).to_le_bytes())),
        _ => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
    }
    bytes
}

/// The bytes that are left.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, field: &'static str, count: u64, size: u64) -> Result<&'a [u8], FileError> {
        let allowed = self.0.len() as u64 / size;
        if count > allowed {
            return Err(FileError::Length { field, found: count, allowed });
        }
        let (taken, rest) = self.0.split_at((count * size) as usize);
        self.0 = rest;
        Ok(taken)
    }

    fn front(&mut self) -> Result<(Fingerprint, CacheOwner), FileError> {
        if self.take("magic", 8, 1)? != MAGIC {
            return Err(FileError::Magic);
        }
        Ok((Fingerprint(self.array("fingerprint")?), CacheOwner(self.array("owner")?)))
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], FileError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, N as u64, 1)?);
        Ok(array)
    }

    fn u64(&mut self) -> Result<u64, FileError> {
        Ok(u64::from_le_bytes(self.array("a length")?))
    }

    fn words<const N: usize>(
        &mut self,
        field: &'static str,
        count: u64,
    ) -> Result<impl Iterator<Item = [u8; N]> + use<'a, N>, FileError> {
        Ok(self.take(field, count, N as u64)?.as_chunks::<N>().0.iter().copied())
    }

    fn elements(&mut self, field: &'static str) -> Result<Vec<f32>, FileError> {
        let [kind] = self.array(field)?;
        let count = self.u64()?;
        Ok(match kind {
            0 => self.words(field, count)?.map(f32::from_le_bytes).collect(),
            1 => self.words(field, count)?.map(|word| f16::from_le_bytes(word).to_f32()).collect(),
            2 => self.words(field, count)?.map(|word| bf16::from_le_bytes(word).to_f32()).collect(),
            found => return Err(FileError::Kind { what: "list", found }),
        })
    }
}

#[cfg(test)]
mod tests {
    use pleach_kernels::{DType, DeltaLayout, Device as _, KvLayout, ReferenceDevice, StateLayout};
    use proptest::prelude::*;

    use super::*;

    fn saved() -> Saved {
        let kv = |first: f32| KvValues { keys: [first, -0.5, 0.25].repeat(2), values: [2.0, 65504.0, 0.125].repeat(2) };
        let recurrent = vec![0.1, f32::MAX, -0.0, 1.0, 2.0, 3.0];
        let delta = DeltaValues { recurrent, window: (0..21).map(|tap| 1e30 * tap as f32).collect() };
        Saved {
            header: Header {
                fingerprint: Fingerprint([1; 32]),
                owner: CacheOwner::of("someone"),
                tokens: vec![5, u32::MAX, 7],
            },
            state: StateValues { len: 3, attention: vec![kv(1.0), kv(0.1)], delta: vec![delta] },
        }
    }

    /// A state of a device that holds what `saved` does.
    fn encode(saved: &Saved) -> Vec<u8> {
        let kv = KvLayout { num_key_value_heads: 1, head_dim: 2, dtype: DType::F32, window: None };
        let delta = DeltaLayout {
            num_key_heads: 1,
            num_value_heads: 1,
            key_head_dim: 2,
            value_head_dim: 3,
            conv_kernel_dim: 4,
        };
        let layout = StateLayout { attention: vec![kv; 2], delta: vec![delta] };
        let mut state = ReferenceDevice::new().state(&layout).unwrap();
        state.restore(&saved.state).unwrap();
        let mut bytes = Vec::new();
        assert_eq!(write(&mut bytes, &saved.header, &*state).unwrap(), bytes.len() as u64);
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = encode(&saved());
        assert_eq!(decode(&bytes).unwrap(), saved());
        assert_eq!(read_header(&bytes[..]).unwrap(), saved().header);
    }

    #[test]
    fn only_a_layer_that_is_not_there_ends_a_list() {
        let write = |error: fn() -> KernelError| {
            let mut out = Hashed { out: Vec::new(), hash: Sha256::new(), bytes: 0 };
            layers(&mut out, ATTENTION, |slot| if slot == 0 { Ok((vec![1.0], vec![2.0])) } else { Err(error()) })
        };
        assert!(write(|| KernelError::Missing { what: "attention layer", found: 1, available: 1 }).is_ok());
        assert!(write(|| KernelError::Layers { kind: "attention", found: 1, expected: 2 }).is_err());
    }

    #[test]
    fn every_flipped_byte_and_every_cut_is_noticed() {
        let bytes = encode(&saved());
        for place in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[place] ^= 0x10;
            assert!(matches!(decode(&flipped), Err(FileError::Checksum)), "byte {place}");
            assert!(decode(&bytes[..place]).is_err(), "{place} bytes");
        }
    }

    /// A checksum that is right says nothing of what the bytes mean.
    fn signed(bytes: &[u8]) -> Vec<u8> {
        let body = &bytes[..bytes.len() - HASH_BYTES];
        [body, &Sha256::digest(body)[..]].concat()
    }

    #[test]
    fn lengths_are_checked_before_anything_is_allocated() {
        let bytes = encode(&saved());
        let layers = 72 + 8 + 12;
        for (place, field) in [(72, "tokens"), (layers + 2, "keys")] {
            let mut changed = bytes.clone();
            changed[place..place + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            match decode(&signed(&changed)) {
                Err(FileError::Length { field: found, .. }) => assert_eq!(found, field),
                other => panic!("{field}: {other:?}"),
            }
        }
        let mut changed = bytes.clone();
        changed[72..80].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(
            read_header(&changed[..]).unwrap_err().to_string(),
            "`tokens` announces 18446744073709551615, but 16777216 are possible"
        );
        let mut changed = bytes.clone();
        (changed[layers], changed[layers + 1]) = (1, 9);
        assert_eq!(decode(&signed(&changed)).unwrap_err().to_string(), "a list is of kind 9, but must be of 0 to 2");
        changed[layers] = 3;
        assert_eq!(decode(&signed(&changed)).unwrap_err().to_string(), "a layer is of kind 3, but must be of 0 to 2");
        let longer = [&bytes[..bytes.len() - HASH_BYTES], &[0], &bytes[..HASH_BYTES]].concat();
        assert!(matches!(decode(&signed(&longer)), Err(FileError::Trailing)));
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), is_signed: bool) {
            let mut bytes = [&MAGIC[..], &bytes].concat();
            if is_signed {
                bytes.extend([0; HASH_BYTES]);
                bytes = signed(&bytes);
            }
            prop_assert!(decode(&bytes).is_err());
            let _ = read_header(&bytes[..]);
        }
    }
}
