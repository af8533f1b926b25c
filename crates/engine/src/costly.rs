//! The drafters that run a model of their own.

use std::ops::Range;

use pleach_decode::{DraftContext, Drafter, Step, TreeBuilder};
use pleach_kernels::StatePart;
use pleach_model::{Model, ModelError, MtpRunner, Runner, Tap};

use crate::dflash::{BlockDraft, BlockRunner};
use crate::draft_model::ModelDraft;
use crate::mtp::{MtpDraft, hidden_of};
use crate::target::SequenceTarget;

/// What runs the drafter's model, shared by all sessions.
#[derive(Debug)]
pub(crate) enum CostlyRunner {
    /// The model's own multi-token-prediction head.
    Mtp(MtpRunner),
    /// Another, smaller model.
    Model(Runner),
    /// A drafter that was trained for the model.
    DFlash(Box<BlockRunner>),
}

/// What the drafter of one request remembers.
#[derive(Debug)]
pub(crate) enum Costly {
    Mtp(MtpDraft),
    Model(ModelDraft),
    DFlash { draft: BlockDraft, num_taps: usize },
}

/// A kind of drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CostlyKind {
    Mtp,
    Model,
    DFlash { num_taps: usize, has_weaver: bool },
}

impl CostlyRunner {
    pub(crate) fn kind(&self) -> CostlyKind {
        match self {
            Self::Mtp(_) => CostlyKind::Mtp,
            Self::Model(_) => CostlyKind::Model,
            Self::DFlash(runner) => CostlyKind::DFlash { num_taps: runner.num_taps(), has_weaver: runner.has_weaver() },
        }
    }

    /// What the target's runner has to keep for it.
    pub(crate) fn taps(&self) -> Vec<Tap> {
        match self {
            Self::Mtp(_) => vec![Tap::Final],
            Self::Model(_) => Vec::new(),
            Self::DFlash(runner) => runner.taps(),
        }
    }

    /// What a guess costs at least, as a share of a pass of `target`: weights are read once per pass.
    pub(crate) fn least_share(&self, target: &Model) -> f64 {
        match self {
            // One block and the output head, which is a share of the model's own weights.
            Self::Mtp(_) => 0.0,
            // A block of guesses is one pass.
            Self::DFlash(_) => 0.0,
            Self::Model(runner) => {
                let bytes = |model: &Model| model.memory_plan().weights_bytes as f64;
                bytes(runner.model()) / bytes(target).max(1.0)
            }
        }
    }
}

impl CostlyKind {
    /// As it is spelled for `--spec`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mtp => "mtp",
            Self::Model => "draft",
            Self::DFlash { has_weaver: false, .. } => "dflash",
            Self::DFlash { has_weaver: true, .. } => "weaver",
        }
    }
}

impl Costly {
    /// A drafter for a new request.
    pub(crate) fn new(kind: CostlyKind) -> Self {
        match kind {
            CostlyKind::Mtp => Self::Mtp(MtpDraft::default()),
            CostlyKind::Model => Self::Model(ModelDraft::default()),
            CostlyKind::DFlash { num_taps, .. } => Self::DFlash { draft: BlockDraft::default(), num_taps },
        }
    }

    /// Goes on with the first `len` tokens of what it has read; what does not stand for these is forgotten.
    pub(crate) fn resume(&mut self, len: usize) {
        match self {
            Self::DFlash { draft, .. } => draft.resume(len),
            Self::Mtp(mtp) => mtp.resume(len),
            Self::Model(model) => model.resume(len),
        }
    }

    /// A copy that later drafts do not change.
    pub(crate) fn snapshot(&self) -> Self {
        match self {
            Self::Mtp(mtp) => Self::Mtp(mtp.snapshot()),
            Self::Model(model) => Self::Model(model.snapshot()),
            Self::DFlash { draft, num_taps } => Self::DFlash { draft: draft.snapshot(), num_taps: *num_taps },
        }
    }

    /// The pieces of its memory, some of which copies share, and the bytes of what no copy shares.
    pub(crate) fn memory(&self) -> (Vec<StatePart>, usize) {
        match self {
            Self::Mtp(mtp) => mtp.memory(),
            Self::Model(model) => (model.parts(), 0),
            Self::DFlash { draft, .. } => draft.memory(),
        }
    }

    /// Takes in what the target's last pass computed for drafters: its rows `rows` are tokens of the prompt from position
    /// `start` on.
    ///
    /// # Errors
    /// [`ModelError::NoTap`] if the runner keeps no hidden states.
    pub(crate) fn read(&mut self, start: usize, rows: Range<usize>, runner: &Runner) -> Result<(), ModelError> {
        match self {
            Self::DFlash { draft, num_taps } => draft.read(start, rows, runner, *num_taps)?,
            Self::Mtp(mtp) => {
                let hidden_size = runner.model().config().hidden_size;
                let hidden = &hidden_of(runner)?[rows.start * hidden_size..rows.end * hidden_size];
                mtp.read(start, hidden, hidden_size);
            }
            Self::Model(_) => {}
        }
        Ok(())
    }
}

impl Drafter<SequenceTarget<'_>> for Costly {
    fn draft(
        &mut self,
        target: &mut SequenceTarget<'_>,
        context: DraftContext<'_>,
        tree: &mut TreeBuilder,
    ) -> Result<(), ModelError> {
        match (self, target.costly()) {
            (Self::Mtp(mtp), Some(CostlyRunner::Mtp(runner))) => mtp.draft(runner, &context, tree),
            (Self::Model(model), Some(CostlyRunner::Model(runner))) => model.draft(runner, &context, tree),
            (Self::DFlash { draft, .. }, Some(CostlyRunner::DFlash(runner))) => draft.draft(runner, &context, tree),
            _ => Ok(()),
        }
    }

    fn observe(&mut self, target: &mut SequenceTarget<'_>, step: &Step) -> Result<(), ModelError> {
        match self {
            Self::Mtp(mtp) => mtp.observe(target, step),
            Self::Model(_) => Ok(()),
            Self::DFlash { draft, num_taps } => draft.observe(target, step, *num_taps),
        }
    }
}
