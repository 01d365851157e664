"""Publish claims as messages, and learn which of them the broker has."""
