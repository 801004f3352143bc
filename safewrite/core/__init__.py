"""The pure machine: no clock, no I/O, no randomness, no logging; standard library only."""
