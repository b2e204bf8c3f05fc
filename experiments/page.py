"""The page of all reproductions, made from their files of measurements alone: what does not reproduce comes first."""

from collections.abc import Mapping, Sequence

from experiments.claims import RULE, Judged, Verdict, judged
from experiments.measurements import Measurement
from experiments.reproduction import Reproduction
from experiments.tables import claim_lines, markdown_table, part_lines

Found = Mapping[str, Sequence[Measurement]]
"""The measurements of each reproduction, by its name."""
ORDER: tuple[Verdict, ...] = ("does not reproduce here", "same order, smaller gap", "agrees", "not yet run")


def page(reproductions: Sequence[Reproduction], found: Found) -> str:
    """The whole page as Markdown."""
    verdicts = {each.name: [judged(claim, found[each.name]) for claim in each.claims] for each in reproductions}
    parts = [
        "# What reproduces, and what does not",
        "This page is written by `offbeat reproduce NAME --full --out docs` from the files in `docs/results/`, a line "
        "per run; edit neither by hand. Published numbers stand beside ours, with the table or figure they are from.",
        counts(reproductions, verdicts),
        overview(reproductions, verdicts),
        "**The rule.** " + RULE,
        "Numbers are medians over seeds, in brackets their 95 % bootstrap intervals; accuracies are in %.",
    ]
    parts += [section(each, found[each.name], verdicts[each.name]) for each in reproductions]
    return "\n\n".join(parts) + "\n"


def counts(reproductions: Sequence[Reproduction], verdicts: Mapping[str, Sequence[Judged]]) -> str:
    """How many claims of each paper have which verdict, as a table."""
    lines = [["claims of", *ORDER]]
    for each in reproductions:
        found = [one.verdict for one in verdicts[each.name]]
        lines.append([f"[{each.name}](#{each.name})", *(str(found.count(verdict)) for verdict in ORDER)])
    return markdown_table(lines)


def overview(reproductions: Sequence[Reproduction], verdicts: Mapping[str, Sequence[Judged]]) -> str:
    """All claims by their verdicts, those that do not reproduce first."""
    lines = []
    for verdict in ORDER:
        these = [each for each in reproductions if any(one.verdict == verdict for one in verdicts[each.name])]
        if not these:
            continue
        lines.append(f"**{verdict.capitalize()}**\n")
        if verdict == "not yet run":
            lines.append("Claims of " + ", ".join(f"[{each.name}](#{each.name})" for each in these) + ": see there.\n")
            continue
        for each in these:
            lines += _overview_lines(each, verdicts[each.name], verdict)
        lines.append("")
    return "\n".join(lines).rstrip()


def _overview_lines(reproduction: Reproduction, verdicts: Sequence[Judged], verdict: str) -> list[str]:
    """The claims of a reproduction with this verdict, a line each, but for those that are some of many."""
    found = [one for one in verdicts if one.verdict == verdict]
    lines = [
        f"- *{reproduction.name}*, {one.claim.where}: {one.claim.says}. "
        f"Published: {one.claim.published}; here: {one.measured}."
        for one in found
        if not one.claim.one_of
    ]
    for many in dict.fromkeys(one.claim.one_of for one in found if one.claim.one_of):
        some = sum(one.claim.one_of == many for one in found)
        whole = sum(one.claim.one_of == many for one in verdicts if one.verdict != "not yet run")
        lines.append(f"- *{reproduction.name}*: {some} of {whole} {many}; [they are here](#{reproduction.name}).")
    return lines


def figure_file(reproduction: Reproduction) -> str:
    """The name of the figure of a reproduction."""
    return f"reproduction-{reproduction.name}.png"


def section(reproduction: Reproduction, measurements: Sequence[Measurement], verdicts: Sequence[Judged]) -> str:
    """One reproduction: its claims, its tables, and what is not yet run."""
    parts = [f"## {reproduction.name}", f"**{reproduction.title}.** {reproduction.paper}.", reproduction.about]
    if lines := reproduction.in_short(measurements):
        parts.append("**In short**\n\n" + markdown_table(lines))
    if remark := reproduction.remark(measurements):
        parts.append(remark)
    if verdicts:
        parts.append(markdown_table(claim_lines(verdicts)))
    if any(one.estimate for one in verdicts):
        parts.append(f"![published beside measured, claim by claim]({figure_file(reproduction)})")
    measured = {each.part for each in measurements}
    parts += [
        f"**{part}**\n\n" + markdown_table(part_lines(reproduction, part, measurements))
        for part in reproduction.parts
        if part in measured
    ]
    parts.append(unfinished(reproduction, measurements))
    return "\n\n".join(parts)


def missing(reproduction: Reproduction, measurements: Sequence[Measurement]) -> dict[str, list[str]]:
    """For each part the methods that do not have all their seeds."""
    count: dict[tuple[str, str], int] = {}
    for each in measurements:
        count[each.part, each.method] = count.get((each.part, each.method), 0) + 1
    lacking = {
        part: [m for m in reproduction.methods(part) if count.get((part, m), 0) < reproduction.seeds]
        for part in reproduction.parts
    }
    return {part: methods for part, methods in lacking.items() if methods}


def unfinished(reproduction: Reproduction, measurements: Sequence[Measurement]) -> str:
    """What is not yet run, and the command that runs it."""
    lacking = missing(reproduction, measurements)
    command = (
        f"`offbeat reproduce {reproduction.name} --full --out docs{' --data DIRECTORY' if reproduction.needs else ''}`"
    )
    if not lacking:
        return f"Made by {command}; all {reproduction.seeds} seeds of every method are there."
    lines = [f"**Not yet run** (or not with all {reproduction.seeds} seeds); {command} runs it:\n"]
    for part, methods in lacking.items():
        whole = len(methods) == len(reproduction.methods(part))
        lines.append(f"- {part}: {'all methods' if whole else ', '.join(methods)}")
    return "\n".join(lines)
