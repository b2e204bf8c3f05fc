"""For the site: the `>>>` examples of docstrings become code blocks. In Markdown they would be quotations."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).+)*", re.MULTILINE)
"""From a line that begins with `>>>` to the next empty one."""


class Doctests(griffe.Extension):
    """Fences the examples in every docstring that is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the examples in the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
