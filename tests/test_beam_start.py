"""What importing Beam for a local run leaves out, and what it does not touch."""

import gc
import inspect
import subprocess
import sys
import threading
import weakref

from pipeline.beam_start import SAMPLING_PERIOD, _without, import_beam, local_runner

PROGRAM = """
import sys
from pipeline import process
from pipeline.beam_start import CLIENTS, import_beam

if {command}:
    process.prepare()
import_beam(alone={alone})
print(sorted(set(CLIENTS) & set(sys.modules)))
"""


def loaded(alone: bool, command: bool = True) -> str:
    """What a fresh process says that it has loaded."""
    program = PROGRAM.replace("{alone}", str(alone)).replace("{command}", str(command))
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_a_local_run_does_not_import_clients_of_services() -> None:
    assert loaded(alone=True) == "[]"


def test_other_runners_and_programs_that_call_us_get_the_whole_of_beam() -> None:
    assert "pymongo" in loaded(alone=False)
    assert "pymongo" in loaded(alone=True, command=False)


def test_the_connector_to_mongodb_works_in_the_process_of_a_local_run() -> None:
    program = """
from pipeline.beam_start import import_beam

import_beam(alone=True)
from apache_beam.io import ReadFromMongoDB, mongodbio

print(type(ReadFromMongoDB(db="city", coll="events")).__name__, mongodbio.ObjectId("0" * 24))
import pymongo

assert mongodbio.MongoClient("localhost", connect=False).__class__ is pymongo.MongoClient
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"ReadFromMongoDB {'0' * 24}\n", "")


def test_a_later_run_keeps_no_garbage_of_those_before_it() -> None:
    class Garbage:
        """Refers to itself."""

    import_beam(alone=True)
    garbage = Garbage()
    garbage.itself = garbage
    left = weakref.ref(garbage)
    del garbage
    import_beam(alone=True)
    gc.collect()
    assert left() is None


def test_another_thread_may_import_what_is_hidden_from_this_one() -> None:
    found: list[str] = []

    def work() -> None:
        import colorsys

        found.append(colorsys.__name__)

    sys.modules.pop("colorsys", None)
    with _without(("colorsys",)):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == ["colorsys"]


def test_a_bundle_ends_without_a_long_wait() -> None:
    from apache_beam.runners.worker.statesampler import StateSampler

    local_runner()
    assert inspect.signature(StateSampler).parameters["sampling_period_ms"].default == SAMPLING_PERIOD


def test_steps_are_inspected_once() -> None:
    import apache_beam as beam
    from apache_beam.coders import BytesCoder
    from apache_beam.transforms import userstate
    from apache_beam.transforms.userstate import BagStateSpec

    import_beam(alone=True)
    import_beam(alone=True)

    class Step(beam.DoFn):
        bag = BagStateSpec("bag", BytesCoder())

        def process(self, element: bytes, state: object = beam.DoFn.StateParam(bag)) -> None:
            """Nothing."""

    foreign = userstate.get_dofn_specs(Step())
    Step.__module__ = "pipeline.step"
    first, again = userstate.get_dofn_specs(Step()), userstate.get_dofn_specs(Step())
    assert foreign == first == ({Step.bag}, set())
    assert again is first
