//! Characters to tokens and back: tokenizer, chat template, stop strings, reasoning spans.
//!
//! A request's messages become a prompt with a [`ChatTemplate`], the prompt becomes ids with a
//! [`Tokenizer`]. On the way out, ids become whole characters with a [`Detokenizer`], a
//! [`StopMatcher`] ends the text before a stop string, and a [`SpanSplitter`] tells reasoning from
//! the answer. Everything that streams gives the same text however its input is cut.
//!
//! ```
//! use pleach_text::{ChatRequest, ChatTemplate, Message, Role, Span, SpanSplitter, SpecialTokenStrings};
//!
//! let template = ChatTemplate::chatml(&SpecialTokenStrings::default())?;
//! let request = ChatRequest::new(vec![Message::text(Role::User, "Hello")]);
//! let prompt = template.render(&request)?.prompt;
//! assert_eq!(prompt, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
//!
//! let mut splitter = SpanSplitter::new(pleach_text::opens_reasoning(&prompt));
//! let spans = splitter.push("<think>\nplan\n</think>\n\nHi");
//! assert_eq!(spans, [Span::Reasoning("plan".into()), Span::Content("Hi".into())]);
//! # Ok::<(), pleach_text::TextError>(())
//! ```

mod detokenize;
mod error;
mod spans;
mod stop;
mod template;
mod tokenizer;

pub use detokenize::Detokenizer;
pub use error::TextError;
pub use spans::{ReasoningMarkers, Span, SpanSplitter};
pub use stop::{MAX_STOP_BYTES, MAX_STOP_STRINGS, StopMatcher, StopOutput, StopStrings};
pub use template::{
    ChatRequest, ChatTemplate, Content, FunctionCall, Message, Part, RenderNote, RenderedPrompt, Role,
    SpecialTokenStrings, ToolCall, opens_reasoning,
};
pub use tokenizer::{AddedTokens, SpecialIds, SpecialTokens, Tokenizer, VocabularySpec};
