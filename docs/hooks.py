"""For the site: the page of algorithms is made from the registry."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import about_of, compatibility_of

TABLE, MODULES = "<!-- table of algorithms -->", "<!-- modules of algorithms -->"


def on_page_markdown(markdown: str, *, page: Any, **kwargs: Any) -> str:
    """Fill in the table and the modules where the page marks their place."""
    return markdown.replace(TABLE, table()).replace(MODULES, modules()) if TABLE in markdown else markdown


def table() -> str:
    """One row for each registered algorithm."""
    rows = [
        "| name | family | paper | provenance | versions need | server memory, in models | also needs | Flower |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, policy in POLICIES.items():
        about, fits = about_of(policy), compatibility_of(policy)
        uses = "sums" if fits.sums_only else "individual updates"
        cells = (
            about.family,
            about.paper,
            about.provenance,
            uses,
            fits.server_memory,
            ", ".join(fits.needs),
            fits.flower,
        )
        rows.append(f"| `{name}` | {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def modules() -> str:
    """A directive for each module of an algorithm, in the order of the registry."""
    return "\n\n".join(f"::: {module}" for module in dict.fromkeys(each.__module__ for each in POLICIES.values()))
