"""Error messages of every kind of invalid configuration, with line and key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.evaluation.utility import METRICS as KNOWN_METRICS
from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.build import fields_of
from penstock.pipeline.config.run import RunConfig, load, loads
from penstock.pipeline.config.sections import Output
from penstock.pipeline.counting.bounding import Bounding
from penstock.pipeline.spaces.base import SPACES
from penstock.pipeline.spaces.grid import Grid
from penstock.pipeline.windows.base import WINDOWS
from penstock.pipeline.windows.fixed import Fixed

RIGHT = """\
name: example
mode: simulation
seed: 7
source:
  type: csv
  path: events.csv
  from: 2008-05-19T00:00:00Z
  until: 2008-05-20T00:00:00Z
  columns: {user: cab}
space: {type: grid, south: 37.7, north: 37.8, west: -122.5, east: -122.3, rows: 4, columns: 4}
windows:
  type: fixed
  size: 1h
bounding: {max_cells: 2, keep: hash}
landmarks:
  windows: [8, 9]
mechanism:
  - type: landmark_uniform
    epsilon: 1.0
accountants: [{type: landmark_budget}]
utility: [mae]
output:
  path: runs/example
"""


def keys(cls: type, *before: str) -> str:
    """Keys of a section as a message lists them."""
    return ", ".join((*before, *(field.key for field in fields_of(cls))))


METRICS = ", ".join(KNOWN_METRICS)
ROOT_KEYS = keys(RunConfig)
BOUNDING_KEYS = keys(Bounding)
WINDOW_TYPES = ", ".join(WINDOWS.names())
LOOKED = "(looked for from the working directory and beside the configuration)"
FIXED_KEYS = keys(Fixed, "type")
GRID_KEYS = keys(Grid, "type")

#: What is replaced, by what, and what is said about it.
WRONG = {
    "unknown key at the top": (
        "utility: [mae]",
        "utilty: [mae]",
        [f"21: utilty: unknown key; did you mean 'utility'? (known: {ROOT_KEYS})"],
    ),
    "an object store as the folder of a run": (
        "  path: runs/example\n",
        "  path: gs://bucket/run\n",
        [
            "23: output.path: 'gs://bucket/run' is not allowed; it must be a path of a file system with locks and "
            "atomic renames (a disk, NFS), which object stores lack; output.store publishes what is public to one"
        ],
    ),
    "a delay without a stream": (
        "  path: runs/example\n",
        "  path: runs/example\n  delay: 2s\n",
        ["24: output.delay: '2s' is not allowed; it must be left out if the source is no stream"],
    ),
    "unknown key without a near one": (
        "seed: 7",
        "zzz: 7",
        [f"3: zzz: unknown key (known: {ROOT_KEYS})"],
    ),
    "misspelt required key is said once": (
        "name: example",
        "nmae: example",
        [f"1: nmae: unknown key; did you mean 'name'? (known: {ROOT_KEYS})"],
    ),
    "unknown key of a plug-in": (
        "north: 37.8",
        "nroth: 37.8",
        [f"10: space.nroth: unknown key; did you mean 'north'? (known: {GRID_KEYS})"],
    ),
    "unknown key of a section": (
        "keep: hash",
        "keeps: hash",
        [f"14: bounding.keeps: unknown key; did you mean 'keep'? (known: {BOUNDING_KEYS})"],
    ),
    "unknown key in another case": (
        "seed: 7",
        "Seed: 7",
        [f"3: Seed: unknown key; did you mean 'seed'? (known: {ROOT_KEYS})"],
    ),
    "keys as other systems call them": (
        "type: fixed\n  size: 1h",
        "type: fixed\n  Length: 1h\n  tz: UTC",
        [
            f"13: windows.Length: unknown key; did you mean 'size'? (known: {FIXED_KEYS})",
            f"14: windows.tz: unknown key; did you mean 'time_zone'? (known: {FIXED_KEYS})",
        ],
    ),
    "a key that another section calls so": (
        "keep: hash",
        "tz: 10m",
        [f"14: bounding.tz: unknown key (known: {BOUNDING_KEYS})"],
    ),
    "missing key at the top": ("name: example\n", "", ["1: name: missing; it must be text"]),
    "missing section": (
        "output:\n  path: runs/example\n",
        "",
        [f"1: output: missing; it must be a section with keys out of: {keys(Output)}"],
    ),
    "missing key of a plug-in": (
        "    epsilon: 1.0\n",
        "",
        ["18: mechanism[0].epsilon: missing; it must be given with discrete_laplace noise"],
    ),
    "missing type": (
        "type: fixed\n  size",
        "size",
        [f"12: windows.type: missing; it must be one of {WINDOW_TYPES}"],
    ),
    "unknown plug-in": (
        "type: grid",
        "type: gird",
        [f"10: space.type: 'gird' is not a known space; did you mean 'grid'? (known: {', '.join(SPACES.names())})"],
    ),
    "plug-in name is a number": (
        "type: fixed",
        "type: 5",
        [f"12: windows.type: 5 is not allowed; it must be one of {WINDOW_TYPES}"],
    ),
    "plug-in is a value": (
        "windows:\n  type: fixed\n  size: 1h",
        "windows: fixed",
        [f"11: windows: 'fixed' is not allowed; it must be a section with a type: {WINDOW_TYPES}"],
    ),
    "text for a number": (
        "epsilon: 1.0",
        "epsilon: much",
        ["19: mechanism[0].epsilon: 'much' is not allowed; it must be a number above 0 (nats)"],
    ),
    "number out of bounds": (
        "epsilon: 1.0",
        "epsilon: -1",
        ["19: mechanism[0].epsilon: -1 is not allowed; it must be a number above 0 (nats)"],
    ),
    "a budget whose noise no integer holds": (
        "epsilon: 1.0",
        "epsilon: 1e-13",
        [
            "19: mechanism[0].epsilon: 1e-13 is not allowed; "
            "it must be larger: noise has a scale of 2**-100 to 2**40 people"
        ],
    ),
    "a budget whose square is beyond all numbers": (
        "epsilon: 1.0",
        "epsilon: 1e300",
        [
            "19: mechanism[0].epsilon: 1e300 is not allowed; "
            "it must be smaller: noise has a scale of 2**-100 to 2**40 people"
        ],
    ),
    "not a number": (
        "epsilon: 1.0",
        "epsilon: .nan",
        ["19: mechanism[0].epsilon: .nan is not allowed; it must be a number above 0 (nats)"],
    ),
    "truth value for a number": (
        "epsilon: 1.0",
        "epsilon: true",
        ["19: mechanism[0].epsilon: true is not allowed; it must be a number above 0 (nats)"],
    ),
    "list for a number": (
        "epsilon: 1.0",
        "epsilon: [1, 2]",
        ["19: mechanism[0].epsilon: a list is not allowed; it must be a number above 0 (nats)"],
    ),
    "nothing for a number": (
        "epsilon: 1.0",
        "epsilon:",
        ["19: mechanism[0].epsilon: nothing is not allowed; it must be given with discrete_laplace noise"],
    ),
    "fraction for a whole number": (
        "max_cells: 2",
        "max_cells: 2.5",
        ["14: bounding.max_cells: 2.5 is not allowed; it must be a whole number at least 1"],
    ),
    "whole number out of bounds": (
        "max_cells: 2",
        "max_cells: 0",
        ["14: bounding.max_cells: 0 is not allowed; it must be a whole number at least 1"],
    ),
    "whole number too large": (
        "seed: 7",
        "seed: 99999999999999999999",
        ["3: seed: 99999999999999999999 is not allowed; it must be a whole number that fits in 64 bits"],
    ),
    "number for text": (
        "name: example",
        "name: 2008",
        ["1: name: 2008 is not allowed; it must be text (in quotes if it looks like something else)"],
    ),
    "word for a truth value": (
        "seed: 7",
        "allow_no_guarantee: yes",
        ["3: allow_no_guarantee: 'yes' is not allowed; it must be true or false"],
    ),
    "not one of the choices": (
        "keep: hash",
        "keep: best",
        ["14: bounding.keep: 'best' is not allowed; it must be one of hash, first, last, most_frequent"],
    ),
    "not one of the literals": (
        "mode: simulation",
        "mode: production",
        ["2: mode: 'production' is not allowed; it must be one of simulation, deployment"],
    ),
    "value for a section": (
        "bounding: {max_cells: 2, keep: hash}",
        "bounding: 2",
        [f"14: bounding: 2 is not allowed; it must be a section with keys out of: {BOUNDING_KEYS}"],
    ),
    "wrong entry of a list": (
        "windows: [8, 9]",
        "windows: [8, nine]",
        ["16: landmarks.windows[1]: 'nine' is not allowed; it must be a whole number"],
    ),
    "impossible entry of a list": (
        "windows: [8, 9]",
        "windows: [8, 0]",
        ["16: landmarks.windows[1]: 0 is not allowed; it must be a whole number of at least 1"],
    ),
    "section for a list": (
        "windows: [8, 9]",
        "windows: {first: 8}",
        ["16: landmarks.windows: a section is not allowed; it must be a list, each entry a whole number"],
    ),
    "wrong value under free keys": (
        "{user: cab}",
        "{user: 5}",
        ["9: source.columns.user: 5 is not allowed; it must be text (in quotes if it looks like something else)"],
    ),
    "wrong free key": (
        "{user: cab}",
        "{usr: cab}",
        [
            "9: source.columns.usr: unknown key; it must be one of user, time, latitude, longitude, place, arrival, "
            "date, point"
        ],
    ),
    "duration without unit": (
        "size: 1h",
        "size: 60",
        ["13: windows.size: 60 is not allowed; it must be a duration such as 10m, 1h30m or 7d, above 0s"],
    ),
    "duration with a wrong unit": (
        "size: 1h",
        "size: 1 hour",
        ["13: windows.size: '1 hour' is not allowed; it must be a duration such as 10m, 1h30m or 7d, above 0s"],
    ),
    "duration of zero": (
        "size: 1h",
        "size: 0s",
        ["13: windows.size: '0s' is not allowed; it must be a duration such as 10m, 1h30m or 7d, above 0s"],
    ),
    "duration between milliseconds": (
        "size: 1h",
        "size: 0.5ms",
        ["13: windows.size: '0.5ms' is not allowed; it must be a whole number of milliseconds"],
    ),
    "duration of ages": (
        "size: 1h",
        "size: 9999999w",
        ["13: windows.size: '9999999w' is not allowed; it must be shorter than 10,000 years"],
    ),
    "condition between keys of a plug-in": (
        "size: 1h",
        "size: 1h\n  offset: 90m",
        ["14: windows.offset: '90m' is not allowed; it must be below size (3600000 ms)"],
    ),
    "condition between keys of a section": (
        "max_cells: 2",
        "max_cells: 2, max_block_cells: 1",
        ["14: bounding.max_block_cells: 1 is not allowed; it must be at least max_cells (2)"],
    ),
    "condition on keys that exclude each other": (
        "bounding:",
        "sensors: {active: all, fixed: [r00c00]}\nbounding:",
        ["14: sensors.fixed: a list is not allowed; it must be left out if active is given"],
    ),
    "time without zone": (
        "from: 2008-05-19T00:00:00Z",
        "from: 2008-05-19T00:00:00",
        [
            "7: source.from: '2008-05-19T00:00:00' is not allowed; "
            "it must be a time with its zone: add Z for UTC, or an offset such as +02:00"
        ],
    ),
    "date for a time": (
        "from: 2008-05-19T00:00:00Z",
        "from: 2008-05-19",
        ["7: source.from: '2008-05-19' is not allowed; it must be a time such as 2008-05-19T00:00:00Z"],
    ),
    "date that does not exist": (
        "from: 2008-05-19T00:00:00Z",
        "from: 2008-02-30T00:00:00Z",
        [
            "7: source.from: '2008-02-30T00:00:00Z' is not allowed; "
            "it must be a time that exists (day is out of range for month)"
        ],
    ),
    "time of another era": (
        "until: 2008-05-20T00:00:00Z",
        "until: 9999-12-31T00:00:00Z",
        ["8: source.until: '9999-12-31T00:00:00Z' is not allowed; it must be a time between the years 1900 and 2400"],
    ),
    "number for a time": (
        "from: 2008-05-19T00:00:00Z",
        "from: 1211155200",
        ["7: source.from: 1211155200 is not allowed; it must be a time such as 2008-05-19T00:00:00Z"],
    ),
    "end before start": (
        "until: 2008-05-20T00:00:00Z",
        "until: 2008-05-18T00:00:00Z",
        ["8: source.until: '2008-05-18T00:00:00Z' is not allowed; it must be later than from (2008-05-19T00:00:00Z)"],
    ),
    "no start": (
        "  from: 2008-05-19T00:00:00Z\n",
        "",
        ["4: source.from: missing; it must be a time such as 2008-05-19T00:00:00Z (the first window starts there)"],
    ),
    "no end": (
        "  until: 2008-05-20T00:00:00Z\n",
        "",
        ["4: source.until: missing; it must be a time such as 2008-05-19T00:00:00Z (the run ends there)"],
    ),
    "unknown time zone": (
        "size: 1h",
        "size: 1h\n  time_zone: Europe/Berln",
        [
            "14: windows.time_zone: 'Europe/Berln' is not allowed; it must be an IANA time zone such as "
            "'Europe/Berlin' (did you mean 'Europe/Berlin'?)"
        ],
    ),
    "missing input file": (
        "path: events.csv",
        "path: evnts.csv",
        [f"6: source.path: 'evnts.csv' is not allowed; it must be an existing file or folder {LOOKED}"],
    ),
    "pattern that nothing matches": (
        "path: events.csv",
        "path: data/*.csv",
        [f"6: source.path: 'data/*.csv' is not allowed; it must be an existing file or folder {LOOKED}"],
    ),
    "missing folder of plug-ins": (
        "seed: 7",
        "plugins: [extra]",
        [f"3: plugins[0]: 'extra' is not allowed; it must be an existing file or folder {LOOKED}"],
    ),
    "output is an input": (
        "path: runs/example",
        "path: ./events.csv",
        ["23: output.path: './events.csv' is not allowed; it must be another folder than the inputs"],
    ),
    "output is a file": (
        "path: runs/example",
        "path: notes.txt",
        ["23: output.path: 'notes.txt' is not allowed; it must be a folder, not an existing file"],
    ),
    "input without a needed column": (
        "{user: cab}",
        "{user: cab, latitude: lat}",
        ["6: source.path: events.csv: there is no column 'lat' for latitude (columns: cab, time, latitude, longitude)"],
    ),
    "space that reads what the input has not": (
        "{type: grid, south: 37.7, north: 37.8, west: -122.5, east: -122.3, rows: 4, columns: 4}",
        "{type: places, list: [a, b]}",
        [
            "10: space.type: 'places' is not allowed; "
            "it must be a space that reads latitude and longitude: the source has no place"
        ],
    ),
    "no mechanism": (
        "mechanism:\n  - type: landmark_uniform\n    epsilon: 1.0",
        "mechanism: []",
        [
            "17: mechanism: a list is not allowed; "
            "it must be a list that ends in a mechanism on counts, such as landmark_uniform"
        ],
    ),
    "two mechanisms that release": (
        "accountants:",
        "  - {type: raw}\naccountants:",
        [
            "20: mechanism[1].type: 'raw' is not allowed; it must be left out, or in place of "
            "landmark_uniform: both read true counts, and only one step may; after it only functions of its release, "
            "such as suppress_small or fixed_ranges"
        ],
    ),
    "landmark mechanism without landmarks": (
        "landmarks:\n  windows: [8, 9]\n",
        "",
        [
            "1: landmarks: missing; it must be a section with windows, times or recurring "
            "(mechanism[0] is landmark_uniform)"
        ],
    ),
    "landmark window after the end": (
        "windows: [8, 9]",
        "windows: [8, 25]",
        ["16: landmarks.windows[1]: 25 is not allowed; it must be a window of the run, from 1 to 24"],
    ),
    "landmark time outside the run": (
        "windows: [8, 9]",
        "times: 2008-05-21T00:00:00Z",
        [
            "16: landmarks.times[0]: '2008-05-21T00:00:00Z' is not allowed; "
            "it must be in the run, between 2008-05-19T00:00:00Z and 2008-05-20T00:00:00Z"
        ],
    ),
    "landmark range that cannot be read": (
        "windows: [8, 9]",
        "recurring: [dawn]",
        [
            "16: landmarks.recurring[0]: 'dawn' is not allowed; it must be a range of the day such as "
            "'07:00-09:00', with days as in 'Mon-Fri 07:00-09:00' or 'Sat,Sun'"
        ],
    ),
    "sensor that is no cell": (
        "bounding:",
        "sensors: {fixed: [r00c00, r00c1]}\nbounding:",
        ["14: sensors.fixed[1]: 'r00c1' is not allowed; it must be a cell of the space, such as 'r00c01'"],
    ),
    "sensor schedule that is none": (
        "bounding:",
        "sensors: {schedule: notes.txt}\nbounding:",
        [
            "14: sensors.schedule: 'notes.txt' is not allowed; it must be a schedule of cells "
            "(notes.txt:1: the header must name the columns window and cell)"
        ],
    ),
    "too many windows": (
        "size: 1h",
        "size: 1ms",
        ["13: windows.size: '1ms' is not allowed; it must be so long that there are at most 10,000,000 windows"],
    ),
    "too many cells": (
        "rows: 4, columns: 4",
        "rows: 40000, columns: 40000",
        ["10: space: a section is not allowed; it must be of at most 10,000,000 cells (1,600,000,000 here)"],
    ),
    "budget period shorter than a window": (
        "seed: 7",
        "budget_period: 30m",
        ["3: budget_period: '30m' is not allowed; it must be at least one window (1h)"],
    ),
    "unknown metric": (
        "[mae]",
        "[mae, persson]",
        [f"21: utility[1]: 'persson' is not allowed; it must be one of {METRICS} (did you mean 'pearson'?)"],
    ),
    "metric with two letters turned round": (
        "[mae]",
        "[mea]",
        [f"21: utility[0]: 'mea' is not allowed; it must be one of {METRICS} (did you mean 'mae'?)"],
    ),
    "unknown metric like no other": (
        "[mae]",
        "[mae, 5]",
        [f"21: utility[1]: 5 is not allowed; it must be one of {METRICS}"],
    ),
    "the same metric twice": (
        "[mae]",
        "[mae, mae]",
        ["21: utility[1]: 'mae' is not allowed; it must be listed once only"],
    ),
    "the same accountant twice": (
        "[{type: landmark_budget}]",
        "[{type: landmark_budget}, {type: landmark_budget}]",
        ["20: accountants[1].type: 'landmark_budget' is not allowed; it must be different from accountants[0]"],
    ),
    "landmark budgets of two measures": (
        "[{type: landmark_budget}]",
        "[{type: landmark_budget}, {type: landmark_budget, rho: 0.9}]",
        [
            "20: accountants[1].rho: 0.9 is not allowed; it must be in the measure of the landmark_budget before it, "
            "ε or ρ"
        ],
    ),
    "windows that were removed": (
        "type: fixed\n  size: 1h",
        "type: sliding\n  size: 1h\n  period: 30m",
        [
            "12: windows.type: 'sliding' was removed; sums over longer stretches are sums of released windows, or "
            "those of mechanism correlated"
        ],
    ),
    "endless landmarks without a period": (
        "  type: csv\n  path: events.csv\n  from: 2008-05-19T00:00:00Z\n"
        "  until: 2008-05-20T00:00:00Z\n  columns: {user: cab}",
        "  type: synthetic\n  endless: true",
        [
            "1: budget_period: missing; it must be a duration such as 10m, 1h30m or 7d "
            "(the source is endless, the landmark budget is not)"
        ],
    ),
    "a deployment with a seed and without a key": (
        "mode: simulation",
        "mode: deployment",
        [
            "1: noise_key: missing; it must be the path of a key file or env:NAME in a deployment "
            "('penstock key new' makes one)",
            "3: seed: 7 is not allowed; it must be left out in a deployment "
            "(anyone who knows the seed can remove the noise)",
            "21: utility: a list is not allowed; it must be left out in a deployment, which keeps no true counts",
            "22: output.ledger_source: missing; it must be a name for the event source, the same in all deployments "
            "over the same events",
        ],
    ),
    "a simulation with a key": (
        "seed: 7",
        "noise_key: notes.txt",
        [
            "3: noise_key: 'notes.txt' is not allowed; "
            "it must be left out in a simulation, whose noise comes from the seed"
        ],
    ),
    "a key that is not there": (
        "seed: 7",
        "noise_key: env:PENSTOCK_TEST_NO_SUCH_KEY",
        [
            "3: noise_key: 'env:PENSTOCK_TEST_NO_SUCH_KEY' is not allowed; "
            "it must be the name of an environment variable that is set"
        ],
    ),
    "a key written twice": ("seed: 7", "seed: 7\nseed: 8", ["4: seed: written twice (first on line 3); keep one"]),
    "a tag": (
        "name: example",
        "name: !!python/object/apply:os.getcwd []",
        [
            "1: name: the tag tag:yaml.org,2002:python/object/apply:os.getcwd is not allowed; remove it",
            "1: name: a list is not allowed; it must be text",
        ],
    ),
    "no YAML": (
        "keep: hash}",
        "keep: hash",
        ["15: not valid YAML: expected ',' or '}', but got ':'"],
    ),
    "two documents": (
        "output:",
        "---\noutput:",
        ["22: a second document starts here; a configuration is only one"],
    ),
    "an alias to nothing": (
        "seed: 7",
        "seed: *seed",
        ["3: seed: the alias *seed is used before it is complete"],
    ),
    "a key that is a list": (
        "seed: 7",
        "? [seed]\n: 7",
        ["3: a list cannot be a key; it must be a name"],
    ),
}

#: Replaces what a simulation has and a deployment must not have.
DEPLOYMENT = {
    "mode: simulation\nseed: 7": "mode: deployment\nnoise_key: secret/key",
    "utility: [mae]\n": "",
    "path: runs/example": "path: runs/example\n  ledger_source: cabs",
}

WRONG_DEPLOYMENT = {
    "a ledger whose file would have too long a name": (
        "ledger_source: cabs",
        "ledger_source: " + "c" * 201,
        [
            f"23: output.ledger_source: '{'c' * 76}... is "
            "not allowed; it must be at most 200 letters, digits, '.', '_' and '-'"
        ],
    ),
    "an output folder of too long a name": (
        "path: runs/example",
        "path: " + "d" * 201,
        [f"22: output.path: '{'d' * 76}... is not allowed; it must be a path of names of at most 200 bytes"],
    ),
    "a mechanism without guarantee": (
        "type: landmark_uniform\n    epsilon: 1.0",
        "type: raw",
        [
            "18: mechanism[0].type: 'raw' is not allowed; "
            "it must be a mechanism with a guarantee in a deployment (or set allow_no_guarantee: true)"
        ],
    ),
    "a mechanism of real noise": (
        "type: landmark_uniform",
        "type: laplace",
        ["18: mechanism[0].type: 'laplace' is not allowed; it must be discrete_laplace in a deployment"],
    ),
    "no noise at all": (
        "epsilon: 1.0",
        "epsilon: .inf",
        ["19: mechanism[0].epsilon: .inf is not allowed; it must be finite in a deployment"],
    ),
    "real Gaussian noise": (
        "type: landmark_uniform\n    epsilon: 1.0",
        "type: gaussian\n    rho: 0.5",
        ["18: mechanism[0].type: 'gaussian' is not allowed; it must be discrete_gaussian in a deployment"],
    ),
    "real noise under a schedule": (
        "epsilon: 1.0",
        "epsilon: 1.0\n    noise: laplace",
        ["20: mechanism[0].noise: 'laplace' is not allowed; it must be discrete_laplace in a deployment"],
    ),
    "places from the data": (
        "{type: grid, south: 37.7, north: 37.8, west: -122.5, east: -122.3, rows: 4, columns: 4}",
        "{type: places, top: 20}",
        [
            "10: space.type: 'places' is not allowed; "
            "it must be a space that reads latitude and longitude: the source has no place",
            "10: space: a section is not allowed; "
            "it must be a list of places from elsewhere, not the most visited of the private data",
        ],
    ),
    "a key in the output": (
        "path: runs/example",
        "path: secret",
        ["3: noise_key: 'secret/key' is not allowed; it must be a file outside the output folder"],
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, working_folder: Path) -> Path:
    (tmp_path / "events.csv").write_text("cab,time,latitude,longitude\nx,2008-05-19T01:00:00Z,37.75,-122.4\n")
    (tmp_path / "notes.txt").write_text("nothing\n")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("00" * 32)
    return tmp_path


def problems_of(text: str, overrides: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loads(text, name="run.yaml", overrides=overrides)
    assert all("\n" not in problem for problem in caught.value.problems)
    return list(caught.value.problems)


def edited(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def deployment() -> str:
    text = RIGHT
    for old, new in DEPLOYMENT.items():
        text = edited(text, old, new)
    return text


def test_what_is_right_has_no_problems() -> None:
    assert loads(RIGHT).name == "example"
    assert loads(deployment()).mode == "deployment"


@pytest.mark.parametrize("case", WRONG)
def test_message(case: str) -> None:
    old, new, expected = WRONG[case]
    assert problems_of(edited(RIGHT, old, new)) == [f"run.yaml:{line}" for line in expected]


@pytest.mark.parametrize("case", WRONG_DEPLOYMENT)
def test_message_of_a_deployment(case: str) -> None:
    old, new, expected = WRONG_DEPLOYMENT[case]
    assert problems_of(edited(deployment(), old, new)) == [f"run.yaml:{line}" for line in expected]


def test_a_waiver_lets_a_mechanism_without_guarantee_through() -> None:
    text = edited(deployment(), "type: landmark_uniform\n    epsilon: 1.0", "type: raw")
    assert loads(text + "allow_no_guarantee: true\n").allow_no_guarantee


def test_all_problems_are_reported_together_in_the_order_of_the_lines() -> None:
    text = RIGHT
    for old, new in [
        ("seed: 7", "sede: 7"),
        ("2008-05-20T00:00:00Z", "tomorrow"),
        ("type: grid", "type: gird"),
        ("max_cells: 2", "max_cells: many"),
        ("epsilon: 1.0", "epsilon: 0"),
        ("[{type: landmark_budget}]", "[{type: landmark_budget}, {type: landmark_budget}]"),
    ]:
        text = edited(text, old, new)
    heads = [re.match(r"run\.yaml:(\d+): ([^:]+):", problem) for problem in problems_of(text)]
    assert [(int(head[1]), head[2]) for head in heads if head] == [
        (3, "sede"),
        (8, "source.until"),
        (10, "space.type"),
        (14, "bounding.max_cells"),
        (19, "mechanism[0].epsilon"),
        (20, "accountants[1].type"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty; it must be a section with the keys of a run"),
        ("# nothing\n", "is empty; it must be a section with the keys of a run"),
        ("[1, 2]", "a list is not allowed at the top; it must be a section with the keys of a run"),
        ("just text", "'just text' is not allowed at the top; it must be a section with the keys of a run"),
        ("a: \0", "not valid YAML: unacceptable character #x0000: special characters are not allowed"),
        ("x" * 1_000_001, "is larger than 1,000,000 characters; is it a configuration?"),
    ],
)
def test_what_is_no_configuration_at_all(text: str, expected: str) -> None:
    assert problems_of(text) == [f"run.yaml: {expected}"]


@pytest.mark.parametrize("number", ["1e309", "-1e400", "1" + "0" * 400])
def test_a_number_that_is_infinite_only_because_it_is_large_is_refused(number: str) -> None:
    said = f"run.yaml:2: seed: {number[:20]} is too large for a number (1.8e308 is the largest); inf is without end"
    assert said in problems_of(f"# of a run\nseed: {number}")


def test_an_alias_bomb_is_stopped() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    (problem,) = problems_of(text)
    assert problem.endswith("the document has more than 100,000 values (aliases expanded)")


def test_a_bottomless_document_is_stopped() -> None:
    (problem,) = problems_of("a: " + "[" * 5000)
    assert problem == "run.yaml:1: a[0][0]: nested more than 32 levels deep"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read (No such file or directory); it must be a YAML file"),
        (b"name: caf\xe9", "is not UTF-8 text (byte 9); it must be a YAML file"),
    ],
)
def test_a_file_that_cannot_be_read(folder: Path, content: bytes | None, expected: str) -> None:
    if content is not None:
        (folder / "bad.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load("bad.yaml")
    assert caught.value.problems == (f"bad.yaml: {expected}",)


def test_events_in_place_of_a_configuration_are_referred_to_init(folder: Path) -> None:
    (folder / "taps.csv").write_text("card,at\nc1,2024-01-01T00:00:00Z\n")
    with pytest.raises(ConfigError, match=r"'penstock init taps\.csv' drafts one"):
        load("taps.csv")
