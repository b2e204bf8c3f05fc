"""A Flower app that sends adapters of the size that fine-tuning a language model sends."""
