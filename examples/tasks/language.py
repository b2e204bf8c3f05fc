"""A small language model, trained until its perplexity is 2. Run it: offbeat run language.toml"""

import numpy as np
from torch import nn

from offbeat.data import Dataset

TOKENS, LENGTH = 12, 8


def load(seed):
    random = np.random.default_rng(seed)
    start = random.integers(0, TOKENS, (400, 1))
    text = (start + np.arange(LENGTH + 1) * 5) % TOKENS
    x, y = text[:, :-1], text[:, 1:]
    return Dataset(train_x=x[:320], train_y=y[:320], test_x=x[320:], test_y=y[320:], classes=TOKENS)


class Language(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.embedding = nn.Embedding(tokens, 16)
        self.memory = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, tokens)

    def forward(self, x):
        return self.head(self.memory(self.embedding(x))[0])


def network(input_shape, classes):
    return Language(classes)
