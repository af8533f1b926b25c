//! Characters to tokens and back: tokenizer, chat template, stop strings, reasoning spans.
