"""The messages of the Fluss calls that we use, as Fluss 0.9.1 has them.

Only what we send or read is here. Protobuf skips a field that a server adds; a field that we need and don't get is an error.
The classes are made from the lines below when this module is imported, so no generated file must be kept in step. A line is a
message; a field is `name=number kind`, `kind?` where it may be absent, `kind*` where it may come many times (`**`: packed).
"""

from __future__ import annotations

import re
from typing import Any, Final

from snowmelt.errors import InvalidConfig, present

try:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass
except ImportError as error:
    raise InvalidConfig("protobuf is not installed, which Fluss' calls need", hint="pip install 'snowmelt[fluss]'") from error

__all__ = ["DecodeError", "message"]

_PACKAGE: Final = "snowmelt.fluss"

_LINES: Final = """
ErrorResponse: error_code=1 int32, error_message=2 string?

ApiVersionsRequest: client_software_name=1 string, client_software_version=2 string
ApiVersionsResponse: api_versions=1 PbApiVersion*, server_type=2 int32?
PbApiVersion: api_key=1 int32, min_version=2 int32, max_version=3 int32

AuthenticateRequest: protocol=1 string, token=2 bytes
AuthenticateResponse: challenge=1 bytes?

PbTablePath: database_name=1 string, table_name=2 string
PbPhysicalTablePath: database_name=1 string, table_name=2 string, partition_name=3 string?
PbTableBucket: table_id=1 int64, partition_id=2 int64?, bucket_id=3 int32
PbKeyValue: key=1 string, value=2 string

GetTableInfoRequest: table_path=1 PbTablePath
GetTableInfoResponse: table_id=1 int64, schema_id=2 int32, table_json=3 bytes, created_time=4 int64, modified_time=5 int64
GetTableSchemaRequest: table_path=1 PbTablePath, schema_id=2 int32?
GetTableSchemaResponse: schema_id=1 int32, schema_json=2 bytes

CreateDatabaseRequest: database_name=1 string, ignore_if_exists=2 bool
CreateDatabaseResponse:
CreateTableRequest: table_path=1 PbTablePath, table_json=2 bytes, ignore_if_exists=3 bool
CreateTableResponse:
DropTableRequest: table_path=1 PbTablePath, ignore_if_not_exists=2 bool
DropTableResponse:
AlterTableRequest: table_path=1 PbTablePath, ignore_if_not_exists=2 bool, add_columns=4 PbAddColumn*
AlterTableResponse:
PbAddColumn: column_name=1 string, data_type_json=2 bytes, column_position_type=4 int32

DescribeClusterConfigsRequest:
DescribeClusterConfigsResponse: configs=1 PbDescribeConfig*
PbDescribeConfig: config_key=1 string, config_value=2 string?

MetadataRequest: table_path=1 PbTablePath*, partitions_path=2 PbPhysicalTablePath*, partitions_id=3 int64**
MetadataResponse: coordinator_server=1 PbServerNode?, tablet_servers=2 PbServerNode*, table_metadata=3 PbTableMetadata*, partition_metadata=4 PbPartitionMetadata*
PbServerNode: node_id=1 int32, host=2 string, port=3 int32, listeners=4 string?, rack=5 string?
PbTableMetadata: table_path=1 PbTablePath, table_id=2 int64, schema_id=3 int32, bucket_metadata=5 PbBucketMetadata*
PbPartitionMetadata: table_id=1 int64, partition_name=2 string, partition_id=3 int64, bucket_metadata=4 PbBucketMetadata*
PbBucketMetadata: bucket_id=1 int32, leader_id=2 int32?, replica_id=3 int32**, leader_epoch=4 int32?

ListPartitionInfosRequest: table_path=1 PbTablePath, partial_partition_spec=2 PbPartitionSpec?
ListPartitionInfosResponse: partitions_info=1 PbPartitionInfo*
PbPartitionInfo: partition_id=1 int64, partition_spec=2 PbPartitionSpec
PbPartitionSpec: partition_key_values=1 PbKeyValue*

ListOffsetsRequest: follower_server_id=1 int32, offset_type=2 int32, table_id=3 int64, partition_id=4 int64?, bucket_id=5 int32**, startTimestamp=6 int64?
ListOffsetsResponse: buckets_resp=1 PbListOffsetsRespForBucket*
PbListOffsetsRespForBucket: bucket_id=1 int32, error_code=2 int32?, error_message=3 string?, offset=4 int64?

FetchLogRequest: follower_server_id=1 int32, max_bytes=2 int32, tables_req=3 PbFetchLogReqForTable*, max_wait_ms=4 int32?, min_bytes=5 int32?
FetchLogResponse: tables_resp=1 PbFetchLogRespForTable*
PbFetchLogReqForTable: table_id=1 int64, projection_pushdown_enabled=2 bool, projected_fields=3 int32**, buckets_req=4 PbFetchLogReqForBucket*
PbFetchLogReqForBucket: partition_id=1 int64?, bucket_id=2 int32, fetch_offset=3 int64, max_fetch_bytes=4 int32
PbFetchLogRespForTable: table_id=1 int64, buckets_resp=2 PbFetchLogRespForBucket*
PbFetchLogRespForBucket: partition_id=1 int64?, bucket_id=2 int32, error_code=3 int32?, error_message=4 string?, high_watermark=5 int64?, log_start_offset=6 int64?, remote_log_fetch_info=7 PbRemoteLogFetchInfo?, records=8 bytes?
PbRemoteLogFetchInfo: remote_log_tablet_dir=1 string, partition_name=2 string?, remote_log_segments=3 PbRemoteLogSegment*, first_start_pos=4 int32?
PbRemoteLogSegment: remote_log_segment_id=1 string, remote_log_start_offset=2 int64, remote_log_end_offset=3 int64, segment_size_in_bytes=4 int32, max_timestamp=5 int64?

InitWriterRequest: table_path=1 PbTablePath*
InitWriterResponse: writer_id=1 int64
PutKvRequest: acks=1 int32, table_id=2 int64, timeout_ms=3 int32, buckets_req=5 PbPutKvReqForBucket*
PbPutKvReqForBucket: partition_id=1 int64?, bucket_id=2 int32, records=3 bytes
PutKvResponse: buckets_resp=1 PbPutKvRespForBucket*
PbPutKvRespForBucket: partition_id=1 int64?, bucket_id=2 int32, error_code=3 int32?, error_message=4 string?

GetLatestKvSnapshotsRequest: table_path=1 PbTablePath, partition_name=2 string?
GetLatestKvSnapshotsResponse: table_id=1 int64, partition_id=2 int64?, latest_snapshots=3 PbKvSnapshot*
PbKvSnapshot: bucket_id=1 int32, snapshot_id=2 int64?, log_offset=3 int64?
GetKvSnapshotMetadataRequest: table_id=1 int64, partition_id=2 int64?, bucket_id=3 int32, snapshot_id=4 int64
GetKvSnapshotMetadataResponse: log_offset=1 int64, snapshot_files=2 PbRemotePathAndLocalFile*
PbRemotePathAndLocalFile: remote_path=1 string, local_file_name=2 string

AcquireKvSnapshotLeaseRequest: lease_id=1 string, lease_duration_ms=2 int64, snapshots_to_lease=3 PbKvSnapshotLeaseForTable*
AcquireKvSnapshotLeaseResponse: unavailable_snapshots=1 PbKvSnapshotLeaseForTable*
PbKvSnapshotLeaseForTable: table_id=1 int64, bucket_snapshots=2 PbKvSnapshotLeaseForBucket*
PbKvSnapshotLeaseForBucket: partition_id=1 int64?, bucket_id=2 int32, snapshot_id=3 int64
ReleaseKvSnapshotLeaseRequest: lease_id=1 string, buckets_to_release=2 PbTableBucket*
ReleaseKvSnapshotLeaseResponse:
DropKvSnapshotLeaseRequest: lease_id=1 string
DropKvSnapshotLeaseResponse:

LakeTieringHeartbeatRequest: tiering_tables=1 PbHeartbeatReqForTable*, finished_tables=2 PbHeartbeatReqForTable*, failed_tables=3 PbHeartbeatReqForTable*, request_table=4 bool?, force_finished_tables=5 int64*
LakeTieringHeartbeatResponse: coordinator_epoch=1 int32, tiering_table=2 PbLakeTieringTableInfo?, tiering_table_resp=3 PbHeartbeatRespForTable*, finished_table_resp=4 PbHeartbeatRespForTable*, failed_table_resp=5 PbHeartbeatRespForTable*
PbHeartbeatReqForTable: table_id=1 int64, coordinator_epoch=2 int32, tiering_epoch=3 int64
PbHeartbeatRespForTable: table_id=1 int64, error=2 ErrorResponse?
PbLakeTieringTableInfo: table_id=1 int64, table_path=2 PbTablePath, tiering_epoch=3 int64

PrepareLakeTableSnapshotRequest: bucket_offsets=1 PbTableOffsets*, ignore_previous_table_offsets=2 bool?
PrepareLakeTableSnapshotResponse: prepare_lake_table_resp=1 PbPrepareLakeTableRespForTable*
PbTableOffsets: table_id=1 int64, table_path=2 PbTablePath, bucket_offsets=3 PbBucketOffset*
PbBucketOffset: partition_id=1 int64?, bucket_id=2 int32, log_end_offset=4 int64?
PbPrepareLakeTableRespForTable: error_code=1 int32?, error_message=2 string?, table_id=3 int64?, lake_table_offsets_path=4 string?

CommitLakeTableSnapshotRequest: tables_req=1 PbLakeTableSnapshotInfo*, lake_table_snapshot_metadata=2 PbLakeTableSnapshotMetadata*
CommitLakeTableSnapshotResponse: table_resp=1 PbCommitLakeTableSnapshotRespForTable*
PbLakeTableSnapshotInfo: table_id=1 int64?, snapshot_id=2 int64, buckets_req=3 PbLakeTableOffsetForBucket*, table_path=4 PbTablePath?
PbLakeTableOffsetForBucket: partition_id=1 int64?, bucket_id=2 int32, log_end_offset=4 int64?, max_timestamp=6 int64?
PbLakeTableSnapshotMetadata: table_id=1 int64, snapshot_id=2 int64, tiered_bucket_offsets_file_path=3 string, readable_bucket_offsets_file_path=4 string?, earliest_snapshot_id_to_keep=5 int64?
PbCommitLakeTableSnapshotRespForTable: error_code=1 int32?, error_message=2 string?, table_id=3 int64

GetLakeSnapshotRequest: table_path=1 PbTablePath, snapshot_id=2 int64?, readable=3 bool?
GetLakeSnapshotResponse: table_id=1 int64, snapshotId=2 int64, bucket_snapshots=3 PbLakeSnapshotForBucket*
PbLakeSnapshotForBucket: partition_id=1 int64?, bucket_id=2 int32, log_offset=3 int64?, partition_name=4 string?
"""  # noqa: E501

_FIELD: Final = re.compile(r"(\w+)=(\d+) (\w+?)(\?|\*\*?)?")
_LABELS: Final = {
    None: FieldDescriptorProto.LABEL_REQUIRED,
    "?": FieldDescriptorProto.LABEL_OPTIONAL,
    "*": FieldDescriptorProto.LABEL_REPEATED,
    "**": FieldDescriptorProto.LABEL_REPEATED,
}
_SCALARS: Final = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "string": FieldDescriptorProto.TYPE_STRING,
}


def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="snowmelt/fluss.proto", package=_PACKAGE, syntax="proto2")
    for line in filter(None, _LINES.splitlines()):
        name, _, fields = line.partition(":")
        described = file.message_type.add(name=name)
        for text in filter(None, fields.split(",")):
            parts = present(_FIELD.fullmatch(text.strip()), "a message's line is not understood", text)
            field = described.field.add(name=parts[1], number=int(parts[2]), label=_LABELS[parts[4]])
            if parts[4] == "**":
                field.options.packed = True
            if parts[3] in _SCALARS:
                field.type = _SCALARS[parts[3]]
            else:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{parts[3]}"
    # A pool of our own, so that another library's messages of the same names do not collide.
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {one.name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{one.name}")) for one in file.message_type}


_CLASSES: Final = _classes()


def message(name: str) -> Any:
    """The class of a message."""
    return _CLASSES[name]
