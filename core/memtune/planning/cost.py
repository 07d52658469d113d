"""What training costs: the price of GPUs over the speed that they reach, in dollars per million tokens."""

from __future__ import annotations

from math import floor, isfinite, log10

MILLION = 1_000_000
MOST_DOLLARS = 1_000_000
_HOUR_SECONDS = 3600
# From here on cents are small change; below a dollar they are not enough.
_WHOLE_DOLLARS = 100
_DIGITS = 3
# What is kept of a cost: more digits than any prediction or measurement of speed has.
_KEPT_DIGITS = 6


def per_million_tokens(gpu_hour_price: float, gpus: int, tokens_per_second: float) -> float | None:
    """Dollars per million tokens of so many GPUs at one price each; None where the speed is not known."""
    if tokens_per_second <= 0:
        return None
    cost = gpu_hour_price * gpus / _HOUR_SECONDS * MILLION / tokens_per_second
    return float(f"{cost:.{_KEPT_DIGITS}g}")


def dollars(amount: float) -> str:
    """``$1,234``, ``$2.50``, ``$0.0417``: three digits at least."""
    if amount >= _WHOLE_DOLLARS:
        return f"${amount:,.0f}"
    rounded = float(f"{amount:.{_DIGITS}g}")
    if not 0 < rounded < 1:
        return f"${amount:.2f}"
    return f"${rounded:.{_DIGITS - 1 - floor(log10(rounded))}f}"


def read_prices(text: str) -> dict[str, float]:
    """The prices in ``NAME=DOLLARS,NAME=DOLLARS``; raise ValueError at the first that is none, or is given twice."""
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (each.strip() for each in part.partition("="))
        if not name or not number:
            raise ValueError(f"{part.strip() or repr(text)} is no price; write NAME=DOLLARS, like h100-80gb=2.5")
        if name in prices:
            raise ValueError(f"{name} has two prices; leave one out")
        prices[name] = _price(number, name)
    return prices


def _price(text: str, name: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = float("nan")
    if not isfinite(price) or not 0 < price <= MOST_DOLLARS:
        raise ValueError(f"{name}={text}: a price is a number above 0 and at most {MOST_DOLLARS}, like 2.5")
    return price
