"""What a guarded write costs: every figure a ratio to the bare driver, measured in the same run."""
