//! The walk that turns verified rows into text.

use crate::{DecodeError, DraftTree, StopReason, TokenId};

/// What a verified tree came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Rows to commit, root first, each the child of the one before.
    pub rows: Vec<usize>,
    /// The target's token after the last of them, which no row of this pass keeps.
    pub next: TokenId,
    /// Set if the text ends with `next`.
    pub stop: Option<StopReason>,
}

/// Walks down from the root for as long as the target's own choice was also drafted and does not end the text.
///
/// `choose` draws the token after a row and says whether the text ends with it. It is called for the visited rows only,
/// in the order of the path, so it may keep the state of the text so far.
///
/// A row that cannot be drawn from is left out, and its token becomes the next root: the error then comes up in the
/// step that begins with it, after the tokens before it were given out, exactly as without drafting.
///
/// # Errors
///
/// The error of `choose` for the root.
pub fn accept(
    tree: &DraftTree,
    mut choose: impl FnMut(usize) -> Result<(TokenId, Option<StopReason>), DecodeError>,
) -> Result<Accepted, DecodeError> {
    let (mut next, mut stop) = choose(DraftTree::ROOT)?;
    let mut rows = vec![DraftTree::ROOT];
    let mut last = DraftTree::ROOT;
    while stop.is_none()
        && let Some(child) = tree.child(last, next)
        && let Ok(choice) = choose(child)
    {
        rows.push(child);
        last = child;
        (next, stop) = choice;
    }
    Ok(Accepted { rows, next, stop })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TreeBuilder;

    /// ```text
    /// 0 ─ 1 ─ 2 ─ 3
    ///       └ 5
    /// ```
    fn tree() -> DraftTree {
        let mut builder = TreeBuilder::new(0, 10, 8, 100);
        let one = builder.add_branch(TreeBuilder::ROOT, &[1], 0.0);
        builder.add_branch(one, &[2, 3], 0.0);
        builder.add_branch(one, &[5], 0.0);
        builder.build(64)
    }

    /// Chooses one token after the other and counts how many were asked for.
    fn walk(choices: &[(TokenId, Option<StopReason>)]) -> (Accepted, usize) {
        let mut asked = 0;
        let accepted = accept(&tree(), |_| {
            asked += 1;
            Ok(choices[asked - 1])
        });
        (accepted.unwrap(), asked)
    }

    #[test]
    fn follows_the_targets_own_choices() {
        let (accepted, asked) = walk(&[(1, None), (5, None), (7, None)]);
        assert_eq!(accepted, Accepted { rows: vec![0, 1, 4], next: 7, stop: None });
        assert_eq!(asked, 3);
        let (accepted, asked) = walk(&[(9, None)]);
        assert_eq!(accepted, Accepted { rows: vec![0], next: 9, stop: None });
        assert_eq!(asked, 1);
    }

    #[test]
    fn a_fully_accepted_path_still_gives_one_more_token() {
        let (accepted, _) = walk(&[(1, None), (2, None), (3, None), (4, None)]);
        assert_eq!(accepted, Accepted { rows: vec![0, 1, 2, 3], next: 4, stop: None });
    }

    #[test]
    fn nothing_is_kept_past_an_end() {
        let end = Some(StopReason::StopToken(2));
        let (accepted, asked) = walk(&[(1, None), (2, end)]);
        assert_eq!(accepted, Accepted { rows: vec![0, 1], next: 2, stop: end });
        assert_eq!(asked, 2);
    }

    #[test]
    fn a_broken_row_waits_for_the_next_step() {
        let broken = DecodeError::NoTokenAllowed { position: 0 };
        let choose = |row: usize| [Ok((1, None)), Ok((2, None)), Err(broken.clone())][row].clone();
        let accepted = accept(&tree(), choose).unwrap();
        assert_eq!(accepted, Accepted { rows: vec![0, 1], next: 2, stop: None });
        assert_eq!(accept(&tree(), |_| Err(broken.clone())), Err(broken.clone()));
    }
}
