//! Which tests are run.

use std::fmt;

use pleach_engine::RowShape;

use crate::args::TestFlags;

/// Everything that is measured of one model.
#[derive(Debug)]
pub(super) struct Plan {
    /// In the order of the report.
    pub(super) tests: Vec<Test>,
    /// Tests that are run once more, op by op.
    pub(super) profiles: Vec<Test>,
    pub(super) repetitions: usize,
}

/// One kind of work that is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) work: Work,
    /// Tokens of context before it.
    pub(super) depth: usize,
}

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Reading a prompt.
    Prefill { tokens: usize },
    /// Writing tokens, one per pass.
    Decode { tokens: usize },
    /// Passes over the same rows, with logits for every row.
    Rows { rows: usize, shape: RowShape },
}

/// Rows of the profiled pass that stands for verifying a draft.
const PROFILED_ROWS: usize = 8;

/// Tokens, or passes, of a profile.
const PROFILED_PASSES: usize = 32;

impl Plan {
    pub(super) fn new(flags: &TestFlags) -> Self {
        let named = !(flags.prompt.is_empty() && flags.generate.is_empty() && flags.rows.is_empty());
        let or = |list: &[usize], default: &[usize]| if named { list.to_vec() } else { default.to_vec() };
        let shape = flags.row_shape();
        let prompts = or(&flags.prompt, &[512]).into_iter().map(|tokens| Work::Prefill { tokens });
        let texts = or(&flags.generate, &[64]).into_iter().map(|tokens| Work::Decode { tokens });
        let rows = or(&flags.rows, &[1, 2, 4, 8, 16, 32, 64]).into_iter().map(|rows| Work::Rows { rows, shape });
        let works: Vec<Work> = prompts.chain(texts).chain(rows).collect();
        let profiled = [
            Work::Decode { tokens: PROFILED_PASSES },
            Work::Rows { rows: PROFILED_ROWS, shape },
            Work::Prefill { tokens: flags.prompt.first().copied().unwrap_or(512) },
        ];
        let everywhere = |works: &[Work]| {
            flags.depth.iter().flat_map(|&depth| works.iter().map(move |&work| Test { work, depth })).collect()
        };
        let profiles = if flags.profile { everywhere(&profiled) } else { Vec::new() };
        Self { tests: everywhere(&works), profiles, repetitions: flags.repetitions }
    }

    /// Tokens of context that the longest test takes.
    pub(super) fn context(&self) -> usize {
        self.tests.iter().chain(&self.profiles).map(|test| test.depth + test.work.tokens()).max().unwrap_or(1)
    }
}

impl Work {
    /// Tokens that it adds to the context.
    pub(super) fn tokens(self) -> usize {
        match self {
            Self::Prefill { tokens } | Self::Decode { tokens } => tokens,
            Self::Rows { rows, .. } => rows,
        }
    }

    /// Passes of a profile, which is given per pass; a prompt is one.
    pub(super) fn profiled_passes(self) -> usize {
        match self {
            Self::Prefill { .. } => 1,
            Self::Decode { tokens } => tokens,
            Self::Rows { .. } => PROFILED_PASSES,
        }
    }
}

/// As llama-bench names them, so that tables can be laid side by side.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work {
            Work::Prefill { tokens } => write!(f, "pp{tokens}")?,
            Work::Decode { tokens } => write!(f, "tg{tokens}")?,
            Work::Rows { rows, shape: RowShape::Tree } => write!(f, "tree {rows}")?,
            Work::Rows { rows, .. } => write!(f, "rows {rows}")?,
        }
        match self.depth {
            0 => Ok(()),
            depth => write!(f, " @ d{depth}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        tests: TestFlags,
    }

    fn plan(flags: &[&str]) -> Plan {
        Plan::new(&Flags::parse_from([&["bench"], flags].concat()).tests)
    }

    fn names(tests: &[Test]) -> Vec<String> {
        tests.iter().map(Test::to_string).collect()
    }

    #[test]
    fn tests_that_are_named_stand_in_for_all_others() {
        let usual = ["pp512", "tg64", "rows 1", "rows 2", "rows 4", "rows 8", "rows 16", "rows 32", "rows 64"];
        assert_eq!(names(&plan(&[]).tests), usual);
        assert_eq!(names(&plan(&["-n", "8"]).tests), ["tg8"]);
        assert_eq!(names(&plan(&["-p", "4,8", "--rows", "2"]).tests), ["pp4", "pp8", "rows 2"]);
    }

    #[test]
    fn every_test_is_run_at_every_depth() {
        let plan = plan(&["-p", "4", "-n", "2", "-d", "0,100", "--profile", "--row-shape", "tree"]);
        assert_eq!(names(&plan.tests), ["pp4", "tg2", "pp4 @ d100", "tg2 @ d100"]);
        assert_eq!(names(&plan.profiles), ["tg32", "tree 8", "pp4", "tg32 @ d100", "tree 8 @ d100", "pp4 @ d100"]);
        assert_eq!(plan.context(), 132);
    }
}
