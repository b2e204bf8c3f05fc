"""Numbers as tables, captions and reports write them."""


def percent(share: float, decimals: int | None = None) -> str:
    """A share in percent, as short as it can be or with so many decimals.

    >>> percent(0.925), percent(0.5, 1)
    ('92.5 %', '50.0 %')
    """
    return f"{100 * share:g} %" if decimals is None else f"{100 * share:.{decimals}f} %"


def amount(value: float) -> str:
    """Three digits, or all before the point of a larger number.

    >>> amount(0.12345), amount(14.0), amount(12345.6)
    ('0.123', '14.0', '12,346')
    """
    return f"{value:#.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


def megabytes(size: float) -> str:
    """A number of bytes, in megabytes."""
    return amount(size / 1e6)
