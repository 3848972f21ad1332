"""What tasks stage of an epoch and what its intent says of it: objects of the state store, and where each bucket's log was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from snowmelt.commit.records import Entry
from snowmelt.errors import Corrupt, check
from snowmelt.store.contract import key_of


@dataclass(frozen=True, slots=True)
class BucketCursor:
    """Where a bucket was when the intent was written."""

    sequence: int
    """The number of the next batch."""
    end: int
    """Of its log."""


@dataclass(frozen=True, slots=True)
class Preface:
    writer: int
    places: Mapping[int, BucketCursor]

    def encoded(self) -> bytes:
        places = [[bucket, place.sequence, place.end] for bucket, place in sorted(self.places.items())]
        return json.dumps({"writer": self.writer, "places": places}).encode()


@dataclass(frozen=True, slots=True)
class BatchPiece:
    """What becomes one batch: a stretch of a staged object."""

    bucket: int
    at: int
    length: int
    count: int


@dataclass(frozen=True, slots=True)
class StagedObject:
    """A staged object, as its writer reports it."""

    name: str
    schema: int
    checksum: int
    pieces: tuple[BatchPiece, ...]

    def encoded(self) -> bytes:
        pieces = [[one.bucket, one.at, one.length, one.count] for one in self.pieces]
        return json.dumps({"name": self.name, "schema": self.schema, "crc": self.checksum, "pieces": pieces}).encode()


@dataclass(frozen=True, slots=True)
class StagedWork:
    """An entry's messages, read: they are what is put, its files are what is kept for it, so both must be the same."""

    preface: Preface
    objects: tuple[StagedObject, ...]

    @staticmethod
    def of(entry: Entry) -> StagedWork:
        try:
            said, *written = [json.loads(message) for message in entry.messages]
            places = {int(bucket): BucketCursor(int(sequence), int(end)) for bucket, sequence, end in said["places"]}
            objects = tuple(
                StagedObject(
                    str(one["name"]), int(one["schema"]), int(one["crc"]), tuple(BatchPiece(*map(int, piece)) for piece in one["pieces"])
                )
                for one in written
            )
            work = StagedWork(Preface(int(said["writer"]), places), objects)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt("what an intent says of a Fluss table can't be read", detail=entry.target) from error
        check(tuple(one.name for one in objects) == entry.files, "an intent's messages name other files than the intent", entry.target)
        check(
            {piece.bucket for one in objects for piece in one.pieces} <= places.keys(),
            "an intent has rows for buckets that it has no place of",
            entry.target,
        )
        return work

    def batches(self) -> dict[int, int]:
        """How many go to each bucket."""
        counts = dict.fromkeys(self.preface.places, 0)
        for one in self.objects:
            for piece in one.pieces:
                counts[piece.bucket] += 1
        return counts


def object_folder(target: str) -> str:
    """A table's name may be anything, a key's parts may not."""
    return key_of("staged", name_digest(target))


def name_digest(target: str) -> str:
    return hashlib.sha256(target.encode()).hexdigest()[:32]


def object_key(target: str, name: str) -> str:
    return f"{object_folder(target)}/{key_of(name)}"
