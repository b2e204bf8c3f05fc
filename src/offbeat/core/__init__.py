"""The session and what passes through it: events in, actions out. No torch, no clock, no files."""
