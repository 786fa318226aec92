"""Providers: pools of servers, the limits over them, and the commands for them."""
