"""The study of delayed gradients: bounds, their constants, advice, and the paper's tables."""
