"""Pages of reports: their text, the data of their scripts, their warnings."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from penstock.pipeline.reporting.page import write_report


def page(folder: Path) -> str:
    """The report of a run folder, written again."""
    return write_report(folder)[0].read_text(encoding="utf-8")


def data(text: str) -> Any:
    """Parse the data that a page's scripts read."""
    (actual,) = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(actual)


class Text(HTMLParser):
    """Visible text and the names of all elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words, self.names, self.inside = [], [], []
        self.feed(text)

    def handle_starttag(self, name: str, attributes: Any) -> None:
        self.names.append(name)
        self.inside.append(name)

    def handle_endtag(self, name: str) -> None:
        while self.inside and self.inside.pop() != name:
            pass

    def handle_data(self, words: str) -> None:
        if not {"script", "style"} & set(self.inside[-1:]):
            self.words.append(words)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def warnings_of(text: str) -> str:
    """The text of a page's warnings."""
    (actual,) = re.findall(r'<ul class="warnings".*?</ul>', text, re.DOTALL)
    return Text(actual).text
