"""The command line `synergon`, with one module per group of commands. It contains no rules about tasks."""
