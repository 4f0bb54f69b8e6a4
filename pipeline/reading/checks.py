"""What makes a row an event, and what to say of one that is none."""

from __future__ import annotations

import polars as pl

#: What makes a column's value wrong, checked in this order: column, condition of being right, reason.
_CHECKS: tuple[tuple[str, pl.Expr, str], ...] = (
    ("user", pl.col("user").cast(pl.String).str.len_bytes() > 0, "user is missing (or is no integer)"),
    ("time", pl.col("time").is_not_null(), "time cannot be read"),
    ("latitude", pl.col("latitude").is_finite(), "latitude is not a finite number"),
    ("latitude", pl.col("latitude").is_between(-90, 90), "latitude out of range"),
    ("longitude", pl.col("longitude").is_finite(), "longitude is not a finite number"),
    ("longitude", pl.col("longitude").is_between(-180, 180), "longitude out of range"),
    ("place", pl.col("place").str.len_bytes() > 0, "place is empty"),
)


def sound_rows(events: pl.DataFrame) -> pl.Series:
    """Which rows of a parsed frame are events: nothing missing, coordinates finite and in range, no ``problem``."""
    checks = []
    for column in events.columns:
        if column == "problem":
            checks.append(pl.col(column).is_null())
        elif column in ("latitude", "longitude"):
            limit = 90 if column == "latitude" else 180
            checks.append(pl.col(column).is_between(-limit, limit))
        elif events.schema[column] == pl.String:
            checks.append(pl.col(column).str.len_bytes() > 0)
        else:
            checks.append(pl.col(column).is_not_null())
    return events.select(sound=pl.all_horizontal(checks).fill_null(False))["sound"]


def without_position() -> pl.Expr:
    """What is wrong with rows at zero latitude or longitude, which devices report when they know none."""
    at_zero = (pl.col("latitude") == 0) | (pl.col("longitude") == 0)
    return pl.when(at_zero).then(pl.lit("a coordinate is zero: no position"))


def reasons(events: pl.DataFrame) -> list[str]:
    """Say of each row of `events` that is not sound what is wrong with it first."""
    reason = pl.lit("unknown")
    for column, is_right, text in reversed(_CHECKS):
        if column in events.columns:
            reason = pl.when(is_right.fill_null(False)).then(reason).otherwise(pl.lit(text))
    if "problem" in events.columns:
        reason = pl.coalesce("problem", reason)
    return events.select(reason=reason)["reason"].to_list()
