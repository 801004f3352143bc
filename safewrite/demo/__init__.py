"""The demonstration: one agent's run against a real dependency that misbehaves, and what each side says of it."""
