"""Stages that remove candidates; nothing of them can be called from Python."""
