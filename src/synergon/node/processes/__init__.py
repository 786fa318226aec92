"""Child processes and the executor that starts them."""
