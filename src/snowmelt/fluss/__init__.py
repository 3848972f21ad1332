"""Apache Fluss: its calls, spoken by a small client of ours, its tables as Arrow, and its server in a folder, for trying out and for tests.

messages   the messages of the calls that we use, by field numbers
rpc        one connection: frames, time-outs, and errors as ours
client     the calls, typed
types      schemas of tables, in Arrow and in Paimon
compacted  rows as the key-value store keeps them, into Arrow
batches    record batches of the log, into Arrow
packing    columns into compacted bytes
buckets    in which bucket a row is
upserts    rows into what is put into a primary-key table
tablets    ways to the servers that lead buckets
tables     what has to be known of a table to read it; who leads a bucket
remote     files of remote storage, brought to where they can be read
snapshots  a KV snapshot, read
log        a stretch of a bucket's log, read
target     where a pipeline's tables are
sink       an epoch's rows into those tables, once
jars       the published server, fetched and checked
server     the server in a folder: ZooKeeper, coordinator, tablet server
"""
