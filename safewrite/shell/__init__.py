"""Two thin shells over the one machine: they wait, call and record, and decide nothing."""
