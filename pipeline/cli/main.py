"""The ``penstock`` command, which parses arguments, runs a subcommand, and turns errors into messages and exit
codes.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from penstock.pipeline import DONE, FAILED, INTERRUPTED, STOPPED, WRONG_USE
from penstock.pipeline.cli.attack import ATTACK, AUDIT
from penstock.pipeline.cli.choose import CHOOSE
from penstock.pipeline.cli.command import Command, print_json
from penstock.pipeline.cli.data import CONVERT, GENERATE, INIT, LEARN
from penstock.pipeline.cli.experiment import EXPERIMENT
from penstock.pipeline.cli.inspect import EXPORT, LIST, REPORT, SCHEMA, STATUS, VALIDATE, VERIFY
from penstock.pipeline.cli.key import KEY
from penstock.pipeline.cli.ledger import LEDGER
from penstock.pipeline.cli.plan import PLAN
from penstock.pipeline.cli.run import DEMO, RUN

#: Function of bash, and of zsh that reads such functions, that offers words; files where there are none.
_BASH = """_penstock() {
  local words="%s"
  case "${COMP_CWORD}:${COMP_WORDS[1]}" in
    1:*) ;;
%s
    *) words="" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _penstock penstock"""


def _configure_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help='in bash: eval "$(penstock completion bash)"')


def _completion(arguments: argparse.Namespace) -> int:
    """Print a shell completion script that offers the options listed in each command's ``--help``."""
    options: dict[str, list[str]] = {}
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser(name, add_help=False)
        command.configure(parser)
        options[name] = ["--json", "--help", *dict.fromkeys(re.findall(r"--[a-z][a-z-]+", parser.format_usage()))]
    if arguments.shell == "fish":
        for name, words in options.items():
            print(f'complete -c penstock -n __fish_use_subcommand -a {name} -d "{COMMANDS[name].help}"')
            for word in words:
                print(f"complete -c penstock -n '__fish_seen_subcommand_from {name}' -l {word[2:]}")
        return DONE
    if arguments.shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    cases = "\n".join(f'    *:{name}) words="{" ".join(words)}" ;;' for name, words in options.items())
    print(_BASH % (" ".join(COMMANDS), cases))
    return DONE


#: Subcommands by name, in the order of ``--help``.
COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        *(DEMO, INIT, RUN, VALIDATE, EXPERIMENT, CHOOSE, PLAN, ATTACK, AUDIT),
        *(LIST, SCHEMA, CONVERT, GENERATE, LEARN, STATUS, REPORT, EXPORT, VERIFY, KEY, LEDGER),
        Command("completion", "print what completes commands in a shell", _configure_completion, _completion),
    )
}


def script() -> NoReturn:
    """Run ``penstock`` as a script, and exit with the code that `main` returns."""
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    words, beam_options = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Release counts of people from a stream of location events, and keep the books on what it cost.",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, command in COMMANDS.items():
        sub = subparsers.add_parser(name, help=command.help, description=command.help)
        sub.add_argument("--json", action="store_true", help="print JSON for machines")
        if name in words[:1]:
            command.configure(sub)  # imports what declares its options
    if words[:1] == ["--version"]:
        from importlib import metadata

        try:
            print("penstock", metadata.version("penstock"))
        except metadata.PackageNotFoundError:
            print("penstock (not installed)")
        return DONE
    arguments = parser.parse_args(words)
    arguments.beam_options = beam_options
    from penstock.mechanisms.core.plugin import (
        BudgetExceeded,
        ConfigError,
        ParameterError,
        PenstockError,
        UnknownPlugin,
        describe_plugin_error,
    )

    try:
        return COMMANDS[arguments.command].execute(arguments)
    except BrokenPipeError:
        # The reader of the pipe is gone; Python must not flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except BaseException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            resume_hint = ": continue with --resume" if arguments.command == "run" else ""
            return _fail(arguments, KeyboardInterrupt(f"interrupted{resume_hint}"), INTERRUPTED)
        if isinstance(error, (ConfigError, ParameterError, UnknownPlugin)):
            return _fail(arguments, error, WRONG_USE)
        if isinstance(error, BudgetExceeded):
            return _fail(arguments, error, STOPPED)
        if isinstance(error, (PenstockError, OSError, MemoryError)):
            return _fail(arguments, error, FAILED)
        if place := describe_plugin_error(error):
            cure = "penstock.testing tries a step of a chain outside of a run, with the whole traceback"
            return _fail(arguments, PenstockError(f"{place} ({cure})"), FAILED)
        raise


def _fail(arguments: argparse.Namespace, error: BaseException, code: int) -> int:
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    problems = getattr(error, "problems", (text,))
    if getattr(arguments, "json", False):
        print_json({"exit_code": code, "error": type(error).__name__, "problems": list(problems)})
    for problem in problems:
        print(f"penstock: {problem}", file=sys.stderr)
    return code


if __name__ == "__main__":
    script()
