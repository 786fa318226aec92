"""The command line: `synergon`. One file per group of commands; nothing here decides what happens to a task."""
