"""The checks of `synergon doctor`: the store, the settings, the waiting tasks and the nodes. They change nothing."""
