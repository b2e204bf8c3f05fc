"""Words as numbers: a plain tokeniser, and a vocabulary that is counted in training texts.

A text is made lower-case, its line breaks of HTML become spaces, and a word is a run of letters and digits with
apostrophes inside ("don't"); everything else separates words.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from offbeat.data.dataset import Labels

PADDING, UNKNOWN = 0, 1
"""Tokens that are no words: what fills a short text up, and a word that is not in the vocabulary."""
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words(text: str) -> Iterator[str]:
    """The words of a text.

    >>> list(words("It's GREAT,<br />isn't it? 10/10"))
    ["it's", 'great', "isn't", 'it', '10', '10']
    """
    return (found.group() for found in WORD.finditer(text.lower().replace("<br />", " ")))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of words."""

    token_of: dict[str, int]

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """The most frequent words of these texts, of equally frequent ones the first by alphabet. Padding and unknown
        words count among the `size` tokens.

        >>> Vocabulary.of(["c b c", "a c d"], size=4).token_of  # of a, b and d, which are there once each, the first
        {'c': 2, 'a': 3}
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(words(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls({word: token for token, word in enumerate(ranked[: size - 2], 2)})

    def tokens(self, texts: Sequence[str], length: int) -> Labels:
        """The first `length` words of each text as [texts, length] tokens; short texts are filled up at the end.

        >>> Vocabulary({"b": 2, "a": 3}).tokens(["a c b", "b"], length=2).tolist()
        [[3, 1], [2, 0]]
        """
        found = np.full((len(texts), length), PADDING, dtype=np.int64)
        for row, text in zip(found, texts, strict=True):
            tokens = [self.token_of.get(word, UNKNOWN) for word in islice(words(text), length)]
            row[: len(tokens)] = tokens
        return found
