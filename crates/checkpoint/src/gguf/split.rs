//! Models split over several files, by the names and the metadata that the parts carry.

use std::path::{Path, PathBuf};

use super::{Header, metadata::Metadata};
use crate::{CheckpointError, checkpoint::file_name, map::MappedFile};

/// Digits of each number in a part's name.
const DIGITS: usize = 5;

/// The name of a part: `STEM-00001-of-00003.gguf`.
struct PartName {
    stem: String,
    number: usize,
    count: usize,
}

impl PartName {
    fn of(path: &Path) -> Option<Self> {
        let name = file_name(path);
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let (number, count) = (parse_digits(number)?, parse_digits(count)?);
        (1..=count).contains(&number).then(|| Self { stem: stem.to_owned(), number, count })
    }
}

fn parse_digits(text: &str) -> Option<usize> {
    let is_number = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// Whether a file is a whole model, or the first part of one.
pub(crate) fn is_first_part(path: &Path) -> bool {
    PartName::of(path).is_none_or(|part| part.number == 1)
}

/// The files of the model that `path` is a part of, in order.
pub(super) fn parts(path: &Path) -> Vec<PathBuf> {
    let Some(PartName { stem, count, .. }) = PartName::of(path) else { return vec![path.to_owned()] };
    (1..=count).map(|number| path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf"))).collect()
}

/// Checks that the parts are those of one model: their number, their order, and all of its tensors.
pub(super) fn check(files: &[MappedFile], headers: &[Header<'_>]) -> Result<(), CheckpointError> {
    let num_parts = files.len();
    for (index, (file, header)) in files.iter().zip(headers).enumerate() {
        let metadata = Metadata::new(header, file.path());
        let count = metadata.optional_count("split.count", 0..=usize::MAX)?.unwrap_or(1).max(1);
        if count != num_parts {
            return Err(CheckpointError::Field {
                file: file.path().to_owned(),
                field: "split.count".to_owned(),
                found: count.to_string(),
                expected: format!(
                    "{num_parts}, as the file names say; keep the names that the parts were published under"
                ),
            });
        }
        metadata.optional_count("split.no", index..=index)?;
    }
    let num_tensors: usize = headers.iter().map(|header| header.tensors.len()).sum();
    let metadata = Metadata::new(&headers[0], files[0].path());
    match metadata.optional_count("split.tensors.count", 0..=usize::MAX)? {
        Some(announced) if num_parts > 1 && announced != num_tensors => Err(CheckpointError::Field {
            file: files[0].path().to_owned(),
            field: "split.tensors.count".to_owned(),
            found: announced.to_string(),
            expected: format!("the {num_tensors} tensors that the parts hold; fetch them all from one place"),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_leads_to_all() {
        let parts = parts(Path::new("models/m-Q4_0-00002-of-00003.gguf"));
        let expected = ["1", "2", "3"].map(|n| PathBuf::from(format!("models/m-Q4_0-0000{n}-of-00003.gguf")));
        assert_eq!(parts, expected);
        assert!(is_first_part(&parts[0]) && !is_first_part(&parts[1]));
    }

    #[test]
    fn other_names_are_whole_models() {
        for name in ["m.gguf", "m-1-of-3.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf"] {
            assert_eq!(parts(Path::new(name)), [PathBuf::from(name)]);
        }
    }
}
