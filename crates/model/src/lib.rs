//! Weights and operations to hidden states and logits; owns what a sequence remembers.
