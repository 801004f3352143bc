"""What tools reach the outside world through, each taught about deadlines: one module per outside thing.

A module imports the package it is for only when it is imported itself, so that each needs its own extra and no other.
"""
