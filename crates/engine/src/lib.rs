//! The public library: open a model, generate a stream of events, chat, cancel.
