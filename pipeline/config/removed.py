"""Removed keys, plug-ins and values with their replacements."""

from __future__ import annotations

from penstock.pipeline.config.yaml import Mapping, Node, Path, Scalar

#: What to use instead, by what was removed. In a section: ``section.key`` for a key, ``section.key=value`` for a value.
#: Plug-ins: ``kind name`` for a plug-in, ``kind name.key`` and ``kind name.key=value`` for a key of one, ``kind.key``
#: for a key that all of a kind had; ``.key`` behind that for a key of a section that was its value.
#: Each sentence completes "was removed; ".
REMOVED: dict[str, str] = {
    "accountant temporal.method": "the accountant has the sound bound only; the published figure is that of "
    "landmark_temporal_privacy_loss(…, method='paper')",
    "accountant reconstruction.segment": "penstock attack reports the sharper bounds",
    "accountant reconstruction.n_samples": "penstock attack reports the sharper bounds",
    "mechanism fpa.calibration": "the sound calibration is left; papers have plug-in fpa_paper of reproductions/",
    "mechanism fpa.choice": "coefficients says how many are kept",
    "mechanism fpa.measured_sensitivity": "plug-in fpa_paper of reproductions/ has it",
    "mechanism fpa.transform": "plug-in fpa_paper of reproductions/ has it",
    "mechanism smooth": "use smoothing: median or mean of mechanism pegasus",
    "mechanism.epsilon.temporal_goal": "write the number that 'penstock plan CONFIG --temporal GOAL' prints",
    "source kafka.format=arrow": "send an event a message, as JSON or Avro",
    "source pubsub.format=arrow": "send an event a message, as JSON or Avro",
    "source kafka.clock": "with watermark: events, time is that of the events",
    "window sliding": "sums over longer stretches are sums of released windows, or those of mechanism correlated",
    "streams": "the cells are released as one vector, which is faster than its parts; leave it out",
    "zip": "write keys that vary together as one variant each",
    "published": "published tables are in reproductions/shown",
    "differences": "explanations of the papers' figures are in reproductions/shown",
    "tables": "what pages show is in reproductions/shown",
    "study": "studies of the papers run by python -m reproductions",
    "choose.judge_by": "the less favourable end of an interval must keep the limits",
    "figures.type=heat_map": "line, box and scatter are left",
    "figures.value": "it was for heat_map alone",
    "output.rejects_key": "file and line in operator/rejects.jsonl find the row in the input",
    "output.rejects=sealed": "use places: file and line in operator/rejects.jsonl find the row in the input",
    "output.bigquery": "use output.pubsub with a subscription of Pub/Sub that writes to BigQuery, or load the Parquet "
    "files of output.store",
}


def replacement(section: Path, plugin: str | None, key: str, value: Node | None = None) -> str | None:
    """Advice on a removed key or value; None if nothing was removed.

    Parameters
    ----------
    section
        Path of the section that the key is in.
    plugin
        Kind and name of the plug-in that the section configures, as in ``mechanism fpa``; None: a section with
        keys of its own.
    key
        The key.
    value
        What is written under it; None asks about the key itself.
    """
    names = {key: ""}
    if isinstance(value, Scalar):
        names = {f"{key}={value.text}": f"{value.text!r} "}
    elif value is not None:
        names = {f"{key}.{name}": f"{name} " for name in value.items} if plugin and isinstance(value, Mapping) else {}
    places = (
        [plugin, plugin.partition(" ")[0]] if plugin else [".".join(step for step in section if isinstance(step, str))]
    )
    for name, what in names.items():
        for place in places:
            if sentence := REMOVED.get(f"{place}.{name}".removeprefix(".")):
                return f"{what}was removed; {sentence}"
    return None


def replaced_plugin(kind: str, name: str) -> str | None:
    """Advice on a removed plug-in; None for other names."""
    sentence = REMOVED.get(f"{kind} {name}")
    return sentence and f"{name!r} was removed; {sentence}"
