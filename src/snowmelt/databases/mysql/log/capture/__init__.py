"""Capture: one replication connection, and the bytes of the log as durable segments.

socket ──▶ receive buffer ──▶ framing (checks, cuts) ──▶ buffers of a fixed pool ──▶ writer thread ──▶ segments
             this thread                                        ◀── returned when written

capturing  the connection: connect, stream, reconnect
replica    the requests of a replica: register, ask for the log
starting   where the first segment begins
streaming  what the events of the stream say: files, places, GTIDs
filling    the segment that is being filled, until it is sealed
writing    the thread that makes buffers and segments durable
refusals   errors of the log, with what an operator can do
until      capture up to a place, for programs that need a stretch of the log
"""

from snowmelt.databases.mysql.log.capture.capturing import AnotherServer, Capture, CaptureHooks, ExpectedServer
from snowmelt.databases.mysql.log.capture.starting import server_of
from snowmelt.databases.mysql.log.capture.until import capture_until

__all__ = ["AnotherServer", "Capture", "CaptureHooks", "ExpectedServer", "capture_until", "server_of"]
