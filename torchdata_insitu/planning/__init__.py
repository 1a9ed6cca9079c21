"""Which draws, in which order, from which chunks: pure functions of a plan and a cursor."""
