"""The command line `synergon`: one module per group of commands. It contains no rules about tasks."""
