"""Errors of the data pipeline and its lake (A1)."""

from __future__ import annotations

from penstock.errors.root import PenstockError

__all__ = ["LakeCorrupt", "NoSpark", "OffsetsGone", "OtherRun", "PipelineError"]


class PipelineError(PenstockError):
    """A job of the data pipeline cannot do its work."""

    title = "Pipeline error"
    advice = "Nothing was half done; the job may be run again."
    law = "A1"


class NoSpark(PipelineError):
    """Spark, or the Java that it needs, is not there or does not start."""

    title = "No Spark"
    advice = "Install Java 17 and penstock[spark], then run the job again."


class OffsetsGone(PipelineError):
    """A reader asks for entries of the log that retention has removed."""

    title = "Offsets gone"
    advice = "Read them from the lake, or go on without them: failOnDataLoss=false."
    status = 410
    law = "L1"


class OtherRun(PipelineError):
    """Another run has begun this write, and what is left of it cannot be told."""

    title = "Written by another run"
    advice = (
        "If both runs are cut into the same partitions, as what a stream reads from Penstock is, "
        "write again with samePartitions=true. Otherwise give every row an id column, or use "
        "another writeId or checkpoint, which publishes every row anew."
    )
    status = 409
    law = "P4"


class LakeCorrupt(PipelineError):
    """What is in the lake is not what its manifest says."""

    title = "Lake corrupt"
    advice = "Nothing is removed from the store; restore the files that are named, or archive anew."
