"""Installs the packages and the ``penstock`` command; also what Beam's ``--setup_file`` ships to workers."""

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
(VERSION,) = re.findall(r'^__version__ = "(.+)"', (HERE / "penstock/__init__.py").read_text("utf-8"), re.M)

CORE = [
    "apache-beam>=2.77,<3",
    "dp-accounting>=0.6,<0.7",
    "jinja2>=3.1,<4",
    "numpy>=2.1,<3",
    "polars>=1.32,<3",
    "prometheus-client>=0.22,<1",
    "pyarrow>=18",
    "pyyaml>=6,<7",
    "rich>=13",
    "river>=0.22,<1",
    "scipy>=1.14,<2",
    "shapely>=2,<3",
    "threadpoolctl>=3,<4",
    "tzdata",
]
LEARN = "scikit-learn>=1.5,<2"
TEST = ["hypothesis>=6.100", "jsonschema>=4.20", "pytest>=8", "pytest-xdist>=3.6"]
EXTRAS = {
    "attacks": [LEARN],
    "h3": ["h3>=4,<5"],
    # Older clients skip a message of a partition that is paused at its end (librdkafka 4844).
    "kafka": ["confluent-kafka>=2.13.2,<3", "fastavro>=1.9,<2"],
    "test": [*TEST, LEARN, "h3>=4,<5", "matplotlib>=3.9", "opendp>=0.14"],
    "dev": [*TEST, "mypy>=1.14", "ruff>=0.9", "types-PyYAML"],
    "browser": ["axe-core-python>=0.1", "selenium>=4.20"],
    "notebooks": ["ipykernel>=6.29", "nbclient>=0.10", "matplotlib>=3.9", LEARN],
    "docs": ["mkdocs>=1.6.1,<2", "mkdocstrings-python>=2,<3"],
    "plot": ["matplotlib>=3.9"],
    "pubsub": ["google-cloud-pubsub>=2.21,<3"],
    "bench": ["bytewax==0.21.1", "chdb>=4.4", "duckdb>=1.1", "pandas>=2.2", "pipeline-dp==0.3.1"],
}


def description(pages: str) -> str:
    """The README with links that lead to ``pages``, or without where that is empty."""
    readme = HERE / "README.md"

    def linked(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        return f"{image}[{label}]({pages}{target})" if pages else "" if image else label

    return re.sub(r"(!?)\[([^]]*)\]\(([^)]*)\)", linked, readme.read_text("utf-8")) if readme.exists() else ""


def pages() -> str:
    """Address of the pages, from pyproject.toml."""
    settings = HERE / "pyproject.toml"
    stated = tomllib.loads(settings.read_text("utf-8")) if settings.exists() else {}
    return str(stated.get("tool", {}).get("penstock", {}).get("pages", ""))


if __name__ == "__main__":
    setup(
        name="penstock",
        version=VERSION,
        description="Streaming release simulator for location data: counts, privacy mechanisms, and what they cost",
        long_description=description(pages()),
        long_description_content_type="text/markdown",
        license="Apache-2.0",
        python_requires=">=3.11",
        packages=find_packages(include=["penstock", "penstock.*"]),
        package_data={
            "": ["py.typed"],
            "penstock": ["configs/quickstart.yaml"],
            "penstock.pipeline.reporting": ["static/*", "templates/*"],
        },
        install_requires=CORE,
        extras_require=EXTRAS,
        entry_points={"console_scripts": ["penstock = penstock.pipeline.cli.main:script"]},
        classifiers=[
            "Development Status :: 3 - Alpha",
            "Intended Audience :: Science/Research",
            "License :: OSI Approved :: Apache Software License",
            "Programming Language :: Python :: 3.11",
            "Programming Language :: Python :: 3.12",
            "Topic :: Scientific/Engineering",
        ],
    )
