"""Tables for papers: what a command prints for a terminal, as Markdown, LaTeX (booktabs) or CSV."""

import csv
import io
from typing import Literal, get_args

from rich.table import Table
from rich.text import Text

from offbeat.core.errors import InvalidInput

Format = Literal["markdown", "latex", "csv"]
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "²": r"\textsuperscript{2}",
    "†": r"$\dagger$",
    "∞": r"$\infty$", "≥": r"$\geq$", "≤": r"$\leq$",
}  # fmt: skip
"""What LaTeX needs for characters that it would not print."""


def table_text(table: Table, form: str) -> str:
    """A table of rich in another format, with its caption below it, except in CSV.

    >>> table = Table("name", "share", caption="Two of them.")
    >>> table.add_row("a_b", "50 %")
    >>> print(table_text(table, "markdown"))
    | name | share |
    |---|---|
    | a_b | 50 % |
    <BLANKLINE>
    Two of them.
    <BLANKLINE>
    """
    if form not in get_args(Format):
        raise InvalidInput(f"format {form!r}: must be one of {', '.join(get_args(Format))}")
    head = [_plain(column.header) for column in table.columns]
    rows = [
        list(row) for row in zip(*([_plain(cell) for cell in column.cells] for column in table.columns), strict=True)
    ]
    caption = _plain(table.caption or table.title or "")
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([head, *rows])
        return text.getvalue()
    if form == "markdown":
        lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
        body = "\n".join(f"|{'|'.join(line)}|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)
        return f"{body}\n\n{caption}\n" if caption else f"{body}\n"
    body = "\n".join(" & ".join(_latex(cell) for cell in row) + r" \\" for row in rows)
    first = " & ".join(_latex(cell) for cell in head) + r" \\"
    columns = "l" + "r" * (len(head) - 1)
    tabular = (
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{first}\n\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
    )
    if not caption:
        return tabular
    return f"\\begin{{table}}\n\\centering\n{tabular}\\caption{{{_latex(caption)}}}\n\\end{{table}}\n"


def _plain(cell: object) -> str:
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return " ".join(text.split())


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
