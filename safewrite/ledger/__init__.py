"""The ledger: where intents, their audit rows and their content are written, and never changed."""
