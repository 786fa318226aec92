"""The stores: one port (`base`), one conformance suite, and an implementation per database."""
