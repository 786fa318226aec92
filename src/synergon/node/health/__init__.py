"""The health of a worker: whether it is ready, the server that says so, and the messages to systemd."""
