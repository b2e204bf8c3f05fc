"""The study of delayed gradients."""
