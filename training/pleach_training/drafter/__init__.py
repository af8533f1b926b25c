"""DFlash drafters (arXiv:2602.06036): block drafting from the target's hidden states."""
