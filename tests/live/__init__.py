"""Tests of the live view and of the page in a browser."""
