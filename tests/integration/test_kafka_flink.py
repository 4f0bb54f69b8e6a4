"""A topic that is read on Flink releases what one process releases."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from test_kafka import broker, check_topics, configured, events_of, outputs, producer, sections, topic, topics
from test_kafka import undisturbed as undisturbed

from mechanisms.core.errors import ConfigError
from pipeline.cluster.jars import class_path
from pipeline.kafka.play import play
from pipeline.run import run

pytestmark = pytest.mark.integration
__all__ = ["broker", "topics", "undisturbed"]


def test_flink_reads_a_topic_and_writes_one(broker, topics, tmp_path, undisturbed):
    try:
        class_path()
    except ConfigError as error:
        pytest.skip(str(error))
    play(events_of(), producer(broker), topics["events"], 3, end=True)
    output = {"path": str(tmp_path / "out"), "report": False}
    output |= {"kafka": {"brokers": broker.address, "releases": topics["releases"], "accounts": topics["accounts"]}}
    value = sections(tmp_path, topic(broker, topics), output=output)
    result = run(configured(value), runner="flink")
    assert result.exit_code == 0
    rows = result.manifest["rows"]
    assert {fate: rows[fate] for fate in ("used", "duplicates", "late")} == {
        fate: undisturbed[1][fate] for fate in ("used", "duplicates", "late")
    }
    assert outputs(tmp_path / "out")["public/releases.parquet"] == undisturbed[0]["public/releases.parquet"]
    check_topics(broker, topics, tmp_path / "out")
