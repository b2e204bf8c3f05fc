"""For the site: the page of algorithms is made from the registry."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import about_of

TABLE, MODULES = "<!-- table of algorithms -->", "<!-- modules of algorithms -->"


def on_page_markdown(markdown: str, *, page: Any, **kwargs: Any) -> str:
    """Fill in the table and the modules where the page marks their place."""
    return markdown.replace(TABLE, table()).replace(MODULES, modules()) if TABLE in markdown else markdown


def table() -> str:
    """One row for each registered algorithm."""
    rows = ["| name | family | paper | provenance | unchanged Flower clients |", "|---|---|---|---|---|"]
    for name, policy in POLICIES.items():
        about = about_of(policy)
        clients = "no" if about.flower is None else ", ".join(f"with `{k} = {v}`" for k, v in about.flower.items())
        rows.append(f"| `{name}` | {about.family} | {about.paper} | {about.provenance} | {clients or 'yes'} |")
    return "\n".join(rows)


def modules() -> str:
    """A directive for each module of an algorithm, in the order of the registry."""
    return "\n\n".join(f"::: {module}" for module in dict.fromkeys(each.__module__ for each in POLICIES.values()))
