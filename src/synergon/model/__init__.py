"""Records that cross borders: between the client, nodes, stores and the command line."""
