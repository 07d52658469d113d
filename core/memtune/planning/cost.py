"""Cost of training: dollars per million tokens, from GPU prices and speed."""

from __future__ import annotations

from math import floor, isfinite, log10

MILLION = 1_000_000
MOST_DOLLARS = 1_000_000
_HOUR_SECONDS = 3600
# From this amount on, cents are left out.
_WHOLE_DOLLARS = 100
_DIGITS = 3
# Digits kept of a cost: more than any speed has.
_KEPT_DIGITS = 6


def per_million_tokens(gpu_hour_price: float, gpus: int, tokens_per_second: float) -> float | None:
    """Dollars per million tokens for a number of equally priced GPUs; None if the speed is unknown."""
    if tokens_per_second <= 0:
        return None
    cost = gpu_hour_price * gpus / _HOUR_SECONDS * MILLION / tokens_per_second
    return float(f"{cost:.{_KEPT_DIGITS}g}")


def dollars(amount: float) -> str:
    """Format as ``$1,234``, ``$2.50`` or ``$0.0417``: at least three digits."""
    if amount >= _WHOLE_DOLLARS:
        return f"${amount:,.0f}"
    rounded = float(f"{amount:.{_DIGITS}g}")
    if not 0 < rounded < 1:
        return f"${amount:.2f}"
    return f"${rounded:.{_DIGITS - 1 - floor(log10(rounded))}f}"


def read_prices(text: str) -> dict[str, float]:
    """Parse ``NAME=DOLLARS,NAME=DOLLARS``; raise ValueError for the first invalid or duplicate entry."""
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
