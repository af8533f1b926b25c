"""Tokens per pass of chains and trees, replayed over a target's own text."""
