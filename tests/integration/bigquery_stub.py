"""A stub of BigQuery's REST interface, as far as tables are made and files are loaded, for its official client."""

from __future__ import annotations

import io
import json
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow.parquet as pq


class Stub(ThreadingHTTPServer):
    """The service: tables, rows and jobs by name; ``failures`` are the reasons of the next jobs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.tables: dict[str, Any] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.jobs: dict[str, Any] = {}
        self.failures: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def make(self, table: dict[str, Any]) -> tuple[int, Any]:
        name = name_of(table["tableReference"])
        if name in self.tables:
            return 409, error(409, "duplicate", f"Already Exists: Table {name}")
        self.tables[name] = table
        return 200, table

    def load(self, job: dict[str, Any], data: bytes) -> tuple[int, Any]:
        job_id = job["jobReference"]["jobId"]
        if job_id in self.jobs:
            return 409, error(409, "duplicate", f"Already Exists: Job {job_id}")
        job["status"] = {"state": "DONE"}
        if self.failures:
            job["status"]["errorResult"] = {"reason": self.failures.pop(), "message": "it failed"}
        else:
            table = name_of(job["configuration"]["load"]["destinationTable"])
            self.rows.setdefault(table, []).extend(pq.read_table(io.BytesIO(data)).to_pylist())
        self.jobs[job_id] = job
        return 200, job


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Stub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/upload/"):
            kind = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            job, file = BytesParser().parsebytes(kind + body).get_payload()
            self.answer(*self.server.load(json.loads(job.get_payload()), file.get_payload(decode=True)))
        else:
            self.answer(*self.server.make(json.loads(body)))

    def do_GET(self) -> None:
        place = self.path.partition("?")[0].split("/")
        found = (
            self.server.jobs[place[-1]]
            if place[-2] == "jobs"
            else self.server.tables[f"{place[4]}.{place[6]}.{place[8]}"]
        )
        self.answer(200, found)

    def answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def name_of(table: dict[str, str]) -> str:
    return f"{table['projectId']}.{table['datasetId']}.{table['tableId']}"


def error(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "errors": [{"reason": reason, "message": message}]}}
