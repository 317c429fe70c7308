"""Numbers as people read them. Used by the live view, the report and the doctor; pure."""

from collections.abc import Mapping

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity(value: float) -> str:
    """Three significant digits, thousands as k, M, G, T: 0.0123, 4.57, 12.3k."""
    size = abs(value)
    for factor, prefix in PREFIXES:
        if size >= 0.9995 * factor * (10 if factor == 1e3 else 1):
            return f"{value / factor:.3g}{prefix}"
    if size >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if size == 0 or size >= 1e-4 else f"{value:.1e}"


def duration(seconds: float) -> str:
    """0:42, 12:05, 3:07:15, 2 d 4 h."""
    whole = max(0, round(seconds))
    minutes, hours = whole // 60, whole // 3600
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours}:{minutes % 60:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}"


def size(num_bytes: float) -> str:
    """Bytes in binary units: 512 MiB, 1.5 GiB."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:.0f} bytes"


def first_of(metrics: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """The value of the first of these metrics that is reported."""
    return next((metrics[name] for name in names if name in metrics), None)
