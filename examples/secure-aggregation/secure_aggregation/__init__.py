"""FedAvg with Flower's SecAgg+ on 5 nodes: a softmax regression on the digits of scikit-learn."""
