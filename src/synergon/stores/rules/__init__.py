"""The rules of the stores: what a store decides from the rows that it has locked and read. Written once, over the
session port (`stores.session`)."""
