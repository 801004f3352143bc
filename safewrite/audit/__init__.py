"""Questions about what was done, and a person's word on what nobody else can tell."""
