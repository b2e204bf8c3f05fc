"""A Flower app on scikit-learn."""
