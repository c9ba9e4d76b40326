"""What a request has seen; nothing of it can be called from Python."""
