"""Apache Fluss: its calls, spoken by a small client of ours, and its server in a folder, for trying out and for tests.

messages   the messages of the calls that we use, by field numbers
rpc        one connection: frames, time-outs, and errors as ours
client     the calls, typed
jars       the published server, fetched and checked
server     the server in a folder: ZooKeeper, coordinator, tablet server
"""
