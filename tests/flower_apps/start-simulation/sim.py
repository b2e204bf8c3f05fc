"""A script from the days of start_simulation."""

import argparse
from collections import OrderedDict

import flwr as fl
import numpy as np
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--clients", type=int, default=4)

X, Y = load_digits(return_X_y=True)
X = X / 16


def probabilities(weights, x):
    """Softmax regression."""
    scores = np.exp(x @ weights[0] + weights[1])
    return scores / scores.sum(axis=1, keepdims=True)


class Client(fl.client.NumPyClient):
    """Takes some steps on its part of the data."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def get_parameters(self, config):
        """Zeros."""
        return list(OrderedDict(w=np.zeros((64, 10)), b=np.zeros(10)).values())

    def fit(self, parameters, config):
        """Ten steps of gradient descent."""
        w, b = parameters
        for _ in range(10):
            wrong = probabilities([w, b], self.x)
            wrong[np.arange(len(self.y)), self.y] -= 1
            w, b = w - 0.5 * self.x.T @ wrong / len(self.y), b - 0.5 * wrong.mean(axis=0)
        return [w, b], len(self.y), {}

    def evaluate(self, parameters, config):
        """Error and accuracy."""
        right = float((probabilities(parameters, self.x).argmax(axis=1) == self.y).mean())
        return 1 - right, len(self.y), {"accuracy": right}


def main():
    """Run the simulation and print the history."""
    args = parser.parse_args()

    def client_fn(cid: str):
        return Client(X[int(cid) :: args.clients], Y[int(cid) :: args.clients]).to_client()

    strategy = fl.server.strategy.FedAvg(
        fraction_fit=1.0,
        evaluate_metrics_aggregation_fn=lambda all_: {"accuracy": np.mean([m["accuracy"] for _, m in all_])},
    )
    history = fl.simulation.start_simulation(
        client_fn=client_fn,
        num_clients=args.clients,
        config=fl.server.ServerConfig(num_rounds=args.rounds),
        strategy=strategy,
        client_resources={"num_cpus": 1, "num_gpus": 0.0},
    )
    print("accuracies", [round(value, 3) for _, value in history.metrics_distributed["accuracy"]])


if __name__ == "__main__":
    main()
