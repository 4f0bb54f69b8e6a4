"""Integer noise and its derivatives are the same on other kinds of processors."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from penstock.mechanisms import get
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import Facts
from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.run import PointSchedule, release_traces, step_through, traces_of

KEY = NoiseKey.from_seed(4)


def readers():
    """Mechanisms of integer noise whose states hold real numbers, and post-processing of them."""
    for budget in ({"epsilon": 40.0}, {"epsilon": 40.0, "delta": 1e-6, "noise": "discrete_gaussian"}):
        yield get("fast")(**budget, publications=60)
        yield get("rescue_dp")(**budget, w=5)
        yield get("landmark_adaptive")(**budget, sampler="drift")
        yield get("w_event_bd")(**budget, w=5)
        yield get("w_event_ba")(**budget, w=5)
    yield get("pegasus")(epsilon=4.0)
    yield get("correlated")(epsilon=2.0, delta=1e-6, w=24)
    yield get("fpa")(rho=0.5, coefficients=7, block=24, noise="discrete_gaussian")
    yield Chain.of([get("discrete_laplace")(epsilon=1.0), get("filter")()])
    yield Chain.of([get("fast")(epsilon=40.0, publications=60), get("kalman")()])


def digests() -> dict[str, list[str]]:
    """Of releases and of what noise is bound to, for each mechanism."""
    random = np.random.default_rng(6)
    level = 60 * random.gamma(1.0, 1.0, 17) * (2 + np.sin(np.arange(96) / 4))[:, None]
    counts = random.poisson(level)
    facts = Facts(n_cells=17, n_windows=96, max_cells=2, max_windows=8, landmarks=tuple(range(3, 90, 3)))
    actual = {}
    for reader in readers():
        source = NoiseSource(KEY, configuration=b"")
        shown, bound = hashlib.sha256(), hashlib.sha256()
        for made, state in step_through(reader, counts, facts, facts.windows(), source):
            for release in made:
                shown.update(np.asarray(release.values, np.float64).tobytes())
            for _, array in sorted(reader.noise_state(state).items()):
                bound.update(array.tobytes())
        actual[repr(reader)] = [shown.hexdigest(), bound.hexdigest()]
    drift = get("landmark_adaptive")(epsilon=2.0, radius=50.0, noise="planar_laplace", sampler="drift")
    walks = [np.array([39.9, 116.4]) + random.normal(0, 0.003, (80, 2)).cumsum(0) for _ in range(20)]
    schedule = PointSchedule(traces_of(walks, [random.random(80) < 0.4] * 20), (39.0, 116.0))
    steps = release_traces(drift, schedule, NoiseSource(KEY, configuration=b""))
    actual["drift"] = ["".join(release.action.tolist()) for _, release in steps]
    return actual


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="there are no kinds of it to choose from")
def test_another_processor_draws_the_same_noise():
    newer: dict = np.show_config(mode="dicts")  # type: ignore[assignment]
    older = {
        "OPENBLAS_CORETYPE": "Sandybridge",
        "NPY_DISABLE_CPU_FEATURES": " ".join(newer["SIMD Extensions"].get("found", [])),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    message = subprocess.run(
        [sys.executable, __file__], env=os.environ | older, capture_output=True, text=True, check=True
    )
    there, here = json.loads(message.stdout), digests()
    assert {name for name in here if here[name] != there[name]} == set()


if __name__ == "__main__":
    print(json.dumps(digests()))
