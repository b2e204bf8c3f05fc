"""Executes a notebook without Jupyter: `python tests/notebooks.py NOTEBOOK` writes its outputs into it."""

import ast
import base64
import json
import sys
from pathlib import Path
from typing import Any


def execute(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of its code cells, run from top to bottom."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            shown = _run("".join(cell["source"]), names, f"{path.name}, cell {number}")
            cell["execution_count"] = number
            cell["outputs"] = [] if shown is None else [_output(shown, number)]
    return notebook


def _run(source: str, names: dict[str, Any], title: str) -> Any:
    """Execute a cell and return the value of its last line, if that is an expression."""
    *statements, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        statements.append(last)
    exec(compile(ast.Module(statements, []), title, "exec"), names)
    return eval(compile(ast.Expression(last.value), title, "eval"), names) if isinstance(last, ast.Expr) else None


def _output(value: Any, number: int) -> dict[str, Any]:
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()).decode()
    if hasattr(value, "_repr_html_") and (html := value._repr_html_()):
        data["text/html"] = html.splitlines(keepends=True)
    return {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(json.dumps(execute(Path(name)), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
