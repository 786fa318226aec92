"""Records that cross the borders between the client, nodes, stores and the command line."""
