"""The implementation of `synergon demo`: its app, worker processes, scenario, live view and summary."""
