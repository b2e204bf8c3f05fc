"""What all studies share: claims and verdicts, running and measuring, tables, pages and the command line.

Beyond the public names of `offbeat` it uses the statistics and plot style of `offbeat.results`, and the run cache,
scheduler and search of `offbeat.comparison`, so that all studies share finished runs.
"""

from typing import Any

Table = dict[str, Any]
"""Settings, or changes to them, as a TOML file would have them."""
