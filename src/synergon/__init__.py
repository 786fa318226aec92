"""synergon: a durable task engine. One file to start with, one database to share."""
