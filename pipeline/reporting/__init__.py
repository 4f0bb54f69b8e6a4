"""The page that every run writes: one HTML file with what was released, what it cost and what it is worth."""

from pipeline.reporting.page import write_report

__all__ = ["write_report"]
