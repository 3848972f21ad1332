"""Apache Fluss: a small client of ours for its calls, its tables as Arrow, and its server in a folder, for trying out and for tests.

messages   the messages of the calls that we use, by field numbers
rpc        one connection: frames, time-outs, and errors as ours
client     the calls, typed
types      schemas of tables, in Arrow and in Paimon
compacted  rows as the key-value store keeps them, into Arrow
batches    record batches of the log, into Arrow
packing    columns into compacted bytes
buckets    in which bucket a row is
upserts    rows into what is put into a primary-key table
tablets    connections to the servers that lead buckets
tables     what a reader must know of a table; the leader of a bucket
remote     files of remote storage, brought to where they can be read
snapshots  reads a KV snapshot
log        reads a range of a bucket's log
target     where a pipeline's tables are
sink       writes an epoch's rows into those tables, once
jars       the published server, fetched and checked
server     the server in a folder: ZooKeeper, coordinator, tablet server
"""
