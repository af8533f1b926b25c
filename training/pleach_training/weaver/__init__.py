"""Weaver (arXiv:2607.06763): scores a drafter's candidates given the path that leads to them."""
