"""Claims: decides what a node claims. Scheduler, claim request and ledger of used capacity."""
