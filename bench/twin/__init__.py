"""How fast the twin is, and a peer beside it in the same run."""
