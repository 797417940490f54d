"""Errors of the data pipeline and its lake (A1)."""

from __future__ import annotations

from penstock.errors.root import PenstockError

__all__ = ["LakeCorrupt", "NoSpark", "OffsetsGone", "OtherRun", "PipelineError"]


class PipelineError(PenstockError):
    """A job of the data pipeline cannot do its work."""

    title = "Pipeline error"
    advice = "The job left no partial result; run it again."
    law = "A1"


class NoSpark(PipelineError):
    """Spark, or the Java that it needs, is missing or does not start."""

    title = "No Spark"
    advice = "Install Java 17 and penstock[spark], then run the job again."


class OffsetsGone(PipelineError):
    """A reader asked for entries of the log that retention has removed."""

    title = "Offsets gone"
    advice = "Read them from the lake, or skip them with failOnDataLoss=false."
    status = 410
    law = "L1"


class OtherRun(PipelineError):
    """Another run has begun this write, and the missing part of it cannot be determined."""

    title = "Written by another run"
    advice = (
        "If both runs have the same partitions, as those of a stream that reads from Penstock, "
        "write again with samePartitions=true. Otherwise give every row an id column, or use "
        "another writeId or checkpoint, which publishes every row again."
    )
    status = 409
    law = "P4"


class LakeCorrupt(PipelineError):
    """The contents of the lake do not match its manifest."""

    title = "Lake corrupt"
    advice = "Nothing is removed from the store; restore the named files, or archive again."
