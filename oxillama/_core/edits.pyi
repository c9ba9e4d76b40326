"""Stages that change logits; nothing of them can be called from Python."""
