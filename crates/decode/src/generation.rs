//! One text in the making.

use crate::params::check;
use crate::{
    Constraint, DecodeError, DraftContext, DraftTree, Drafter, Flow, History, Sampler, SamplingParams, Stats, Step,
    StepError, StopReason, Target, TokenId, TreeBuilder,
};

/// What a text is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationOptions {
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Tokens that end the text; each is given out as its last token.
    pub stop_tokens: Vec<TokenId>,
    /// Tokens of the output, at least 1; `None` for as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Tokens that prompt and output may have together.
    pub context: usize,
    /// Entries in a row of logits.
    pub vocab_size: usize,
    /// Rows of a pass at most, the root included, at least 1, which is plain decoding.
    pub budget: usize,
}

impl GenerationOptions {
    /// Greedy text without stop tokens, up to the end of the context, with up to 16 rows in a pass.
    pub fn new(vocab_size: usize, context: usize) -> Self {
        Self {
            sampling: SamplingParams::default(),
            stop_tokens: Vec::new(),
            max_tokens: None,
            context,
            vocab_size,
            budget: 16,
        }
    }
}

/// One text in the making: its tokens, its sampler, its limits.
///
/// Whatever is called, the last token of the text has not been run by the target: it is the root of the next tree.
/// [`step`](Self::step) does a whole step for one sequence. To verify the trees of several sequences in one pass, call
/// [`draft`](Self::draft) on each, run the pass, call [`accept`](Self::accept) on each, and commit the rows it names.
#[derive(Debug, Clone)]
pub struct Generation {
    sampler: Sampler,
    history: History,
    stop_tokens: Vec<TokenId>,
    max_tokens: usize,
    context: usize,
    budget: usize,
    stopped: Option<StopReason>,
    stats: Stats,
    /// Tokens that the target's state stands for; always one less than the history.
    committed: usize,
}

impl Generation {
    /// A text that continues a prompt.
    ///
    /// Either the target has run all tokens of the prompt but the last, and steps begin at once with that token as
    /// root; or it has run all of them, and [`draw_first`](Self::draw_first) is called first. Both give the same text.
    ///
    /// # Errors
    ///
    /// - [`DecodeError::InvalidOption`]: an option lies outside its range.
    /// - [`DecodeError::EmptyPrompt`], [`DecodeError::PromptTooLong`], [`DecodeError::UnknownToken`]: the prompt cannot
    ///   be continued.
    pub fn new(options: GenerationOptions, prompt: &[TokenId]) -> Result<Self, DecodeError> {
        let GenerationOptions { sampling, stop_tokens, max_tokens, context, vocab_size, budget } = options;
        check("max_tokens", max_tokens.unwrap_or_default(), max_tokens != Some(0), "1 or more, or absent")?;
        check("budget", budget, budget > 0, "1 or more")?;
        check_prompt(prompt, context, vocab_size)?;
        let window = sampling.penalty_window.unwrap_or(usize::MAX);
        Ok(Self {
            sampler: Sampler::new(sampling, vocab_size)?,
            history: History::with_window(prompt, window),
            stop_tokens,
            max_tokens: max_tokens.unwrap_or(usize::MAX),
            context,
            budget,
            stopped: None,
            stats: Stats::default(),
            committed: prompt.len() - 1,
        })
    }

    /// Draws the first token from the logits of the prompt's last row, which the target has run.
    ///
    /// # Errors
    ///
    /// [`DecodeError::AlreadyStarted`] after another draw; those of [`Sampler::sample`].
    pub fn draw_first(&mut self, logits: &[f32], constraint: &mut dyn Constraint) -> Result<Step, DecodeError> {
        if !self.history.generated().is_empty() {
            return Err(DecodeError::AlreadyStarted);
        }
        let (token, stop) = self.draw(logits, constraint)?;
        self.committed += 1;
        self.stopped = stop;
        Ok(Step { tokens: vec![token], rows: Vec::new(), stop })
    }

    /// Asks a constraint for the tokens that it forces, and a drafter for the rest of the next pass's tree.
    ///
    /// The tree never reaches past the context or the token limit: what could not be given out is not verified.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Finished`] if the text has ended; the drafter's own.
    pub fn draft<T: Target, D: Drafter<T> + ?Sized>(
        &mut self,
        target: &mut T,
        drafter: &mut D,
        constraint: &mut dyn Constraint,
    ) -> Result<DraftTree, StepError<T::Error>> {
        self.check_running()?;
        // A path of depth d gives d + 1 tokens.
        let max_depth = self.tokens_left() - 1;
        let root = self.history.tokens()[self.committed];
        let mut tree = TreeBuilder::new(root, self.committed, max_depth, self.sampler.vocab_size());
        let budget = if max_depth == 0 { 1 } else { self.budget };
        if budget > 1 {
            tree.add_branch(TreeBuilder::ROOT, &constraint.forced(max_depth.min(budget - 1)), 0.0);
        }
        // Asked even where there is no room for guesses: what it observes afterwards belongs to this step.
        let context = DraftContext { history: &self.history, budget, least_chances: &[], sampler: &self.sampler };
        drafter.draft(target, context, &mut tree).map_err(StepError::Target)?;
        Ok(tree.build(budget))
    }

    /// Draws the tokens that a verified tree allows. The rows of the answer are then to be committed.
    ///
    /// `logits(row)`: `[vocab_size]`, for the token after that row of the tree.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Finished`], [`DecodeError::StaleTree`] if calls come out of order; those of [`Sampler::sample`]
    /// for the root. The generation is as before.
    pub fn accept<'l>(
        &mut self,
        tree: &DraftTree,
        logits: impl Fn(usize) -> &'l [f32],
        constraint: &mut dyn Constraint,
    ) -> Result<Step, DecodeError> {
        self.check_running()?;
        if tree.start() != self.committed {
            return Err(DecodeError::StaleTree { found: tree.start(), expected: self.committed });
        }
        let accepted = crate::accept(tree, |row| self.draw(logits(row), constraint))?;
        self.stats.record(tree, &accepted);
        self.committed += accepted.rows.len();
        self.stopped = accepted.stop;
        let tokens = self.history.tokens()[tree.start() + 1..].to_vec();
        Ok(Step { tokens, rows: accepted.rows, stop: accepted.stop })
    }

    /// Prompt and output so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Tokens that the target's state stands for once the last step's rows are committed: all but the last.
    pub fn committed(&self) -> usize {
        self.committed
    }

    /// Why the text has ended, if it has.
    pub fn stopped(&self) -> Option<StopReason> {
        self.stopped
    }

    /// What drafting has brought so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Changes the rows of later passes: at least the root, which is plain decoding. The text stays the same.
    pub fn set_budget(&mut self, budget: usize) {
        self.budget = budget.max(1);
    }

    /// Tokens that may still be given out.
    pub fn tokens_left(&self) -> usize {
        let limit = self.max_tokens.saturating_sub(self.history.generated().len());
        limit.min(self.context - self.history.tokens().len())
    }

    /// Draws the next token of the text and notes it everywhere, or fails and leaves everything as it was.
    fn draw(
        &mut self,
        logits: &[f32],
        constraint: &mut dyn Constraint,
    ) -> Result<(TokenId, Option<StopReason>), DecodeError> {
        let position = self.history.tokens().len() as u64;
        let token = self.sampler.sample(logits, position, &self.history, constraint.allowed())?;
        self.history.push(token);
        Ok((token, self.stop_after(token, constraint)))
    }

    /// Why the text ends with `token`, its last, if it does. The constraint hears of all tokens but a stop token.
    fn stop_after(&self, token: TokenId, constraint: &mut dyn Constraint) -> Option<StopReason> {
        if self.stop_tokens.contains(&token) {
            Some(StopReason::StopToken(token))
        } else if constraint.push(token) == Flow::Stop {
            Some(StopReason::Constraint)
        } else if self.history.generated().len() >= self.max_tokens {
            Some(StopReason::MaxTokens)
        } else if self.history.tokens().len() >= self.context {
            Some(StopReason::Context)
        } else {
            None
        }
    }

    fn check_running(&self) -> Result<(), DecodeError> {
        self.stopped.map_or(Ok(()), |reason| Err(DecodeError::Finished { reason }))
    }
}

fn check_prompt(prompt: &[TokenId], context: usize, vocab_size: usize) -> Result<(), DecodeError> {
    if prompt.is_empty() {
        return Err(DecodeError::EmptyPrompt);
    }
    if prompt.len() >= context {
        return Err(DecodeError::PromptTooLong { prompt: prompt.len(), context });
    }
    match prompt.iter().position(|&token| token as usize >= vocab_size) {
        Some(index) => Err(DecodeError::UnknownToken { index, token: prompt[index], vocab_size }),
        None => Ok(()),
    }
}
