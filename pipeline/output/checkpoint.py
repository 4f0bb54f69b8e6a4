"""Identify the run in a folder, write checkpoints and resume from the latest one."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.plugin import ConfigError, DataError, StateVersionError
from penstock.mechanisms.core.state import State, decode_state, encode_state
from penstock.pipeline import atomic
from penstock.pipeline.config.canonical import resolved
from penstock.pipeline.config.plan import Plan, ledger_path, make_plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.config.sections import check_local
from penstock.pipeline.output import registration
from penstock.pipeline.output.files import parts_folder
from penstock.pipeline.output.manifest import key_mismatch
from penstock.pipeline.releasing import account, traces

# The checkpoint of a stream, and the mark that says which run a folder holds.


FORMAT = ("checkpoint", 3)
MARK = registration.MARK


def path(plan: Plan) -> Path:
    """Return the path of a run's checkpoint."""
    return plan.folder / "operator" / "checkpoint" / "latest"


def write(plan: Plan, state: State) -> int:
    """Replace the checkpoint durably and return its size. Everything it covers must already be durable."""
    data = encode_state(*FORMAT, state)
    atomic.write_durably(path(plan), data)
    return len(data)


def read(plan: Plan) -> State | None:
    """Read a stream's checkpoint. Returns None if there is none, and raises `StateVersionError` if another version
    wrote it.
    """
    return decode_state(path(plan).read_bytes(), *FORMAT) if path(plan).exists() else None


def account_key(number: int, shard: int) -> str:
    """Return the name under which a checkpoint stores the state of one shard of an accountant."""
    return f"account-{number:03d}-{shard:06d}"


def run_digest(plan: Plan) -> str:
    """Return the SHA-256 digest of everything that determines a run's files, except the key because it may be
    rotated.
    """
    return hashlib.sha256(json.dumps(_identity(plan), sort_keys=True).encode()).hexdigest()


def public_name(plan: Plan) -> str:
    """Return a digest that identifies a run to its sinks without revealing the key, nonce or configuration."""
    return hashlib.sha256(f"sink {plan.keys.run_id or run_digest(plan)}".encode()).hexdigest()


def _identity(plan: Plan) -> dict[str, Any]:
    """Return the settings that determine a run's files."""
    config = resolved(plan.config, secrets=True)
    config.pop("output")
    return config


#: Keys that a continued run may change: how fast a stream is replayed, how often its state is written down, and what
#: is said of it.
MAY_DIFFER = ("source.speed", "source.checkpoint", "allow_empty", "typical_count")


def differing_keys(begun: Any, now: Any, path: str = "") -> list[str]:
    """Return the key paths at which two configurations differ, ignoring keys that do not affect a run's files.

    >>> differing_keys({"seed": 3, "mechanism": [{"epsilon": 1}]}, {"mechanism": [{"epsilon": 2}]})
    ['mechanism[0].epsilon', 'seed']
    """
    if isinstance(begun, dict) and isinstance(now, dict):
        inner = [(f"{path}.{key}".lstrip("."), begun.get(key), now.get(key)) for key in sorted({*begun, *now})]
    elif isinstance(begun, list) and isinstance(now, list) and len(begun) == len(now):
        inner = [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(begun, now))]
    else:
        return [] if begun == now or path in MAY_DIFFER else [path]
    return [key for name, before, after in inner for key in differing_keys(before, after, name)]


def nonce_of_run(config: RunConfig, folder: Path, resume: bool) -> bytes:
    """Return a deployment's nonce. A new one is drawn unless a run is resumed (`registration.resume_run`).

    Empty in a simulation, whose seed decides everything, and where there is no run to go on with (`check_same`).
    """
    if config.mode == "deployment" and not resume:
        return secrets.token_bytes(32)
    return b"" if config.mode == "simulation" else bytes.fromhex(_read_mark(folder).get("nonce", ""))


def plan_in_folder(config: RunConfig, folder: Path | None = None, **changes: Any) -> Plan:
    """Plan a run for a third-party pipeline. A deployment is also begun or resumed in its folder.

    Parameters
    ----------
    config
        The configuration.
    folder
        Where the run writes; None: the configuration's ``output.path``.
    changes
        Other fields of the plan.

    Raises
    ------
    ConfigError
        If the folder holds another run, or the ledger belongs to another event source.
    ParameterError
        If the folder is on an object store.
    """
    check_local("folder", str(folder or ""))
    folder = Path(folder or config.output.path)
    resumes = (folder / "operator" / MARK).exists()
    plan = make_plan(config, folder, nonce_of_run(config, folder, resumes), **changes)
    if config.mode == "deployment" and resumes:
        check_same(plan)
        _print_notice(registration.resume_run(plan))
    elif config.mode == "deployment":
        _print_notice(begin(plan))
    return plan


def _print_notice(notice: str | None) -> None:
    if notice:
        logging.getLogger("penstock").warning(notice)


def begin(plan: Plan) -> str | None:
    """Record the run durably in its folder with its nonce, key and configuration, and register it (`register_run`).

    The first write wins: no second run in the folder can draw another nonce. Return what to say before it starts.
    """
    path = plan.folder / "operator" / MARK
    if path.exists():
        raise folder_taken_error(plan)
    mark: dict[str, Any] = {
        "run": run_digest(plan),
        "configuration": _identity(plan),
        "key": list(plan.keys.noise_key.fingerprints),
        "nonce": plan.keys.noise_key.nonce.hex(),
    }
    if plan.on_points:
        mark["traces"] = traces.VERSION

    def write_mark() -> None:
        """Mark the folder as belonging to the run before the run is registered in the ledger."""
        if not atomic.write_first(path, _encode(mark)):
            raise folder_taken_error(plan)

    return registration.register_run(plan, write_mark)


def folder_taken_error(plan: Plan) -> ConfigError:
    """Return the error for a folder that holds another run, suggesting `--resume` if that run is unfinished."""
    begun = (plan.folder / "operator" / MARK).exists()
    resumes = "continue it with --resume, or " if begun and finished(plan) is None else ""
    return ConfigError((f"output.path: {plan.folder} holds an earlier run; {resumes}choose another folder",))


def _encode(mark: dict[str, Any]) -> bytes:
    return json.dumps(mark, indent=2, sort_keys=True).encode()


def is_deployment(folder: Path) -> bool:
    """Return whether a folder holds a deployment, which must not be replaced."""
    return bool(_read_mark(folder).get("nonce"))


def check_same(plan: Plan) -> None:
    """Raise `ConfigError` or `StateVersionError` unless the run in the folder has the same configuration and
    version.
    """
    if not (begun := _read_mark(plan.folder)):
        raise ConfigError((f"--resume: {plan.folder} holds no run to continue; leave --resume out to start one",))
    if "configuration" not in begun or (plan.config.mode == "deployment" and not begun.get("nonce")):
        raise StateVersionError(
            f"--resume: an earlier version of penstock began the run in {plan.folder}; finish it with that version, or "
            "start again in another folder"
        )
    if begun["run"] != run_digest(plan) and (keys := differing_keys(begun["configuration"], _identity(plan))):
        where = f"{', '.join(keys[:8])}{', …' if len(keys) > 8 else ''}"
        text = f"has another configuration ({where}); continue it with the one it began with"
        raise ConfigError((f"--resume: the run in {plan.folder} {text}",))
    if plan.on_points and begun.get("traces", 1) != traces.VERSION:
        raise StateVersionError(
            f"--resume: another version of penstock began the run in {plan.folder} and finds other points in the same "
            "rows; finish it with that version, or start it again without --resume"
        )
    if reason := key_mismatch(plan, begun["key"]):
        raise ConfigError((f"--resume: the run in {plan.folder} {reason}",))
    if plan.keys.run_id and not registration.is_registered(plan):
        if any(plan.folder.rglob("*.parquet")) or any(path(plan).parent.rglob("*")):
            raise DataError(
                f"{ledger_path(plan)}: lacks what the run in {plan.folder} has entered: it was cut, an older copy "
                "was put in its place, or output.ledger or output.ledger_source is not what the run began with"
            )
        if plan.on_points:  # whose noise the nonce of the mark decides: a copy of the folder may have drawn it
            raise DataError(
                f"{ledger_path(plan)}: does not know the run in {plan.folder}: it was killed before it was "
                "registered, the folder is a copy, or output.ledger or output.ledger_source is not what the run "
                "began with; name the ledger that it began with, or begin another run in another folder"
            )
    if list(plan.keys.noise_key.fingerprints) != begun["key"]:
        atomic.write_durably(
            plan.folder / "operator" / MARK, _encode(begun | {"key": list(plan.keys.noise_key.fingerprints)})
        )


def _read_mark(folder: Path) -> dict[str, Any]:
    """Read a folder's run mark. Returns an empty dictionary if the folder does not hold a run."""
    return dict(atomic.read_json(folder / "operator" / MARK, {}))


# Continue a run that was killed or interrupted, in the folder that it left.


RESUME_HINT = "--resume goes on from here"


def prepare(plan: Plan, check_engine: Callable[[Plan], None] | None = None) -> dict[str, Any] | None:
    """Check that the folder holds a run with the same configuration and prepare to resume it.

    Releases and charges on disk stay; all else is made again, by a stream from its latest checkpoint on. Where an
    engine keeps that, ``check_engine`` raises an error if it cannot go on from there, and files are left alone: a job
    of the run may still be writing them. Return the operator's manifest if the run had finished already.
    """
    check_same(plan)
    if check_engine is None:
        for temporary in plan.folder.rglob(".*.tmp"):
            temporary.unlink()
    if (manifest := finished(plan)) is not None:
        return manifest
    if check_engine is not None:
        check_engine(plan)
    _print_notice(registration.resume_run(plan))
    if check_engine is not None:
        return None
    if plan.streaming:
        roll_back(plan)
    else:
        for side in ("public", "operator"):
            for kind in (plan.folder / side / "parts").glob("*"):
                if kind.name != "releases":
                    shutil.rmtree(kind)
    return None


def finished(plan: Plan) -> dict[str, Any] | None:
    """Return a completed run's operator manifest, or None if the run is incomplete."""
    manifest: dict[str, Any] | None = atomic.read_json(plan.folder / "operator" / "manifest.json")
    return manifest if manifest and manifest["exit"]["ended"] else None


def roll_back(plan: Plan) -> None:
    """Restore a stream's folder to its checkpoint. Releases and true counts are kept because the first write wins."""
    saved, accounted = read(plan), dict[tuple[int, int], int]()
    if saved is not None:  # what this code cannot read is refused before anything changes
        plan.release_loop().released(saved["release"].tobytes())
        for number, (accountant, shards) in enumerate(zip(plan.config.accountants, plan.shards)):
            for shard in range(len(shards)):
                flat = decode_state(saved[account_key(number, shard)].tobytes(), *account.FORMAT)
                account.accountant_state(accountant, flat)
                accounted[number, shard] = int(flat["accounted"])
    for kind in ("accounts", "accounts_public"):
        for path in parts_folder(plan, kind).glob("*.parquet"):
            number, first, shard = map(int, path.stem.split("-"))
            if first > accounted.get((number, shard), 0):
                path.unlink()
    for path in parts_folder(plan, "rejects").glob("*.jsonl"):
        if saved is None or int(path.stem) >= int(saved["number"]):
            path.unlink()
