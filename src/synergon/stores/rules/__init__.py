"""Rules of the stores, written once: what every store decides, from rows that it has read and locked."""
