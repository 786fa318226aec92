"""What limits, lines and servers cost, on each store."""
