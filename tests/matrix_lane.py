"""What must work on every Spark that is declared, in one process of the environment under test:
`python tests/matrix_lane.py HOST PORT FOLDER`, the password in LANE_PASSWORD.

`snowmelt run` is killed with all of its processes after its first epoch, which `snowmelt status` tells. Another driver goes on until the
lake is current, `verify` compares, `snowmelt.read` counts. Nothing of the tests is imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pymysql
from pyspark import __version__ as spark_version

import snowmelt
from snowmelt.config import read_pipeline
from snowmelt.errors import SnowmeltError
from snowmelt.machine import check_machine
from snowmelt.supervise.session import spark_session
from snowmelt.verify import TableOutcome, verify

ROWS = 3_000


def main() -> None:
    host, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    check_machine("local[2]")
    connection = pymysql.connect(host=host, port=port, user="root", password=os.environ["LANE_PASSWORD"], autocommit=True)
    cursor = connection.cursor()
    cursor.execute("CREATE DATABASE shop")
    cursor.execute("CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, total DECIMAL(10,2), at DATETIME(6), day TIME)")
    cursor.execute("CREATE TABLE shop.notes (id VARCHAR(20) NOT NULL PRIMARY KEY, note JSON)")
    cursor.execute(f"INSERT INTO shop.orders SELECT seq, seq / 4, '2026-01-02 03:04:05.6', '01:02:03' FROM shop.seq_1_to_{ROWS}")
    cursor.execute("INSERT INTO shop.notes VALUES ('a', '{\"b\": [1, null]}'), ('bä', NULL)")
    file = folder / "pipeline.yaml"
    file.write_text(
        f"""\
source:
  {{type: mysql, host: {host}, port: {port}, username: root, password: "${{LANE_PASSWORD}}", tables: "shop.*", tls: disabled,
   allow_password_to_unverified_server: yes}}
sink: {{type: paimon, warehouse: lake}}
pipeline: {{name: lane, state: state, interval: 200ms, rows_per_chunk: 500}}
"""
    )
    kill_after_an_epoch(file)
    died = status(file)
    assert (died["life"], died["alive"], died["code"]) == ("died", False, 1), died
    cursor.execute("UPDATE shop.orders SET total = total + 1 WHERE id % 3 = 0")
    cursor.execute("DELETE FROM shop.orders WHERE id % 10 = 0")
    with spark_session("lane", master="local[2]", ui=False, debug=False) as spark:
        snowmelt.Pipeline(spark, file).run_until_current()
        verdicts = verify(read_pipeline(file).to_settings(), spark, None, lambda _: None)
        assert [verdict.outcome for verdict in verdicts] == [TableOutcome.VERIFIED] * 2, verdicts
        orders = snowmelt.read(spark, "shop.orders", warehouse=str(folder / "lake"))
        assert orders.count() == ROWS - ROWS // 10
        (row,) = orders.where("id = 3").collect()
        assert (str(row.total), row["at"].microsecond) == ("1.75", 600_000)
        try:
            snowmelt.union_read(spark, "shop.orders", bootstrap="127.0.0.1:1", warehouse=str(folder / "lake"))
        except SnowmeltError as error:
            told = str(error)
        else:
            raise AssertionError("a union read without Fluss gave something")
        # The development environment has what Fluss needs; the server is then what is missing.
        assert ("which Spark has since 4.0: pyspark 3.5" in told) == (spark_version < "4"), told
        ended = status(file)
        assert (ended["life"], ended["alive"], ended["code"]) == ("ended", False, 0), ended
        print(f"pyspark {spark_version}: verified", flush=True)
        # Spark's own farewell takes seconds.
        os._exit(0)


def status(file: Path) -> dict[str, object]:
    ran = subprocess.run([sys.executable, "-m", "snowmelt", "status", "--json", str(file)], stdout=subprocess.PIPE, text=True, check=False)
    return {**json.loads(ran.stdout), "code": ran.returncode}


def kill_after_an_epoch(file: Path) -> None:
    command = [sys.executable, "-m", "snowmelt", "run", "--json", "--master", "local[2]", str(file)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    assert running.stdout is not None
    said = []
    for line in running.stdout:
        said.append(line)
        if json.loads(line).get("epoch", 0) >= 1:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            return
    raise AssertionError("it ended by itself:\n" + "".join(said[-20:]))


if __name__ == "__main__":
    main()
