"""The site's reference of the command line holds every command and every option, as ``--help`` prints them."""

from __future__ import annotations

import re

import pytest

from penstock.pipeline.cli.main import COMMANDS, main
from tests.tools.checkout import script

LONG, ACTION = r"(?<![\w-])--[a-z][a-z-]+", r"^    ([a-z]+)(?: {2,}|$)"


PAGE = script("docs/website.py").command_line()
CHAPTERS = dict(re.findall(r"^##+ penstock ([\w ]+)\n\n```text\n(.*?)```$", PAGE, re.M | re.S))


def help_of(words, capsys):
    with pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    return capsys.readouterr().out


def test_every_command_has_a_chapter():
    assert [words for words in CHAPTERS if " " not in words] == list(COMMANDS)


@pytest.mark.parametrize("words", CHAPTERS)
def test_a_chapter_has_the_options_that_help_shows(words, capsys):
    shown = help_of(words, capsys)
    assert set(re.findall(LONG, shown)) == set(re.findall(LONG, CHAPTERS[words]))
    below = [chapter.rpartition(" ") for chapter in CHAPTERS]
    below = {action for before, _, action in below if before.removesuffix(" CONFIG") == words}
    assert below == set(re.findall(ACTION, shown, re.M))
